"""No shell reads a user's value: folders, names and overrides with spaces, quotes, line ends, `$()` and backticks."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab.launch.slurm.queue import SUBMISSIONS
from tests.conftest import TINY, Command
from tests.launch.stand_in import Slurm, slurm

__all__ = ["slurm"]  # a fixture

HOSTILE = "$(touch canary) `touch canary`; touch canary '\" #&"
# What was submitted waits in the queue.
WAITS = """[ -f "$ANSWERS/script" ] || exit 0
mark=$(printf '%s\\n' "$@" | sed -n 's/^--format=\\([0-9a-f]*\\)%.*/\\1/p')
sed -n "s/^#SBATCH --comment=/${mark}100|$(id -u)|PENDING|None|/p" "$ANSWERS/script"
"""
RUN = "quickstart variant=grpo seed=0"
LAUNCH = f"launch {RUN} launcher=slurm"


@pytest.fixture
def record(slurm: Slurm) -> Path:
    """A folder in which a stand-in for Slurm keeps what it was given: of srun each word as it came, ended by NUL."""
    slurm.command("squeue", WAITS)
    slurm.command("srun", """printf '%s\\0' "$@" > "$ANSWERS/srun_given\"""")
    return slurm.folder


@pytest.fixture(autouse=True)
def _no_canary(tmp_path: Path) -> Iterator[None]:
    """No text of these tests is ever carried out."""
    yield
    assert not list(tmp_path.rglob("canary"))


def words(file: Path) -> list[str]:
    """What a program was given, word by word."""
    return file.read_text().split("\0")[:-1]


def carried_out(record: Path) -> list[str]:
    """Runs the batch script as a node would, in the folder of the launcher; what srun was given."""
    done = subprocess.run(["bash", record / "script"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return words(record / "srun_given")


def test_the_batch_script_of_a_folder_with_a_hostile_name(
    folder_of_a_stranger: Path, record: Path, cppo: Command
) -> None:
    cppo(LAUNCH)
    assert Slurm(record).options["job-name"].startswith("quickstart/grpo-0-")
    given = carried_out(record)
    jobs = folder_of_a_stranger / "runs" / SUBMISSIONS
    assert [word for word in given if word.startswith(str(jobs))]
    assert all(str(folder_of_a_stranger) in word for word in given if "touch" in word)


def test_a_sweep_file_with_hostile_texts(folder_of_a_stranger: Path, record: Path, cppo: Command) -> None:
    name = "./sweep $(touch canary) `touch canary`.yaml"
    Path(name).write_text(
        f"name: mine\ntitle: {json.dumps(HOSTILE)}\nquestion: {json.dumps(HOSTILE)}\nmodels: [mini_base]\n"
        f"variants:\n  {json.dumps(HOSTILE.replace(';', '|'))}: {{rule: cppo}}\n"
    )
    paths = f'paths.data="{HOSTILE[:-5]}"'
    said = cppo("launch", name, "launcher=slurm", paths).out
    carried_out(record)
    # What is printed to be typed again means the same to a shell.
    [commands] = re.findall("^Slurm has them: (.*)", said, re.M)
    shell = 'cppo() { printf "%s\\0" "$@" > "$ANSWERS/$1.typed"; }\n' + commands
    subprocess.run(["bash", "-c", shell], check=True)
    for command in ("watch", "status"):
        assert words(record / f"{command}.typed") == [command, name, "launcher=slurm", paths]


def test_options_of_sbatch_and_srun_arrive_as_they_are(
    folder_of_a_stranger: Path, record: Path, cppo: Command
) -> None:
    options = {
        "reservation": "spring break",
        "licenses": "a'b",
        "nodelist": 'a"b',
        "begin": "$(touch canary)",
        "mail-user": "`touch canary`",
        "chdir": "a;touch canary",
        "export": "a\\b",
    }
    arguments = ["--export=A=$(touch canary)", "--comment=`touch canary`", "--x='a b';touch canary"]

    def quoted(value: str) -> str:
        return "'" + value.replace("'", "\\'") + "'"

    given = [f"+launcher.sbatch.{name}={quoted(value)}" for name, value in options.items()]
    given.append(f"launcher.srun=[{','.join(map(quoted, arguments))}]")
    cppo(LAUNCH, *given)
    assert options.items() <= Slurm(record).options.items()
    assert set(arguments) <= set(carried_out(record))


@pytest.mark.parametrize("name", ["new\nline", "100%a", "back\\slash"])
def test_folders_that_slurm_would_read_differently(
    name: str, workspace: Path, record: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    (workspace / name).mkdir()
    monkeypatch.chdir(name)
    line = cppo(LAUNCH, code=2).err.splitlines()[-1]
    assert line.startswith("cppo: error: launcher=slurm: the folder ")
    assert line.endswith("which Slurm misreads: rename it, or work in another folder")
    assert not (record / "script").exists()


def test_processes_of_a_folder_with_a_hostile_name(folder_of_a_stranger: Path, cppo: Command) -> None:
    """A real run through the local launcher, in a separate process."""
    cppo(f"launch {RUN} launcher=local launcher.workers=1", *TINY, "training.t_stop=2")
    [status] = folder_of_a_stranger.glob("runs/*/status.json")
    assert json.loads(status.read_text())["status"] == "done"


def test_the_way_to_a_store_can_be_typed(folder_of_a_stranger: Path) -> None:
    from cppo_lab.tracking.address import absolute_uri
    from cppo_lab.tracking.page import where_to_look

    uri = absolute_uri("sqlite:///other $(touch canary) 'x'.db")
    shell = 'cppo() { printf "%s" "$MLFLOW_TRACKING_URI"; }\n' + where_to_look(uri, "cppo-mini")
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout == uri
