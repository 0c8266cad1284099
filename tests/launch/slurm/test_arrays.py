"""Many jobs as one array, on a real slurmctld: throttled, and indifferent to the controller's restart."""

from collections import Counter
from pathlib import Path

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch.base import Event
from cppo_lab.launch.slurm.ledger import Ledger
from cppo_lab.launch.slurm.reconcile import in_queue, refresh
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.jobs import Noted, begun, ended, slurm_spec, takes, times
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_fifty_jobs_are_one_array_four_at_a_time_and_outlive_the_controller(
    bare_slurm: Cluster, tmp_path: Path
) -> None:
    jobs = [Noted(tmp_path, f"job{number}", 0.2) for number in range(50)]
    seen: list[Event[Noted]] = []
    launch_slurm(jobs, slurm_spec(workers=4), seen.append)
    assert Counter(event.kind for event in seen) == {"submitted": 50}
    with Ledger(tmp_path) as ledger:
        tasks = ledger.newest_tasks()
    assert set(tasks) == {job.name for job in jobs}
    assert len({task.job_id for task in tasks.values()}) == 1

    until("some have begun", lambda: sum(begun(tmp_path).values()) >= 8, 600)
    bare_slurm.end("slurmctld")
    late = Noted(tmp_path, "late")
    with pytest.raises(UserError, match="controller"):
        launch_slurm([late], slurm_spec(), seen.append)
    with Ledger(tmp_path) as ledger:
        assert not ledger.tasks_of("late")
    bare_slurm.start_controller()
    launch_slurm([*jobs[30:], late], slurm_spec(), seen.append)  # far from being begun
    assert seen[-1].job is late and len(seen) == 51

    until("all have ended", lambda: ended(tmp_path, [*jobs, late]), 600)
    assert begun(tmp_path) == Counter([job.name for job in [*jobs, late]])
    starts, ends = times(tmp_path, "begin"), times(tmp_path, "end")
    del starts["late"]
    assert max(sum(starts[o] <= at < ends[o] for o in starts) for at in starts.values()) <= 4
    until("the queue is empty", lambda: not in_queue(tmp_path), 600)
    with Ledger(tmp_path) as ledger:
        assert refresh(ledger) == {}
        assert ledger.open_tasks() == []


def test_unequal_jobs_are_arrays_of_their_own(bare_slurm: Cluster, tmp_path: Path) -> None:
    small = [Noted(tmp_path, f"small{number}", resources=takes(cpus=1)) for number in range(2)]
    large = [Noted(tmp_path, f"large{number}", resources=takes(cpus=2, memory_gb=0.5)) for number in range(2)]
    launch_slurm(
        [small[0], large[0], small[1], large[1]], slurm_spec(sbatch={"hold": True}), lambda event: None
    )
    shown = bare_slurm.call("squeue", "-h", "-r", "-o", "%F %K %c %m").splitlines()
    assert Counter(line.split()[2] + " " + line.split()[3] for line in shown) == {"1 100M": 2, "2 512M": 2}
    assert len({line.split()[0] for line in shown}) == 2
    bare_slurm.call("scancel", "--user=root")
