"""The record of submitted jobs, damaged, is used as it was written, or named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.launch.slurm import LEDGER
from cppo_lab.launch.slurm.queue import Ledger, view
from tests.fuzz.mangling import damaged, fuzz, refused

RUNS = [f"{number:012x}" for number in range(30)]


def made(runs: Path) -> Path:
    with Ledger(runs) as ledger:
        for start in range(0, 30, 10):
            ledger.submitted(ledger.claim(RUNS[start : start + 10]), 100 + start)
        ledger.end(ledger.open_tasks(), "COMPLETED")
    return runs / LEDGER


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return made(tmp_path_factory.mktemp("original")).read_bytes()


def everything(runs: Path) -> None:
    """All that launchers and those who look ask of it."""
    view(runs)
    with Ledger(runs) as ledger:
        assert all(task.name and task.token for task in ledger.newest_tasks().values())
        ledger.open_tasks()
        ledger.unanswered()
        ledger.tasks_of(RUNS[3])
        token = ledger.claim(["f" * 12])
        assert ledger.folder_of(token).parent.parent == runs
        ledger.submitted(token, 7)
        ledger.end(ledger.open_tasks(token), "FAILED")


@fuzz(60)
@given(data=st.data())
def test_bytes(tmp_path_factory: pytest.TempPathFactory, original: bytes, data: st.DataObject) -> None:
    runs = tmp_path_factory.getbasetemp() / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir()
    (runs / LEDGER).write_bytes(data.draw(damaged(original)))
    refused(lambda: everything(runs), str(runs / LEDGER))


@pytest.mark.parametrize(
    "make", [Path.mkdir, lambda path: path.symlink_to("/proc/self/mem")], ids=["folder", "memory"]
)
def test_no_plain_files(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / LEDGER)
    assert refused(lambda: Ledger(tmp_path), str(tmp_path / LEDGER))
