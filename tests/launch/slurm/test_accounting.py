"""What Slurm's accounts add: why a job is gone that `squeue` has forgotten. Without them nothing else is different."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from cppo_lab.launch.slurm import queue
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.queue import LEFT, QueuedJob, in_queue, refresh
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.conftest import ROOT
from tests.launch.slurm.jobs import Long, Noted, begun, slurm_spec
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def nothing(owners: Iterable[int]) -> Sequence[QueuedJob]:
    """The queue, a long time later."""
    return []


def ends(
    cluster: Cluster, runs: Path, monkeypatch: pytest.MonkeyPatch, accounts: bool
) -> dict[str, str | None]:
    """Why two jobs are gone, one that has ended and one that was cancelled, when the queue has forgotten both."""
    jobs = [Noted(runs, "ends"), Long(runs, "cancelled", lives=9)]
    launch_slurm(jobs, slurm_spec(), lambda event: None)
    until("one has ended", lambda: set(in_queue(runs)) == {"cancelled"} and begun(runs)["cancelled"])
    with Ledger(runs) as ledger:
        numbers = ",".join(ledger.tasks_of(job.name)[0].job for job in jobs)
    cluster.call("scancel", in_queue(runs)["cancelled"].job)
    until("both are gone", lambda: not in_queue(runs))
    if accounts:  # which lag behind the queue

        def states() -> set[str]:
            said = cluster.call("sacct", "-n", "-X", "-P", "-o", "State", "-j", numbers)
            return {line.split()[0] for line in said.splitlines()}

        until("it is on record", lambda: states() == {"COMPLETED", "CANCELLED"})

    def refreshed() -> dict[str, str | None]:
        with Ledger(runs) as ledger:
            refresh(ledger)
            return {job.name: ledger.tasks_of(job.name)[0].ended for job in jobs}

    with monkeypatch.context() as patch:
        patch.setattr(queue, "jobs_of", nothing)
        return refreshed()


def test_with_accounting(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert ends(slurm, tmp_path, monkeypatch, accounts=True) == {
        "ends": "COMPLETED",
        "cancelled": "CANCELLED",
    }


def test_without_accounting(bare_slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends(bare_slurm, tmp_path, monkeypatch, accounts=False) == {"ends": LEFT, "cancelled": LEFT}
