"""Jobs whose machine Slurm takes away, in every way it has: they go on by themselves, as often as they may.

All at once: most of the time passes with waiting for Slurm.
"""

from pathlib import Path

import pytest

from cppo_lab.launch.slurm.queue import in_queue
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.launch.slurm.jobs import Long, begun, notes, slurm_spec, takes
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def launch(job: Long, node: str, **settings: object) -> str:
    """Submits it, for a node of its own; Slurm's number."""
    launch_slurm([job], slurm_spec(sbatch={"nodelist": node}, **settings), lambda event: None)
    return in_queue(job.runs)[job.name].job


def whats(job: Long) -> list[str]:
    """What a job has noted."""
    return [what for _, what in notes(job.runs, job.name)]


def test_jobs_go_on_as_often_as_they_may(bare_slurm: Cluster, tmp_path: Path) -> None:
    limited = Long(tmp_path, "limited", resources=takes(hours=10 / 60))
    low = Long(tmp_path, "low", resources=takes(partition="low", cpus=2))
    warned = Long(tmp_path, "warned", resources=takes(partition="low_grace", cpus=2))
    pushed = Long(tmp_path, "pushed", lives=9)
    ended = Long(tmp_path, "ended", lives=9)
    near = launch(limited, "n1", grace_seconds=300)
    launch(low, "n2")
    launch(warned, "n3")
    number = launch(pushed, "n4", requeues=1)
    last = launch(ended, "n4", requeues=0)
    until("all have begun", lambda: len(begun(tmp_path)) == 5)

    # Five minutes are left, so the warning comes when Slurm looks at limits next, within half a minute.
    bare_slurm.call("scontrol", "update", f"JobId={near}", "TimeLimit=5")
    for node in ("n2", "n3"):
        bare_slurm.call("sbatch", "-p", "high", "-w", node, "-c", "2", "-o", "/dev/null", "--wrap", "true")
    bare_slurm.call("scontrol", "requeue", number)
    bare_slurm.call("scancel", "--signal=USR2", last)
    until("it has been warned", lambda: "interrupted 12" in whats(limited))
    longer = ("scontrol", "update", f"JobId={near}", "TimeLimit=60")
    until("its second life has time", lambda: bare_slurm.run(*longer).returncode == 0)
    until("it has begun again", lambda: begun(tmp_path)["pushed"] == 2)
    bare_slurm.call("scontrol", "requeue", number)

    until("all are through", lambda: not in_queue(tmp_path))
    # The node's shell may hear SIGTERM or the warning first.
    assert whats(limited) == ["begin", "interrupted 12", "begin", "end"]
    assert whats(warned) == ["begin", "interrupted 12", "begin", "end"]
    assert whats(low) in (["begin", f"interrupted {first}", "begin", "end"] for first in (12, 15))
    why = "it was requeued {0} times, the most allowed (launcher.requeues={0}): launch again to resume"
    again = ["begin", "interrupted 15"]
    assert whats(pushed) == [*again, *again, "gave-up " + why.format(1)]
    assert whats(ended) == ["begin", "interrupted 12", "gave-up " + why.format(0)]


def test_a_job_whose_node_dies_goes_on_elsewhere(bare_slurm: Cluster, tmp_path: Path) -> None:
    job = Long(tmp_path, "job", lives=1)
    launch_slurm([job], slurm_spec(), lambda event: None)
    until("it has begun", lambda: begun(tmp_path)["job"] == 1)
    node = bare_slurm.call("squeue", "-h", "-o", "%N").strip()
    bare_slurm.fail_node(node)
    try:
        until("it has ended", lambda: "end" in whats(job))
    finally:
        bare_slurm.resume_node(node)
    assert whats(job) == ["begin", "begin", "end"]


def test_a_cancelled_job_stays_away(bare_slurm: Cluster, tmp_path: Path) -> None:
    running, waiting = Long(tmp_path, "running", lives=9), Long(tmp_path, "waiting", lives=9)
    launch_slurm([running, waiting], slurm_spec(workers=1), lambda event: None)
    until("one has begun", lambda: bool(begun(tmp_path)))
    bare_slurm.call("scancel", *(job.job for job in in_queue(tmp_path).values()))
    until("they are gone", lambda: not in_queue(tmp_path))
    assert whats(running) == ["begin", "interrupted 15"]
    assert whats(waiting) == []
