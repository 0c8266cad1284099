"""Searches whose workers are killed and interrupted at moments that nobody has chosen: no trial is lost or run twice.

`test_kill` does it at moments that have a name.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from cppo_lab.cores.base import CHECKPOINT
from cppo_lab.runs.folder import is_held
from cppo_lab.runs.spool import read_rows
from tests.search.made_search import search_values, write_search
from tests.search.whole_search import assert_search_is_whole, trials
from tests.waiting import CEILING_SECONDS, until

TRIALS = 24
# `cppo` with workers that count as dead after five seconds of silence.
QUICK = """import sys
from cppo_lab.cli import main
from cppo_lab.search import study
study.BEAT_SECONDS, study.SILENT_SECONDS = 1, 5
sys.exit(main(sys.argv[1:]))"""


class Terminals:
    """Where people type `cppo tune`; what is still going when the test ends is ended."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def tune(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A worker in a process group of its own."""
        with Path("terminals.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", QUICK, "tune", "./tune.yaml", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell that starts the tests in the background has them ignore SIGINT; children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        self.started.append(process)
        return process

    def close(self) -> None:
        """End everything: in order, so that jobs of the local launcher go too, then by force."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=CEILING_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def terminals(workspace: Path) -> Iterator[Terminals]:
    opened = Terminals()
    yield opened
    opened.close()


def finished() -> int:
    return sum(trial.state.is_finished() for trial in trials())


def wait_until_training(worker: "subprocess.Popen[bytes]", at_least: int, runs: Path) -> tuple[int, Path]:
    """Wait until so many trials are done and a child of `worker` is training; its trial and the run's folder.

    It is not between its first step and its first checkpoint: killed there, it would begin anew, in a second record.
    """

    def found() -> tuple[int, Path] | None:
        assert worker.poll() is None, Path("terminals.log").read_text()
        if finished() < at_least:
            return None
        for trial in trials():
            for run_id in trial.user_attrs.get("run_ids", []):
                status = runs / run_id / "status.json"
                if trial.state is TrialState.RUNNING and is_held(runs / run_id) and status.exists():
                    with contextlib.suppress(KeyError, ProcessLookupError):  # it begins or ends
                        pid = json.loads(status.read_text())["pid"]
                        goes_on = (runs / run_id / CHECKPOINT).exists() or not read_rows(runs / run_id)
                        if goes_on and os.getpgid(pid) == os.getpgid(worker.pid):
                            return trial.number, runs / run_id
        return None

    return until("a run can be killed", found)


@pytest.mark.slow
def test_24_trials_with_two_workers_that_are_killed(workspace: Path, terminals: Terminals) -> None:
    write_search(search_values(trials=TRIALS, pruner={"name": "median", "startup": 5, "warmup_steps": 2}))
    runs = workspace / "runs"
    steady = terminals.tune("launcher=inline")
    victim = terminals.tune("launcher=inline")
    # Killed alone: the run that it was training lives on, and whoever takes the trial up waits for it.
    orphaned, _ = wait_until_training(victim, 6, runs)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    victim = terminals.tune("launcher=inline")
    # Killed with the run: that goes on from its checkpoint, or from the start if it had none yet.
    broken, folder = wait_until_training(victim, 12, runs)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    until("the run is nobody's", lambda: not is_held(folder))
    victim = terminals.tune("launcher=local", "launcher.workers=1")
    for worker in (steady, victim):
        worker.wait(timeout=CEILING_SECONDS)
    assert terminals.tune().wait(timeout=CEILING_SECONDS) == 0, Path(
        "terminals.log"
    ).read_text()  # nothing is left

    found = assert_search_is_whole(runs, TRIALS)
    assert {orphaned, broken} <= {trial.number for trial in found}
