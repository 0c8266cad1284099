"""`cppo clean` and `cppo archive`."""

import json
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab.core_records import BEST_MODEL
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.folder import read_status, set_aside
from cppo_lab.runs.spool import Begin
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
    assert " ".join(head.split()) == "sweep runs disk GB checkpoints GB superseded GB"
    assert row.split()[:2] == ["quickstart", "2"] and row.split()[3:] == ["0.006", "0.000"]
    line = f"clean {SWEEP} seed=0 --checkpoints"
    said = cppo(line, code=2)  # no terminal
    assert "would free 0.003 GB of 1 run, and nobody can be asked here: repeat it with --yes" in said.err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", Mock(side_effect=["n", EOFError, "yes"]))  # Ctrl-D

    def kept() -> int:
        return sum((folder / BEST_MODEL).exists() for folder in runs)

    for _ in range(2):
        cppo(line, code=1)
    assert kept() == 2
    assert cppo(f"{line} --yes").out == "0.003 GB freed\n" and kept() == 1
    cppo("clean --checkpoints --superseded")
    assert kept() == 0
    assert "0.000 GB freed" in cppo("clean --checkpoints").out
    for line in ("export {} --out model", "evaluate {} --benchmark chain"):
        said = cppo(line.format(runs[0].name), code=2).err
        assert "has no checkpoint any more: `cppo clean --checkpoints` frees those of finished runs" in said
    shutil.rmtree("runs")
    for line, of in (("clean", str(Path("runs").resolve())), (f"clean {SWEEP}", "quickstart")):
        assert cppo(line).out.strip() in (f"there are no runs in {of}", f"no run of {of} has a folder here")


def test_what_no_store_has_yet_is_not_freed(cppo: Command, runs: list[Path]) -> None:
    for folder in runs:
        (folder / "spool" / "shipped.json").unlink()
    assert cppo("clean --checkpoints --json").answer["freed"] == 0


def test_an_archive_unpacked_elsewhere_gives_the_report_again(
    cppo: Command, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cppo(f"report {SWEEP} --no-log")
    set_aside(runs[0], "old")  # a launch with --replace was killed
    assert cppo(f"archive {SWEEP} --out a.zip").out == "a.zip: 2 of 2 runs\n"
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
    assert "cppo report a.zip<" in Path("reports/build/a/index.html").read_text()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir("elsewhere")
    assert read_status(Path("runs") / runs[0].name)["status"] == "done"
    cppo("sync")
    cppo(f"report {SWEEP} --no-log")
    assert Path("reports/build/quickstart/numbers.tex").read_bytes() == numbers


def test_an_archive_has_the_files_of_its_sweep(cppo: Command, no_training: None) -> None:
    text = "name: ours\ntitle: Mine\nquestion: Which?\nmodels: [mini_quick]\nvariants: {own: {rule: own}}\n"
    for name, content in {
        "mine.yaml": text,
        "rule/own.yaml": "name: dppo\ndelta: 0.1\n",
        "of/both.yaml": "title: Both\nquestion: Which?\nsweeps: [../mine.yaml]\n",
        "of/whole.yaml": f"title: Whole\nquestion: Which?\nsweeps: [{Path('mine.yaml').absolute()}]\n",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    cppo("launch ./mine.yaml launcher=inline")
    reported = cppo("report ./mine.yaml --no-log --json").answer
    assert (reported["sweep"], reported["folder"]) == ("ours", "reports/build/ours")
    for number, file in enumerate(("./mine.yaml", "of/both.yaml", "of/whole.yaml")):
        cppo(f"archive {file} --out {number}.zip")
    assert "report/index.html" in zipfile.ZipFile("0.zip").namelist()
    for folder in ("rule", "of"):
        shutil.rmtree(folder)
    Path("mine.yaml").unlink()
    for number, title in enumerate(("Mine", "Both", "Whole")):
        cppo(f"report {number}.zip --out page{number}")
        assert f"<h1>{title}</h1>" in Path(f"page{number}/index.html").read_text()


def refused(cppo: Command, about: dict[str, object], **files: str) -> str:
    """What is said of an archive with these entries."""
    with zipfile.ZipFile("a.zip", "w") as archive:
        archive.writestr("archive.json", json.dumps({"sweep": "main", "overrides": []} | about))
        for name, text in files.items():
            archive.writestr(name, text)
    said = cppo("report a.zip", code=2).err
    assert "a.zip cannot be read as a file of `cppo archive`" in said
    return said


@pytest.mark.parametrize("place", ["../mine.yaml", "{here}/mine.yaml"])
def test_an_archive_writes_nothing_elsewhere(cppo: Command, place: str, tmp_path: Path) -> None:
    name = place.format(here=tmp_path)
    assert f"{name!r} lies outside" in refused(cppo, {"files": {name: "title: Mine"}})
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize(
    "key, value, says", [("record", 5, "record=5: "), ("params", {"seed": 0}, "params.seed=0: ")]
)
def test_an_archive_with_a_record_of_another_form_is_refused(
    cppo: Command, key: str, value: object, says: str
) -> None:
    begin = asdict(Begin("a", "e", "n", 0, {}, {})) | {"kind": "begin", key: value}
    said = refused(cppo, {}, **{f"runs/{'a' * 12}/spool/0001.jsonl": json.dumps(begin) + "\n"})
    assert f"a record has {says}" in said


def test_code_that_no_job_reads_is_freed(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Path("runs").absolute()
    for name in ("waits", "spare"):
        (runs / "code" / name).mkdir(parents=True)
        (runs / "code" / name / "a.py").write_bytes(bytes(2_000_000))
    # Slurm still has what the ledger has.
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.refresh", lambda ledger: {})
    with Ledger(runs) as ledger:
        ledger.submitted(token := ledger.claim(["0" * 12]), 70)
        (job := ledger.folder_of(token)).mkdir(parents=True, exist_ok=True)
        (job / "job.sh").write_text(f"export PYTHONPATH={runs}/code/waits")
        assert "would free 0.002 GB" in cppo("clean --code", code=2).err
        assert cppo("clean --code --yes").out == "0.002 GB freed\n"
        assert [path.name for path in (runs / "code").iterdir()] == ["waits"]
        ledger.end(ledger.open_tasks(), "COMPLETED")
    assert cppo("clean --code --yes").out == "0.002 GB freed\n"
