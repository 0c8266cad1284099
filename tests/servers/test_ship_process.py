"""A long run is shipped by a process beside it, which may die, hang, or lose the process that trains."""

import contextlib
import signal
import time
from pathlib import Path

import psutil
import pytest

from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.recorder import Recorder
from cppo_lab.tracking.ship_process import ShipProcess
from cppo_lab.tracking.shipped import unsent
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.mlflow_server import MlflowServer
from tests.servers.records import assert_whole
from tests.servers.test_faults import SLOW, Make, assert_never_waited, copy_of, in_mid_run, spec, trainer
from tests.servers.trainer import Trainer

__all__ = ["spec", "trainer"]  # fixtures


def process_of(trainer: Trainer) -> psutil.Process:
    """The one that ships for a trainer."""
    assert trainer.process is not None
    while trainer.alive():
        for child in psutil.Process(trainer.process.pid).children():
            with contextlib.suppress(psutil.Error):  # `git` comes and goes
                if any("ship_process" in word for word in child.cmdline()):
                    return child
        time.sleep(0.05)
    raise AssertionError(trainer.log())


def ended(process: psutil.Process, seconds: float = 20.0) -> bool:
    try:
        process.wait(seconds)
    except psutil.TimeoutExpired:
        return False
    return True


def test_it_ships_and_may_die(sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path) -> None:
    uri = copy_of(sqlite_tables, workspace)
    going = in_mid_run(trainer(uri, step_seconds=3 * SLOW, aside_after=0.0), uri)
    process = process_of(going)
    assert not [word for word in process.cmdline() if "sqlite" in word]
    process.kill()
    assert going.end() == 0
    assert_whole(uri, spec, workspace / "a")
    assert_never_waited(going)
    assert "tracking store" not in going.log()


def test_it_ends_with_the_process_that_trains(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    going = in_mid_run(trainer(uri, step_seconds=3 * SLOW, aside_after=0.0), uri)
    process = process_of(going)
    going.kill()
    assert ended(process)
    going = trainer(uri, step_seconds=SLOW, aside_after=0.0).start()
    process = process_of(going)
    assert going.end() == 0
    assert ended(process, 1.0)
    assert_whole(uri, spec, workspace / "a")


def test_its_store_hangs(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """A signal does not wait for it."""
    patience = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
    making = {"step_seconds": 3 * SLOW, "aside_after": 0.0, "environment": patience}
    going = in_mid_run(trainer(proxy.uri, **making), server.uri)
    process = process_of(going)
    proxy.answer(Fault(delay=60.0))
    going.reach(going.step() + 30)
    start = time.monotonic()
    going.signal(signal.SIGTERM)
    going.end()
    assert time.monotonic() - start < 25
    assert "`cppo sync` sends it" in going.log()
    assert ended(process)
    proxy.answer(None)
    assert trainer(proxy.uri).start().end() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


def test_what_mlflow_prints_is_no_answer(
    server: MlflowServer,
    spec: RunSpec,
    workspace: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It prints where to look at a run that has ended."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # the process is killed, with what it has not written
    recorder = Recorder(spec, {}, workspace / "runs" / spec.run_id)
    recorder.log(0, {"train/reward": 0.5})
    recorder.finish(Outcome(DONE, 0))
    process = ShipProcess(recorder.folder, server.uri)
    try:
        assert (process.ship(), process.ship()) == ("", "")
    finally:
        process.close()
    assert not unsent(recorder.folder, server.uri)
    said = capfd.readouterr()
    assert ("View run" in said.err, said.out) == (True, "")


def test_it_says_what_is_wrong_with_the_store(workspace: Path) -> None:
    runs = workspace / "runs" / "0123456789ab"
    uri = "http://me:s3cret@127.0.0.1:1"
    process = ShipProcess(runs, uri)
    try:
        assert "http://me:***@127.0.0.1:1" in process.ship()
        assert "refused" in process.ship()
        process.kill()
        with pytest.raises(BrokenPipeError):
            process.ship()
    finally:
        process.close()
