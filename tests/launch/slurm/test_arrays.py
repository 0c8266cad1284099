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
from tests.launch.slurm.jobs import Noted, begun, ended, most_at_once, slurm_spec, takes
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_jobs_are_one_array_four_at_a_time_and_outlive_the_controller(
    bare_slurm: Cluster, tmp_path: Path
) -> None:
    jobs = [Noted(tmp_path, f"job{number}", "gate") for number in range(12)]
    seen: list[Event[Noted]] = []
    launch_slurm(jobs, slurm_spec(workers=4), seen.append)
    assert Counter(event.kind for event in seen) == {"submitted": 12}
    with Ledger(tmp_path) as ledger:
        tasks = ledger.newest_tasks()
    assert set(tasks) == {job.name for job in jobs}
    assert len({task.job_id for task in tasks.values()}) == 1

    until("four have begun", lambda: begun(tmp_path).total() == 4)
    names = bare_slurm.call("squeue", "-h", "-r", "-o", "%T %j").splitlines()
    assert sorted(names) == ["PENDING cppo"] * 8 + [f"RUNNING cppo/job{number}" for number in range(4)]
    reasons = bare_slurm.call("squeue", "-h", "-r", "-t", "PENDING", "-o", "%r").split()
    assert reasons == ["JobArrayTaskLimit"] * 8
    bare_slurm.end("slurmctld")  # while four run: a job that ends now would try for a minute to report it
    late = Noted(tmp_path, "late")
    with pytest.raises(UserError, match="controller"):
        launch_slurm([late], slurm_spec(), seen.append)
    with Ledger(tmp_path) as ledger:
        assert not ledger.tasks_of("late")
    bare_slurm.start_controller()
    launch_slurm([*jobs, late], slurm_spec(), seen.append)
    assert seen[-1].job is late and len(seen) == 13

    until("the late one has ended", lambda: ended(tmp_path, [late]))
    assert begun(tmp_path).total() == 4 + 1
    (tmp_path / "gate").touch()
    until("all have ended", lambda: ended(tmp_path, jobs))
    assert begun(tmp_path) == Counter([job.name for job in [*jobs, late]])
    assert most_at_once(tmp_path) <= 4 + 1
    until("the queue is empty", lambda: not in_queue(tmp_path))
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
