"""The process that uploads runs while they train, which may die, hang, or lose the process that trains."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from cppo_lab.runs.folder import held
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.sent import unsent
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.mlflow_server import MlflowServer
from tests.servers.records import assert_whole, runs_of
from tests.servers.test_faults import LATER, Make, assert_never_waited, copy_of, in_mid_run, spec, trainer
from tests.servers.trainer import Trainer
from tests.waiting import until

__all__ = ["spec", "trainer"]  # fixtures


def process_of(trainer: Trainer) -> psutil.Process:
    """The one that uploads for a trainer."""
    assert trainer.process is not None
    return until("a process uploads", lambda: _uploader(psutil.Process(trainer.process.pid)))


def _uploader(parent: psutil.Process) -> psutil.Process | None:
    for child in parent.children():
        with contextlib.suppress(psutil.Error):  # `git` comes and goes
            if any("tracking.uploader" in word for word in child.cmdline()):
                return child
    return None


def wait_for_end(process: psutil.Process) -> None:
    until(f"process {process.pid} ends", lambda: not process.is_running() or process.status() == "zombie")


def test_it_ends_with_the_process_that_trains_and_may_die_before(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    running = in_mid_run(trainer(uri, real_process=True), uri)
    process = process_of(running)
    assert not [word for word in process.cmdline() if "sqlite" in word]
    running.kill()
    wait_for_end(process)
    running.start()
    process = process_of(running)
    process.kill()
    running.reach(LATER)
    assert running.finish() == 0
    wait_for_end(process)
    assert_whole(uri, spec, workspace / "a")
    assert_never_waited(running)
    assert "tracking store" not in running.log()


def test_its_store_hangs(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """A signal does not wait for it: the run is over while the request still hangs."""
    running = in_mid_run(trainer(proxy.uri, real_process=True, hurry=2.0), server.uri)
    process = process_of(running)
    hang = Fault(hold=True)
    proxy.answer(hang)
    running.reach(LATER)
    until("a request hangs", lambda: proxy.faults[hang])
    running.signal(signal.SIGTERM)
    running.end()
    assert "`cppo sync` uploads it" in running.log()
    wait_for_end(process)
    proxy.answer(None)
    assert trainer(proxy.uri).start().finish() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(running)


# A launcher that is killed; what a library prints while the uploading process works is not its output.
LAUNCHER = """
import sys, time
from pathlib import Path
from cppo_lab.tracking import uploader
uploader.FIRST_SECONDS = 0.0
uploader._COMMAND[-1] = (
    "import mlflow; from cppo_lab.tracking import upload, uploader; uploader.EVERY_SECONDS = 0.1\\n"
    "ship = upload.ship\\n"
    "upload.ship = lambda *arguments: print('View run', flush=True) or ship(*arguments)\\n"
    "uploader.main()"
)
with uploader.Uploader([Path(sys.argv[1])], sys.argv[2]) as beside:
    print(beside._process.pid, flush=True)
    time.sleep(1000)
"""


def test_it_outlives_a_killed_launcher_while_a_run_goes_on(
    sqlite_tables: Path, spec: RunSpec, workspace: Path
) -> None:
    uri, folder = copy_of(sqlite_tables, workspace), workspace / "runs" / spec.run_id
    with held(folder), (workspace / "err").open("w") as errors:
        recorder = Recorder(spec, {}, folder)
        recorder.log(0, {"train/reward": 0.5})
        launcher = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(folder), uri],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert launcher.stdout is not None
        process = psutil.Process(int(launcher.stdout.readline()))
        until("the first step is sent", lambda: not unsent(folder, uri))
        launcher.kill()
        launcher.wait()
        recorder.log(1, {"train/reward": 0.75})
        until("the second step is sent", lambda: not unsent(folder, uri))
        recorder.finish(Outcome(DONE, 1))
    wait_for_end(process)
    with launcher.stdout:
        assert launcher.stdout.read() == ""
    assert "View run" in (workspace / "err").read_text()
    assert not unsent(folder, uri)
    [run] = runs_of(uri, spec)
    assert (run.info.status, run.data.metrics["train/reward"]) == ("FINISHED", 0.75)


def test_it_ends_at_once_if_nothing_goes_on(workspace: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.replace("0.0", "1000.0"), "runs/a", "sqlite:///none.db"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    with launcher.stdout:
        process = psutil.Process(int(launcher.stdout.readline()))
        launcher.kill()
        launcher.wait()
        wait_for_end(process)
    assert not Path("none.db").exists()
