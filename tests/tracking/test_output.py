"""What runs print: found by whoever prints it, bounded, whole where it is short, and never with a password."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.launch.local import launch_local
from cppo_lab.tracking.output import Printed, captured_output, own_output

ROOT = Path(__file__).parents[2]
SECRET = "s3cret"
NOW = 1_700_000_000.0  # seconds since the epoch


def write(folder: Path, name: str, text: str | bytes, age: float = 0.0) -> Path:
    path = folder / "attempts" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(path, (NOW - age,) * 2)
    return path


def test_short_output_is_whole_and_in_order(tmp_path: Path) -> None:
    assert captured_output(tmp_path) == []
    write(tmp_path, "9_0_log.out", "first\n", age=100)
    write(tmp_path, "10_0_log.err", b"caf\xe9 \xf0\x9f\x8c\x8d\n", age=50)
    write(tmp_path, "10_0_log.out", "second\r\n", age=10)
    write(tmp_path, "11_0_log.out", "")
    write(tmp_path, "10_0_result.pkl", "not printed")
    assert captured_output(tmp_path) == [
        ("output/9_0_log.out.txt", b"first\n"),
        ("output/10_0_log.err.txt", b"caf\xe9 \xf0\x9f\x8c\x8d\n"),
        ("output/10_0_log.out.txt", b"second\r\n"),
    ]


def test_long_output_keeps_head_and_tail(tmp_path: Path) -> None:
    lines = [f"line {i:06d}\n" for i in range(50_000)]
    path = write(tmp_path, "1_0_log.out", "".join(lines))
    [(_, content)] = captured_output(tmp_path, most_bytes=10_000)
    text = content.decode()
    assert len(content) < 10_000 + 300
    head, said, tail = text.partition("\n[... ")
    assert said and "".join(lines).startswith(head) and len(head) > 4900
    line, _, tail = tail.partition("\n")
    assert "".join(lines).endswith(tail) and len(tail) > 4900
    left = len("".join(lines)) - len(head) - len(tail)
    assert line == f"{left:,} of 600,000 bytes are left out here: see {path} ...]"


def test_all_attempts_together_are_bounded(tmp_path: Path) -> None:
    write(tmp_path, "1_0_log.out", "short\n", age=9)
    for job in (2, 3):
        write(tmp_path, f"{job}_0_log.out", "x y\n" * 100_000, age=9 - job)
    found = captured_output(tmp_path, most_bytes=100_000)
    assert [len(content) for _, content in found] == pytest.approx([6, 50_000, 50_000], rel=0.01)
    assert found[0][1] == b"short\n"


def test_passwords_are_masked(tmp_path: Path) -> None:
    write(tmp_path, "1_0_log.out", f"store postgresql://ada:{SECRET}@db/x\nuri=http://{SECRET}@h\n")
    [(_, content)] = captured_output(tmp_path)
    assert content == b"store postgresql://ada:***@db/x\nuri=http://***@h\n"


def test_no_cut_goes_through_a_password(tmp_path: Path) -> None:
    """Wherever the cut falls."""
    word = f"http://ada:{SECRET}@host"
    path = write(tmp_path, "1_0_log.out", " ".join([word] * 100))
    for most in range(40, 160):
        [(_, content)] = captured_output(tmp_path, most_bytes=most)
        told = content.replace(str(path).encode(), b"")
        assert b"cret" not in told and b"s3c" not in told and b"ada:s" not in told
    path.write_text(f"http://{SECRET}@host" * 100)  # no space at all
    for most in range(20, 60):
        [(_, content)] = captured_output(tmp_path, most_bytes=most)
        assert b"s3" not in content.replace(str(path).encode(), b"")


def test_other_files_begin_where_the_attempt_did(tmp_path: Path) -> None:
    slurm = tmp_path / "elsewhere" / "7_log.out"
    slurm.parent.mkdir()
    slurm.write_text("another run's\nours\nours again\n")
    start = len("another run's\n")
    both = [Printed(str(slurm), start + 5), Printed(str(slurm), start)]  # two attempts in one file
    assert captured_output(tmp_path, both) == [("output/7_log.out.txt", b"ours\nours again\n")]
    own = write(tmp_path, "7_log.out", "of the launcher\n", age=60)
    found = dict(captured_output(tmp_path, [*both, Printed(str(own), 3)]))
    assert found == {
        "output/7_log.out.txt": b"of the launcher\n",
        "output/1_7_log.out.txt": b"ours\nours again\n",
    }
    slurm.write_text("")  # cut off
    assert len(captured_output(tmp_path, both)) == 1
    slurm.unlink()
    assert len(captured_output(tmp_path, both)) == 1


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("private")
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "1_0_log.out").symlink_to(tmp_path / "private")
    assert captured_output(tmp_path, [Printed(str(tmp_path / "attempts" / "1_0_log.out"), 0)]) == []


def printing(**options: object) -> list[Printed]:
    """What `own_output` finds in a process that prints to what `options` say."""
    script = (
        "import json, os, sys; from pathlib import Path; from cppo_lab.tracking.output import own_output;"
        "print('before'); Path(sys.argv[1]).write_text(json.dumps(own_output())); print('after')"
    )
    told = Path("told.json")
    subprocess.run([sys.executable, "-c", script, str(told)], check=True, **options)  # type: ignore[call-overload]
    return [Printed(*one) for one in json.loads(told.read_text())]


def test_own_output(workspace: Path) -> None:
    out, err = workspace / "job.out", workspace / "job.err"
    out.write_text("of another\n")
    with out.open("a") as stdout, err.open("a") as stderr:
        found = printing(stdout=stdout, stderr=stderr)
        assert found == [Printed(str(out), len("of another\nbefore\n")), Printed(str(err), 0)]
    assert captured_output(workspace / "run", found) == [("output/job.out.txt", b"after\n")]
    with out.open("a") as both:
        assert [one.path for one in printing(stdout=both, stderr=subprocess.STDOUT)] == [str(out)]
    assert printing(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) == []
    with out.open("a") as removed:
        out.unlink()
        assert printing(stdout=removed, stderr=subprocess.DEVNULL) == []


def test_a_closed_output_is_none(workspace: Path) -> None:
    script = "import sys; from cppo_lab.tracking.output import own_output; sys.exit(own_output() != [])"
    command = f"exec {sys.executable} -c '{script}' >&- 2>&-"
    assert subprocess.run(["bash", "-c", command]).returncode == 0


class Printing:
    """A job of the local launcher."""

    gpus, resources, name = 0, None, "printing"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self) -> None:
        (self.folder / "told.json").write_text(json.dumps(own_output()))
        print(f"trained with http://ada:{SECRET}@host")
        print("warned", file=sys.stderr)


def test_a_job_of_the_local_launcher(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cppo_lab.launch.base import LauncherSpec
    from cppo_lab.sweep.compose import compose

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the job is one of this file
    launcher: LauncherSpec = compose(["launcher=local"]).launcher
    folder = workspace / "run"
    folder.mkdir()
    launch_local([Printing(folder)], launcher, lambda event: None)  # type: ignore[list-item]
    own = [Printed(*one) for one in json.loads((folder / "told.json").read_text())]
    assert len(own) == 2
    found = captured_output(folder, own)
    assert len(found) == 2  # the same files, and whole
    text = b"".join(content for _, content in found)
    assert b"trained with http://ada:***@host\n" in text and b"warned\n" in text
    assert b"submitit" in text
