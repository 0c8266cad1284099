"""Shipping while the store is away, while the disk is full, and while both are: nothing is lost, nobody waits."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from cppo_lab import files as safe_open
from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import read_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import FOLDER
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import uploader
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.upload import upload
from cppo_lab.tracking.uploader import upload_last
from tests.conftest import FINISHED
from tests.recorded import mlflow_run, sent, upload_ended
from tests.tracking.test_upload import log, steps


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


@contextlib.contextmanager
def uploading(recorder: Recorder) -> Iterator[None]:
    """What a job does when its run has ended."""
    yield
    lines = list(recorder.spool.unwritten)
    upload_last([recorder.folder], tracking_uri(), {recorder.folder: lines} if lines else None)


def test_a_store_that_is_away_at_the_end_loses_nothing(
    workspace: Path,
    tiny_spec: RunSpec,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
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
    recorder = Recorder(tiny_spec, {}, folder)
    with uploading(recorder):
        recorder.begin(None)
        log(recorder, 0, 1, 2)
        recorder.finish(FINISHED)
    assert store.asked > 1
    assert read_status(folder)["status"] == schema.DONE
    said = capsys.readouterr().err
    assert said.count("tracking store does not answer") == 1
    assert "`cppo sync` uploads it" in said
    with pytest.raises(UserError, match="nothing is lost, `cppo sync` uploads the rest"):
        upload([folder], tracking_uri())
    upload_ended()
    store.away = False
    assert upload([folder], tracking_uri()).points == 6
    assert steps(folder) == [0, 1, 2]


def test_what_a_full_disk_keeps_from_the_spool_is_sent_at_the_end(
    workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    first = Recorder(tiny_spec, {}, folder)
    first.begin(None)
    log(first, 0)
    first.interrupt("terminated by SIGTERM")
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(0)
    # A context of its own: `undo` would take back the fixtures' settings, too.
    with monkeypatch.context() as disk, uploading(recorder):
        log(recorder, 0)
        sent(folder)  # all that is on file is in the store

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        disk.setattr("cppo_lab.runs.spool.os.write", full)
        log(recorder, 1, 2)
        recorder.finish(FINISHED)
    assert steps(folder) == [0, 1, 2]
    assert mlflow_run(folder).info.status == "FINISHED"
    # The store alone knows of the end: who sends all that is on file does not take it back.
    (folder / FOLDER / "shipped.json").unlink()
    ended = mlflow_run(folder)
    assert (ended.info.status, ended.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
    assert steps(folder) == [0, 1, 2]


def fill_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, spool: bool) -> None:
    """No file below the folder can be written from now on, and its spool neither, if so said."""
    real = safe_open.replacing

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    @contextlib.contextmanager
    def replacing(path: Path) -> Iterator[Any]:
        with real(path) as file:
            if path.is_relative_to(folder):
                full()
            yield file

    monkeypatch.setattr(safe_open, "replacing", replacing)
    if spool:
        monkeypatch.setattr("cppo_lab.runs.spool.os.write", full)


@pytest.mark.parametrize("spool", [True, False])
def test_an_artifact_that_a_full_disk_does_not_take_is_sent_all_the_same(
    workspace: Path,
    tiny_spec: RunSpec,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spool: bool,
) -> None:
    """At the end, or with the lines of the spool if it has room for them."""
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    recorder = Recorder(tiny_spec, {}, folder)
    with uploading(recorder):
        log(recorder, 0)
        with monkeypatch.context() as patch:
            fill_disk(patch, folder, spool)
            recorder.artifact("diagnostics/positions.json", {"position": [1, 2]})
            recorder.finish(FINISHED)
            assert not (folder / "diagnostics" / "positions.json").exists()
    client, run = open_client(tracking_uri()), mlflow_run(folder)
    path = client.download_artifacts(run.info.run_id, "diagnostics/positions.json", str(workspace))
    assert Path(path).read_text() == '{"position": [1, 2]}'
    assert run.data.tags[schema.TAG_FILES] == "complete"
    assert "did not accept all" not in capsys.readouterr().err


def test_a_store_that_is_away_and_a_full_disk(
    workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing has the end of the run: it is not called safe."""
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    monkeypatch.setattr(uploader, "PATIENCE_SECONDS", 0.2)
    Away(monkeypatch)
    recorder = Recorder(tiny_spec, {}, folder)
    with uploading(recorder), monkeypatch.context() as patch:
        log(recorder, 0)
        fill_disk(patch, folder, True)
        log(recorder, 1)
        recorder.finish(FINISHED)
    upload_ended()
    said = capsys.readouterr().err
    assert f"the disk of {folder} has no room for the rest: launch it again" in said
    assert "safe" not in said


@pytest.mark.parametrize("spool", [True, False])
def test_an_end_that_no_disk_took_leaves_the_older_files(
    workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, spool: bool
) -> None:
    """Killed before the store has the end, the next attempt continues from its checkpoint and needs them."""
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        full_disk_at_the_end(Recorder(tiny_spec, {}, folder), patch, spool)
    older = folder / "answers" / "outcomes.npz"
    if spool:
        assert older.read_bytes() == b"of step 0"
    else:  # the end is on disk, and the newer content with it
        assert not older.exists()


@pytest.mark.parametrize("spool", [True, False])
def test_the_store_gets_the_newest_content_and_keeps_it(
    workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, spool: bool
) -> None:
    """Also when the lines that name the older file are sent again: a full disk may not keep how far it had got."""
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    recorder = Recorder(tiny_spec, {}, folder)
    with monkeypatch.context() as patch, uploading(recorder):
        full_disk_at_the_end(recorder, patch, spool)
    assert stored(folder, "answers/outcomes.npz") == b"of steps 0 and 1"
    (folder / FOLDER / "shipped.json").unlink(missing_ok=True)
    upload([folder], tracking_uri())
    assert stored(folder, "answers/outcomes.npz") == b"of steps 0 and 1"
    assert mlflow_run(folder).info.status == "FINISHED"


def test_a_file_that_is_written_after_all_is_newer_than_what_a_line_held(
    workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    with monkeypatch.context() as patch:
        fill_disk(patch, folder, spool=False)
        recorder.artifact("positions.json", {"position": [1]})
    recorder.artifact("positions.json", {"position": [1, 2]})
    recorder.finish(FINISHED)
    upload([folder], tracking_uri())
    assert stored(folder, "positions.json") == b'{"position": [1, 2]}'


def full_disk_at_the_end(recorder: Recorder, patch: pytest.MonkeyPatch, spool: bool) -> None:
    """A run of two steps; the disk takes the outcomes of the first only."""
    recorder.begin(None)
    log(recorder, 0)
    assert recorder.file("answers/outcomes.npz", b"of step 0")
    fill_disk(patch, recorder.folder, spool)
    log(recorder, 1)
    assert not recorder.file("answers/outcomes.npz", b"of steps 0 and 1")
    recorder.finish(FINISHED)


def stored(folder: Path, name: str) -> bytes:
    """A file of the run, as the store has it."""
    client, run = open_client(tracking_uri()), mlflow_run(folder)
    return Path(client.download_artifacts(run.info.run_id, name)).read_bytes()
