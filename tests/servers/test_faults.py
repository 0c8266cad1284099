"""Whatever a server or a file does, the store has what was recorded, once. With kills: `make chaos-short`."""

import shutil
from pathlib import Path

import pytest
from mlflow.entities import ViewType

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.tracking.address import VARIABLE, tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.upload import upload
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.mlflow_server import MlflowServer
from tests.conftest import FINISHED
from tests.recorded import mlflow_run, sent
from tests.servers.forked import context
from tests.tracking.conftest import Attempt, attempt, folder, log
from tests.tracking.test_upload import steps

__all__ = ["attempt", "folder"]  # fixtures


def assert_whole(folder: Path) -> None:
    """The store has the run once, with every point once, and nothing of it is RUNNING."""
    run = mlflow_run(folder)
    assert (run.info.status, run.data.tags[schema.TAG_FILES]) == ("FINISHED", "complete")
    assert steps(folder) == [*range(5)]
    condition = f"tags.`{schema.TAG_RECORD}` = '{run.data.tags[schema.TAG_RECORD]}'"
    of_record = open_client(tracking_uri()).search_runs([run.info.experiment_id], condition, ViewType.ALL)
    assert "RUNNING" not in [run.info.status for run in of_record]


@pytest.mark.parametrize(
    ("fault", "begun"),
    [
        (Fault(status=503), True),
        (Fault(status=200), True),  # a page, as of a login or of a gateway that is kind
        (Fault(cut=True, path="runs/create", times=2), False),
        (Fault(cut=True, path="runs/log-batch", times=5), True),
        (Fault(cut=True, times=25), False),
    ],
    ids=str,
)
def test_answers_are_errors_or_pages_or_lost_after_the_work_was_done(
    proxy: FaultyProxy,
    folder: Path,
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    begun: bool,
) -> None:
    """MLflow's client sends a request whose answer is lost again, and so do we."""
    monkeypatch.setenv(VARIABLE, proxy.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    recorder = attempt(0, 1)
    if begun:
        sent(folder)
    log(recorder, 2, 3, 4)
    recorder.finish(FINISHED)
    proxy.answer(fault)
    for _ in range(40):
        try:
            upload([folder], proxy.uri)
            break
        except UserError:
            if fault.times is None:
                proxy.answer(None)
    assert proxy.faults[fault] >= (fault.times or 1)
    assert_whole(folder)


def test_a_server_hangs_and_carries_out_later_what_was_given_up(
    server: MlflowServer, folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ((VARIABLE, server.uri), ("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")):
        monkeypatch.setenv(name, value)
    client, recorder = open_client(server.uri), attempt(0, 1)
    sent(folder)
    log(recorder, 2, 3, 4)
    recorder.finish(FINISHED)
    monkeypatch.setattr("cppo_lab.tracking.upload.open_client", lambda uri: client)
    server.pause()
    try:
        with pytest.raises(UserError, match="`cppo sync` uploads the rest"):
            upload([folder], server.uri)
    finally:
        server.resume()
    assert_whole(folder)


def test_several_processes_write_into_one_file_that_could_not_be_reached_at_first(
    sqlite_tables: Path, folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = folder.parent.with_name("mount")
    away.touch()  # no folder can be made here
    monkeypatch.setenv(VARIABLE, f"sqlite:///{away}/mlflow.db")
    folders = [folder.with_name(name) for name in "abcd"]
    for place in folders:
        attempt(*range(5), place=place).finish(FINISHED)
    with pytest.raises(UserError, match="cannot be used"):
        upload(folders, tracking_uri())
    away.unlink()
    away.mkdir()
    shutil.copy(sqlite_tables, away / "mlflow.db")
    processes = [context().Process(target=upload, args=([place], tracking_uri())) for place in folders]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for place in folders:
        assert_whole(place)
