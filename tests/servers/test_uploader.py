"""The process that uploads runs while they train, which may die, hang, or lose the process that trains."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cppo_lab.runs.folder import held
from cppo_lab.tracking import uploader
from cppo_lab.tracking.address import VARIABLE
from cppo_lab.tracking.sent import unsent
from dev.servers.faulty_proxy import Fault, FaultyProxy
from tests.conftest import FINISHED
from tests.recorded import mlflow_run
from tests.servers.test_faults import assert_whole
from tests.tracking.conftest import Attempt, attempt, folder, log
from tests.tracking.test_upload import steps
from tests.waiting import until

__all__ = ["attempt", "folder"]  # fixtures


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

    with held(folder):
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
uploader._COMMAND[-1] = (
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
    assert launcher.stdout is not None
    return launcher, psutil.Process(int(launcher.stdout.readline()))


def test_it_outlives_a_killed_launcher_while_a_run_goes_on(
    folder: Path, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{folder.parent.parent}/mlflow.db"
    with held(folder):
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
