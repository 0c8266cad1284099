"""`cppo clean` and `cppo archive`."""

import json
import shutil
import sys
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab.core_records import BEST_MODEL
from cppo_lab.launch import queues
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.folder import read_status
from tests.conftest import Command

pytestmark = pytest.mark.usefixtures("undrawn")

SWEEP = "quickstart variant=grpo"


@pytest.fixture
def runs(cppo: Command, no_training: None) -> list[Path]:
    """Two finished runs with weights."""
    cppo(f"launch {SWEEP} launcher=inline")
    folders = sorted(path.parent for path in Path("runs").glob("*/status.json"))
    for folder in folders:
        (folder / BEST_MODEL).write_bytes(bytes(3_000_000))
    return folders


def test_disk_is_shown_by_sweep_and_freed_when_asked(
    cppo: Command, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, row = cppo("clean").out.splitlines()
    assert head.split() == ["sweep", "runs", "disk", "GB", "checkpoints", "GB", "superseded", "GB"]
    assert row.split()[:2] == ["quickstart", "2"] and row.split()[3:] == ["0.006", "0.000"]
    line = f"clean {SWEEP} seed=0 --checkpoints"
    said = cppo(line, code=2)  # no terminal
    assert "would free 0.003 GB of 1 run, and nobody can be asked here: repeat it with --yes" in said.err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer in (Mock(return_value="n"), Mock(side_effect=EOFError)):  # Ctrl-D
        monkeypatch.setattr("builtins.input", answer)
        cppo(line, code=1)
    assert all((folder / BEST_MODEL).exists() for folder in runs)
    assert cppo(f"{line} --yes").out == "0.003 GB freed\n"
    assert sum((folder / BEST_MODEL).exists() for folder in runs) == 1
    monkeypatch.setattr("builtins.input", lambda question: "yes")
    cppo("clean --checkpoints --superseded")
    assert not any((folder / BEST_MODEL).exists() for folder in runs)
    assert "0.000 GB freed" in cppo("clean --checkpoints").out


def test_what_no_store_has_yet_is_not_freed(cppo: Command, runs: list[Path]) -> None:
    for folder in runs:
        (folder / "spool" / "shipped.json").unlink()
    assert cppo("clean --checkpoints --json").answer["freed"] == 0


def test_an_archive_unpacked_elsewhere_gives_the_report_again(
    cppo: Command, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cppo(f"report {SWEEP} --no-log")
    assert cppo(f"archive {SWEEP} --out a.zip").out == "a.zip: 2 of 2 runs\n"
    assert "a.zip exists: name another file" in cppo(f"archive {SWEEP} --out a.zip", code=2).err
    with zipfile.ZipFile("a.zip") as archive:
        names = archive.namelist()
        archive.extractall("elsewhere")
    assert "report/index.html" in names and not any(name.endswith(BEST_MODEL) for name in names)
    numbers = Path("reports/build/quickstart/numbers.tex").read_bytes()
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", "sqlite:///other.db"
    )  # the file is read directly, whatever the store is
    assert cppo("report a.zip").out.endswith("reports/build/a/index.html\n")
    assert Path("reports/build/a/numbers.tex").read_bytes() == numbers
    assert not Path("other.db").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir("elsewhere")
    assert read_status(Path("runs") / runs[0].name)["status"] == "done"
    cppo("sync")
    cppo(f"report {SWEEP} --no-log")
    assert Path("reports/build/quickstart/numbers.tex").read_bytes() == numbers


def test_an_archive_has_the_files_of_its_sweep(cppo: Command, no_training: None) -> None:
    text = "title: Mine\nquestion: Which?\nmodels: [mini_quick]\nvariants: {own: {rule: own}}\n"
    for name, content in {
        "mine.yaml": text,
        "rule/own.yaml": "name: dppo\ndelta: 0.1\n",
        "of/both.yaml": "title: Both\nquestion: Which?\nsweeps: [../mine.yaml]\n",
        "of/whole.yaml": f"title: Whole\nquestion: Which?\nsweeps: [{Path('mine.yaml').absolute()}]\n",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    cppo("launch ./mine.yaml launcher=inline")
    for number, file in enumerate(("./mine.yaml", "of/both.yaml", "of/whole.yaml")):
        cppo(f"archive {file} --out {number}.zip")
    for folder in ("rule", "of"):
        shutil.rmtree(folder)
    Path("mine.yaml").unlink()
    for number, title in enumerate(("Mine", "Both", "Whole")):
        cppo(f"report {number}.zip --out page{number}")
        assert f"<h1>{title}</h1>" in Path(f"page{number}/index.html").read_text()


@pytest.mark.parametrize("name", ["../mine.yaml", "/tmp/mine.yaml"])
def test_an_archive_writes_nothing_elsewhere(cppo: Command, name: str) -> None:
    with zipfile.ZipFile("a.zip", "w") as archive:
        about = {"sweep": "./mine.yaml", "overrides": [], "files": {name: "title: Mine"}}
        archive.writestr("archive.json", json.dumps(about))
    said = cppo("report a.zip", code=2).err
    assert "a.zip cannot be read as a file of `cppo archive`" in said and f"{name!r} lies outside" in said


@pytest.mark.parametrize(
    "values", [{"record": 5}, {"tags": ["a"]}, {"params": {"seed": 0}}, {"time_ms": "then"}]
)
def test_an_archive_with_a_record_of_another_form_is_refused(
    cppo: Command, values: dict[str, object]
) -> None:
    begin = {
        "kind": "begin",
        "record": "a",
        "experiment": "e",
        "name": "n",
        "time_ms": 0,
        "tags": {},
        "params": {},
    }
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("archive.json", json.dumps({"sweep": "main", "overrides": []}))
        archive.writestr(f"runs/{'a' * 12}/spool/0001.jsonl", json.dumps(begin | values) + "\n")
    assert "a.zip cannot be read as a file of `cppo archive`" in cppo("report a.zip", code=2).err


def test_code_that_no_job_reads_is_freed(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Path("runs").absolute()
    for name in ("waits", "spare"):
        (runs / "code" / name).mkdir(parents=True)
        (runs / "code" / name / "a.py").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(queues, "settle_jobs", lambda runs: [])  # Slurm still has what the ledger has
    with Ledger(runs) as ledger:
        token = ledger.claim(["0" * 12])
        ledger.submitted(token, 70)
        ledger.folder_of(token).mkdir(parents=True, exist_ok=True)
        (ledger.folder_of(token) / "job.sh").write_text(f"export PYTHONPATH={runs}/code/waits")
        assert "would free 0.002 GB" in cppo("clean --code", code=2).err
        assert cppo("clean --code --yes").out == "0.002 GB freed\n"
        assert [path.name for path in (runs / "code").iterdir()] == ["waits"]
        ledger.end(ledger.open_tasks(), "COMPLETED")
    assert cppo("clean --code --yes").out == "0.002 GB freed\n"
