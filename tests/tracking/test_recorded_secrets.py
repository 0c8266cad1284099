"""An error may hold a password, of a tracking store most of all: nothing of a run keeps it."""

from pathlib import Path

import pytest

from cppo_lab.runs.folder import TRACEBACK, read_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.spec import RunSpec

PASSWORD = "s3cret"
ERROR = f"OperationalError: postgresql://ada:{PASSWORD}@db:5432/mlflow is away"


@pytest.fixture
def failed(tmp_path: Path, tiny_spec: RunSpec) -> Path:
    """The folder of a run that has failed."""
    folder = tmp_path / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.fail(ERROR, f"Traceback (most recent call last):\n  ...\n{ERROR}\n")
    return folder


def test_no_file_of_a_failed_run_has_the_password(failed: Path) -> None:
    files = [path for path in failed.rglob("*") if path.is_file()]
    assert failed / TRACEBACK in files
    assert [path.name for path in files if PASSWORD.encode() in path.read_bytes()] == []


def test_all_else_of_the_error_is_kept(failed: Path) -> None:
    shown = "OperationalError: postgresql://ada:***@db:5432/mlflow is away"
    assert read_status(failed)["reason"] == shown
    assert (failed / TRACEBACK).read_text() == f"Traceback (most recent call last):\n  ...\n{shown}\n"
