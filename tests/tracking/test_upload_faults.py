"""Shipping while the store is away, while the disk is full, and while both are: nothing is lost, nobody waits."""

import contextlib
import errno
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from cppo_lab import files as safe_open
from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import read_status
from cppo_lab.runs.recorder import Recorder, record_end
from cppo_lab.runs.spool import FOLDER
from cppo_lab.tracking import uploader
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.upload import upload
from cppo_lab.tracking.uploader import upload_last
from tests.conftest import FINISHED
from tests.recorded import mlflow_run, sent, upload_ended
from tests.tracking.conftest import Attempt, log
from tests.tracking.test_upload import packed_history, steps

OUTCOMES, POSITIONS = "answers/outcomes.npz", "diagnostics/positions.json"


class Away:
    """A store that does not answer until it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away, self.asked = True, 0
        real = MlflowClient.get_experiment_by_name

        def ask(client: MlflowClient, name: str) -> Any:
            self.asked += 1
            if self.away:
                raise MlflowException("the server is away")
            return real(client, name)

        monkeypatch.setattr(MlflowClient, "get_experiment_by_name", ask)


def job_ends(recorder: Recorder) -> None:
    """What a job does when its run has ended."""
    lines = list(recorder.spool.unwritten)
    upload_last([recorder.folder], tracking_uri(), {recorder.folder: lines} if lines else None)


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def fill_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, spool: bool) -> None:
    """No file below the folder can be written from now on, and its spool neither, if so said."""
    real = safe_open.replacing

    @contextlib.contextmanager
    def replacing(path: Path) -> Iterator[Any]:
        with real(path) as file:
            if path.is_relative_to(folder):
                full()
            yield file

    monkeypatch.setattr(safe_open, "replacing", replacing)
    if spool:
        monkeypatch.setattr("cppo_lab.runs.spool.os.write", full)


def stored(folder: Path, name: str) -> bytes:
    """A file of the run, as the store has it."""
    client, run = open_client(tracking_uri()), mlflow_run(folder)
    return Path(client.download_artifacts(run.info.run_id, name)).read_bytes()


def test_a_store_that_is_away_at_the_end_loses_nothing(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uploader, "LOOK_SECONDS", 0.01)
    store = Away(monkeypatch)

    class Impatient(uploader._LastUpload):
        """Its time is over once the store was asked a second time."""

        @property
        def deadline(self) -> float:
            return 0.0 if store.asked > 1 else math.inf

        @deadline.setter
        def deadline(self, value: float) -> None:
            pass

    monkeypatch.setattr(uploader, "_LastUpload", Impatient)
    recorder = attempt(0, 1, 2)
    recorder.finish(FINISHED)
    job_ends(recorder)
    assert store.asked > 1 and read_status(folder)["status"] == schema.DONE
    printed = capsys.readouterr().err
    assert printed.count("tracking store does not answer") == 1 and "`cppo sync` uploads it" in printed
    with pytest.raises(UserError, match="nothing is lost, `cppo sync` uploads the rest"):
        upload([folder], tracking_uri())
    upload_ended()
    store.away = False
    assert upload([folder], tracking_uri()).points == 6
    assert steps(folder) == [0, 1, 2]


def test_the_last_upload_of_many_runs_says_how_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, tried = [tmp_path / name for name in "abc"], threading.Event()

    def take_one(waiting: Sequence[Path], uri: str, sent: Callable[[Path], None], *_: object) -> str:
        if not tried.is_set():
            sent(waiting[0])
            tried.set()
        return "it is away"

    for name, value in {"LOOK_SECONDS": 0.01, "TELL_SECONDS": 0.0, "PATIENCE_SECONDS": 0.5}.items():
        monkeypatch.setattr(uploader, name, value)
    monkeypatch.setattr(uploader, "unsent", lambda *_: True)
    monkeypatch.setattr(uploader, "upload_once", take_one)
    upload_last(folders, "sqlite:///m.db")
    upload_ended()
    lines = capsys.readouterr().err.splitlines()
    assert "uploading to the tracking store: 2 of 3 runs left" in lines
    assert lines[-1] == (
        "tracking store did not accept all of 2 runs (b, c): the rest is safe in "
        f"{tmp_path}, and `cppo sync` uploads it"
    )


def test_a_store_that_is_away_and_a_full_disk(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing has the end of the run: it is not called safe."""
    monkeypatch.setattr(uploader, "PATIENCE_SECONDS", 0.2)
    Away(monkeypatch)
    recorder = attempt(0)
    with monkeypatch.context() as disk:
        fill_disk(disk, folder, True)
        log(recorder, 1)
        recorder.finish(FINISHED)
    job_ends(recorder)
    upload_ended()
    printed = capsys.readouterr().err
    assert f"the disk of {folder} has no room for the rest: launch it again" in printed
    assert "safe" not in printed


def test_steps_that_a_full_disk_keeps_from_the_spool_are_sent_at_the_end(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(0).interrupt("terminated by SIGTERM")
    recorder = attempt(0, after=0)
    with monkeypatch.context() as disk:
        sent(folder)  # all that is on file is in the store
        disk.setattr("cppo_lab.runs.spool.os.write", full)
        log(recorder, 1, 2)
        recorder.finish(FINISHED)
        job_ends(recorder)
    # The store alone knows of the end: who sends all that is on file does not take it back.
    for _ in range(2):
        ended = mlflow_run(folder)
        assert (ended.info.status, ended.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
        assert steps(folder) == [0, 1, 2]
        (folder / FOLDER / "shipped.json").unlink()
    assert record_end(folder, schema.DONE, "")  # once there is room
    assert [step for step, _, _ in packed_history(folder)["train/reward"]] == steps(folder) == [0, 1, 2]


@pytest.mark.parametrize("spool", [True, False])
def test_files_that_a_full_disk_does_not_take_are_sent_all_the_same(
    folder: Path,
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spool: bool,
) -> None:
    """At the end, or with the lines of the spool if it has room for them. The disk takes the first outcomes only."""
    recorder = attempt(0)
    older = folder / OUTCOMES
    assert recorder.file(OUTCOMES, b"of step 0")
    with monkeypatch.context() as disk:
        fill_disk(disk, folder, spool)
        log(recorder, 1)
        recorder.artifact(POSITIONS, {"position": [1, 2]})
        assert not recorder.file(OUTCOMES, b"of steps 0 and 1")
        recorder.finish(FINISHED)
        assert not (folder / POSITIONS).exists()
        # Killed before the store has the end, the next attempt continues from its checkpoint and needs the older file;
        # if the end is on disk, the newer content is with it.
        assert older.read_bytes() == b"of step 0" if spool else not older.exists()
        job_ends(recorder)
    assert "did not accept all" not in capsys.readouterr().err
    for _ in range(2):  # also when the lines that name the older file are sent again
        assert stored(folder, OUTCOMES) == b"of steps 0 and 1"
        assert stored(folder, POSITIONS) == b'{"position": [1, 2]}'
        (folder / FOLDER / "shipped.json").unlink(missing_ok=True)
    run = mlflow_run(folder)
    assert (run.info.status, run.data.tags[schema.TAG_FILES]) == ("FINISHED", "complete")
