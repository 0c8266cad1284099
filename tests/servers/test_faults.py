"""Whatever a server or a file does, the store has what was recorded, once; also by the process that uploads runs while
they train, which may die, hang, or lose the process that trains. With kills: `make chaos-short`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mlflow.entities import ViewType

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import run_lock
from cppo_lab.runs.spool import unsent
from cppo_lab.tracking import uploader
from cppo_lab.tracking.address import VARIABLE, tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.upload import upload
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.mlflow_server import MlflowServer
from tests.conftest import FINISHED, user_error
from tests.recorded import mlflow_client, mlflow_run, sent
from tests.servers.forked import context
from tests.tracking.conftest import Attempt, attempt, folder, log
from tests.tracking.test_upload import steps
from tests.waiting import until

__all__ = ["attempt", "folder"]  # fixtures


def assert_whole(folder: Path) -> None:
    """The store has the run once, with every point once, and nothing of it is RUNNING."""
    run = mlflow_run(folder)
    assert (run.info.status, run.data.tags[schema.TAG_FILES]) == ("FINISHED", "complete")
    assert steps(folder) == [*range(5)]
    condition = f"tags.`{schema.TAG_RECORD}` = '{run.data.tags[schema.TAG_RECORD]}'"
    of_record = mlflow_client().search_runs([run.info.experiment_id], condition, ViewType.ALL)
    assert "RUNNING" not in [run.info.status for run in of_record]


@pytest.mark.parametrize(
    "fault, begun",
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
        with user_error("`cppo sync` uploads the rest"):
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
    folders = [folder.parent.with_name(name) / folder.name for name in "abcd"]
    for place in folders:
        place.mkdir(parents=True)
        attempt(*range(5), place=place).finish(FINISHED)
    with user_error("cannot be used"):
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


def wait_for_end(process: psutil.Process) -> None:
    until(f"process {process.pid} ends", lambda: not process.is_running() or process.status() == "zombie")


def test_it_may_die_and_is_not_waited_for_when_its_store_hangs(
    proxy: FaultyProxy,
    folder: Path,
    attempt: Attempt,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Once it has sent something: of two launches, one is interrupted. Its arguments do not name the store."""
    for name, value in (("FIRST_SECONDS", 0.0), ("HURRY_SECONDS", 1.0)):
        monkeypatch.setattr(uploader, name, value)
    monkeypatch.setenv(VARIABLE, proxy.uri)
    recorder, hang = attempt(0, 1), Fault(hold=True)

    def launch() -> psutil.Process:
        process = psutil.Process(beside.pid)
        until("the steps are sent", lambda: not unsent(folder, proxy.uri))
        assert not [word for word in process.cmdline() if proxy.uri in word]
        return process

    with run_lock(folder):
        with pytest.raises(KeyboardInterrupt), uploader.uploading([folder], proxy.uri) as beside:
            process = launch()
            proxy.answer(hang)
            log(recorder, 2, 3)
            until("a request hangs", lambda: proxy.faults[hang])
            raise KeyboardInterrupt
        wait_for_end(process)
        assert "`cppo sync` uploads it" in capfd.readouterr().err
        proxy.answer(None)
        with uploader.uploading([folder], proxy.uri) as beside:
            launch().kill()
            log(recorder, 4)
            recorder.finish(FINISHED)
    assert_whole(folder)
    assert "tracking store" not in capfd.readouterr().err


# A launcher that is killed; what a library prints while the uploading process works is not its output.
LAUNCHER = """
import sys, time
from pathlib import Path
from cppo_lab.tracking import uploader
uploader.FIRST_SECONDS = float(sys.argv[3])
uploader.CODE = (
    "import mlflow; from cppo_lab.tracking import upload, uploader; uploader.EVERY_SECONDS = 0.1\\n"
    "ship = upload.ship\\n"
    "upload.ship = lambda *arguments: print('View run', flush=True) or ship(*arguments)\\n"
    "uploader.main()"
)
with uploader.uploading([Path(sys.argv[1])], sys.argv[2]) as beside:
    print(beside.pid, flush=True)
    time.sleep(1000)
"""


def launched(*words: str, first: float) -> tuple["subprocess.Popen[str]", psutil.Process]:
    """The launcher, whose standard errors are in the file `err`, and its uploader, which begins after some seconds."""
    command = [sys.executable, "-c", LAUNCHER, *words, str(first)]
    with Path("err").open("w") as errors:
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    return launcher, psutil.Process(int(launcher.stdout.readline()))


def test_it_outlives_a_killed_launcher_while_a_run_goes_on(folder: Path, attempt: Attempt) -> None:
    uri = f"sqlite:///{folder.parent.parent}/mlflow.db"
    with run_lock(folder):
        mlflow_client()  # makes the tables, which takes other processes seconds
        recorder = attempt(0)
        launcher, process = launched(str(folder), uri, first=0.0)
        until("the first step is sent", lambda: not unsent(folder, uri))
        launcher.kill()
        launcher.wait()
        log(recorder, 1)
        until("the second step is sent", lambda: not unsent(folder, uri))
        recorder.finish(FINISHED)
    wait_for_end(process)
    assert launcher.communicate()[0] == "" and "View run" in Path("err").read_text()
    assert not unsent(folder, uri)
    assert (mlflow_run(folder).info.status, steps(folder)) == ("FINISHED", [0, 1])


def test_it_ends_at_once_if_nothing_goes_on(workspace: Path) -> None:
    launcher, process = launched("runs/a", "sqlite:///none.db", first=1000.0)
    launcher.kill()
    launcher.communicate()
    wait_for_end(process)
    assert not Path("none.db").exists()
