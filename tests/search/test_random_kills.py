"""Searches whose workers are killed at moments that nobody has chosen: no trial is lost or run twice.

`test_kill` does it at moments that have a name.
"""

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState

from cppo_lab.cores.base import CHECKPOINT
from cppo_lab.runs.folder import holder, is_held
from cppo_lab.runs.spool import read_rows
from tests.search.made_search import search_values, write_search
from tests.search.terminals import LOG, searching
from tests.search.whole_search import assert_search_is_whole, trials
from tests.servers.forked import Forked
from tests.waiting import until

INLINE = "launcher=inline"
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def is_free(folder: Path) -> bool:
    return not is_held(folder)


def stopped(process: int) -> bool:
    """Stop a process where it stands; False if it has ended."""
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        os.kill(process, signal.SIGSTOP)
        until(
            "it stands or has ended",
            lambda: psutil.Process(process).status() in (psutil.STATUS_STOPPED, *ENDED),
        )
        return psutil.Process(process).status() == psutil.STATUS_STOPPED
    return False


def trained_by(worker: Forked, at_least: int, runs: Path) -> tuple[int, int, Path]:
    """Once so many trials are done and `worker` trains: its trial, the run's process, which is stopped, and folder.

    It is not between its first step and its first checkpoint: killed there, it would begin anew, in a second record.
    """

    def found() -> tuple[int, int, Path] | None:
        assert worker.alive(), LOG.read_text()
        going = [trial for trial in trials() if trial.state is TrialState.RUNNING]
        if sum(trial.state.is_finished() for trial in trials()) >= at_least:
            for trial in going:
                if (
                    trial.user_attrs.get("worker", "").endswith(f" {worker.pid}")
                    and "run_ids" in trial.user_attrs
                ):
                    folder = runs / trial.user_attrs["run_ids"][0]
                    held = holder(folder) if folder.exists() else None
                    if held and stopped(held[1]):
                        if (folder / CHECKPOINT).exists() or not read_rows(folder):
                            return trial.number, held[1], folder
                        os.kill(held[1], signal.SIGCONT)
        return None

    return until("a run can be killed", found)


@pytest.mark.slow
def test_24_trials_with_workers_that_are_killed_at_any_moment(workspace: Path) -> None:
    with searching() as search:
        write_search(search_values(trials=24, pruner={"name": "median", "startup": 5, "warmup_steps": 2}))
        runs, killed = workspace / "runs", set()
        steady, victim = search.tune(INLINE), search.tune(INLINE)
        # First alone: the run that it was training lives on. Then with the run.
        for at_least, with_run, words in (
            (6, False, [INLINE]),
            (12, True, ["launcher=local", "launcher.workers=1"]),
        ):
            number, process, folder = trained_by(victim, at_least, runs)
            victim.kill()
            os.kill(process, signal.SIGKILL if with_run else signal.SIGCONT)
            if with_run:
                until("the run is nobody's", partial(is_free, folder))
            killed.add(number)
            victim = search.tune(*words)
        for worker in (steady, victim):
            worker.end()
        assert search.tune(INLINE).end() == 0, LOG.read_text()  # nothing is left
        assert killed <= {trial.number for trial in assert_search_is_whole(runs, 24)}
