"""A search whose workers are Slurm jobs: the command follows them, whoever ends, and their trials are the search's."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from optuna.trial import TrialState

from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.reconcile import in_queue
from cppo_lab.sweep.search.storage import storage_url
from cppo_lab.sweep.search.study import find_trials
from dev.slurm.cluster import Cluster
from tests.sweep.made_search import made_tuning, search_values
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
PATIENCE = 600  # s


def test_a_search_is_followed_until_its_workers_have_ended(bare_slurm: Cluster, workspace: Path) -> None:
    tuning = made_tuning(search_values(trials=3))
    searches = workspace / "runs" / "searches"
    command = [sys.executable, "-m", "cppo_lab.cli", "tune", "./tune.yaml"]
    command += ["launcher=slurm", "launcher.workers=2", "+launcher.sbatch.hold=true"]

    def tune() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    first = tune()
    until("two workers are submitted", lambda: len(in_queue(searches)) == 2, PATIENCE)
    assert first.stdout is not None
    assert any("Slurm: " in line for line in first.stdout)  # it follows them
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=PATIENCE)
    assert "the workers stay with Slurm; the same command watches them again" in said
    assert len(in_queue(searches)) == 2

    second = tune()
    assert second.stdout is not None
    assert any("Slurm: " in line for line in second.stdout)
    bare_slurm.call("scontrol", "release", ",".join(job.job for job in in_queue(searches).values()))
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert [trial.state for trial in find_trials(tuning, storage_url())] == [TrialState.COMPLETE] * 3
    assert "best trial" in said
    with Ledger(searches) as ledger:
        assert len(ledger.tasks_of("tune-mini_base-worker-0")) == 1
