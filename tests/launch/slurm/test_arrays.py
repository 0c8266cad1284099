"""Many jobs as one array, on a real slurmctld: throttled, and indifferent to the controller's restart."""

from collections import Counter
from pathlib import Path

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch.base import Event
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.queue import in_queue, refresh
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.jobs import Noted, begun, ended, most_at_once, slurm_spec
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_jobs_are_one_array_four_at_a_time_and_outlive_the_controller(
    bare_slurm: Cluster, tmp_path: Path
) -> None:
    jobs = [Noted(tmp_path, f"job{number}", "gate") for number in range(12)]
    events: list[Event[Noted]] = []
    launch_slurm(jobs, slurm_spec(workers=4), events.append)
    assert [event.kind for event in events] == ["submitted"] * 12
    until("four have begun", lambda: begun(tmp_path).total() == 4)
    names = bare_slurm.call("squeue", "-h", "-r", "-o", "%T %j").splitlines()
    assert sorted(names) == ["PENDING cppo"] * 8 + [f"RUNNING cppo/job{number}" for number in range(4)]
    assert {job.reason for job in in_queue(tmp_path).values() if job.state == "PENDING"} == {
        "JobArrayTaskLimit"
    }
    bare_slurm.end("slurmctld")  # while four run: a job that ends now would try for a minute to report it
    late = Noted(tmp_path, "late")
    with pytest.raises(UserError, match="controller"):
        launch_slurm([late], slurm_spec(), events.append)
    bare_slurm.start_controller()
    launch_slurm([*jobs, late], slurm_spec(), events.append)
    assert [event.job for event in events[12:]] == [late]
    until("the late one has ended", lambda: ended(tmp_path, [late]))
    assert begun(tmp_path).total() == 4 + 1
    (tmp_path / "gate").touch()
    until("the queue is empty", lambda: not in_queue(tmp_path))
    assert begun(tmp_path) == Counter([job.name for job in [*jobs, late]])
    assert most_at_once(tmp_path) <= 4 + 1
    with Ledger(tmp_path) as ledger:
        assert (refresh(ledger), ledger.open_tasks()) == ({}, [])
