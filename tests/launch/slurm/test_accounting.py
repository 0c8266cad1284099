"""What Slurm's accounts add: why a job is gone that `squeue` has forgotten. Without them nothing else is different."""

from pathlib import Path

import pytest

from cppo_lab.launch.slurm import queue
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.queue import LEFT, ended_as, in_queue, refresh
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.conftest import ROOT
from tests.launch.slurm.jobs import Long, Noted, begun, nothing_queued, slurm_spec
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.mark.parametrize("accounts", [True, False])
def test_why_a_job_is_gone_that_the_queue_has_forgotten(
    accounts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """One has ended, and one was cancelled."""
    cluster: Cluster = request.getfixturevalue("slurm" if accounts else "bare_slurm")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    expected = {"ends": "COMPLETED", "cancelled": "CANCELLED"}
    launch_slurm([Noted(tmp_path, "ends"), Long(tmp_path, "cancelled")], slurm_spec(), lambda event: None)
    until("one has ended", lambda: set(in_queue(tmp_path)) == {"cancelled"} and begun(tmp_path)["cancelled"])
    cluster.call("scancel", in_queue(tmp_path)["cancelled"].job)
    until("both are gone", lambda: nothing_queued(tmp_path))
    with Ledger(tmp_path) as ledger:
        tasks = [ledger.newest_tasks()[name].job for name in expected]
        if accounts:  # which lag behind the queue
            until(
                "it is on record", lambda: ended_as(tasks) == dict(zip(tasks, expected.values(), strict=True))
            )
        monkeypatch.setattr(queue, "jobs_of", lambda owners: [])  # a long time later
        refresh(ledger)
        ended = {name: task.ended for name, task in ledger.newest_tasks().items()}
    assert ended == (expected if accounts else dict.fromkeys(expected, LEFT))
