"""A search whose workers are Slurm jobs: the command follows them, whoever ends, and their trials are the search's."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState

from cppo_lab.launch.slurm.queue import Ledger, in_queue
from cppo_lab.search import worker
from cppo_lab.search.study import find_trials, storage_url
from dev.slurm.cluster import Cluster
from tests.conftest import Command
from tests.search.made_search import made_tuning, search_values

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_a_search_is_followed_until_its_workers_have_ended(
    bare_slurm: Cluster,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    cppo: Command,
) -> None:
    tuning = made_tuning(search_values(trials=2))
    searches = workspace / "runs" / "searches"
    command = "tune ./tune.yaml launcher=slurm launcher.workers=2 +launcher.sbatch.hold=true"
    wait = worker.time.sleep

    def when_it_follows(do: Callable[[], None]) -> None:
        """Once the command has said what the workers do, and is about to wait: `do` it. Later it looks often."""
        first = [do]

        def sleep(seconds: float) -> None:
            if first:
                first.pop()()
            wait(min(seconds, 0.2))

        monkeypatch.setattr(worker, "time", SimpleNamespace(sleep=sleep))

    def ctrl_c() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    when_it_follows(ctrl_c)
    said = cppo(command, code=128 + signal.SIGINT)
    queued = in_queue(searches)
    assert len(queued) == 2
    assert "Slurm: " in said.err  # it follows them
    assert "the workers keep running under Slurm; the same command watches them again" in said.err

    def release() -> None:
        jobs = in_queue(searches)
        assert jobs.keys() == queued.keys()
        bare_slurm.call("scontrol", "release", ",".join(job.job for job in jobs.values()))

    when_it_follows(release)
    said = cppo(command)
    assert "Slurm: " in said.err
    assert [trial.state for trial in find_trials(tuning, storage_url())] == [TrialState.COMPLETE] * 2
    assert "best trial" in said.out
    with Ledger(searches) as ledger:
        assert len(ledger.tasks_of("tune-mini_base-worker-0")) == 1
