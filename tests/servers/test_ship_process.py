"""A long run is shipped by a process beside it, which may die, hang, or lose the process that trains."""

import contextlib
import signal
import sys
from pathlib import Path

import psutil
import pytest

from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.sent import unsent
from cppo_lab.tracking.ship_process import ShipProcess
from dev.servers.faulty_proxy import Fault, FaultyProxy
from dev.servers.mlflow_server import MlflowServer
from tests.servers.records import assert_whole
from tests.servers.test_faults import LATER, Make, assert_never_waited, copy_of, in_mid_run, spec, trainer
from tests.servers.trainer import Trainer
from tests.waiting import until

__all__ = ["spec", "trainer"]  # fixtures


def process_of(trainer: Trainer) -> psutil.Process:
    """The one that ships for a trainer."""
    assert trainer.process is not None
    parent = psutil.Process(trainer.process.pid)
    return until("a process ships", lambda: _shipping(parent))


def _shipping(parent: psutil.Process) -> psutil.Process | None:
    for child in parent.children():
        with contextlib.suppress(psutil.Error):  # `git` comes and goes
            if any("ship_process" in word for word in child.cmdline()):
                return child
    return None


def wait_for_end(process: psutil.Process) -> None:
    until(f"process {process.pid} ends", lambda: not process.is_running() or process.status() == "zombie")


def test_it_ends_with_the_process_that_trains_and_may_die_before(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    going = in_mid_run(trainer(uri, aside_after=0.0), uri)
    process = process_of(going)
    assert not [word for word in process.cmdline() if "sqlite" in word]
    going.kill()
    wait_for_end(process)
    going.start()
    process = process_of(going)
    process.kill()
    going.reach(LATER)
    assert going.finish() == 0
    assert_whole(uri, spec, workspace / "a")
    assert_never_waited(going)
    assert "tracking store" not in going.log()


def test_it_ends_with_a_run_that_ends(
    sqlite_tables: Path, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    going = in_mid_run(trainer(uri, aside_after=0.0), uri)
    process = process_of(going)
    assert going.finish() == 0
    wait_for_end(process)
    assert_whole(uri, spec, workspace / "a")


def test_its_store_hangs(
    proxy: FaultyProxy, server: MlflowServer, trainer: Make, spec: RunSpec, workspace: Path
) -> None:
    """A signal does not wait for it: the run is over while the request still hangs."""
    # In its last two seconds it ends the process, which would wait as long as tests do.
    going = in_mid_run(trainer(proxy.uri, aside_after=0.0, hurry=2.0), server.uri)
    process = process_of(going)
    hang = Fault(hold=True)
    proxy.answer(hang)
    going.reach(LATER)
    until("a request hangs", lambda: proxy.faults[hang])
    going.signal(signal.SIGTERM)
    going.end()
    assert "`cppo sync` uploads it" in going.log()
    wait_for_end(process)
    proxy.answer(None)
    assert trainer(proxy.uri).start().finish() == 0
    assert_whole(server.uri, spec, workspace / "a")
    assert_never_waited(going)


# What a library prints while it ships.
PRINTS = """
from cppo_lab.tracking import ship_process
ship = ship_process.ship
ship_process.ship = lambda *arguments: print("View run", flush=True) or ship(*arguments)
ship_process.main()
"""


def test_what_libraries_print_is_no_answer(
    sqlite_tables: Path,
    spec: RunSpec,
    workspace: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = copy_of(sqlite_tables, workspace)
    monkeypatch.setattr("cppo_lab.tracking.ship_process._COMMAND", [sys.executable, "-c", PRINTS])
    recorder = Recorder(spec, {}, workspace / "runs" / spec.run_id)
    recorder.log(0, {"train/reward": 0.5})
    recorder.finish(Outcome(DONE, 0))
    process = ShipProcess(recorder.folder, uri)
    try:
        assert (process.ship(), process.ship()) == ("", "")
    finally:
        process.close()
    assert not unsent(recorder.folder, uri)
    said = capfd.readouterr()
    assert (said.err.count("View run"), said.out) == (2, "")


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
