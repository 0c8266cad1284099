"""submitit on the development cluster: what the launcher relies on, seen on a real slurmctld.

The functions that run in jobs are defined inside other functions, so that they are sent by value: a job need not find
the tests.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import submitit

from dev.slurm.cluster import Cluster
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def executor(folder: Path, **parameters: Any) -> submitit.SlurmExecutor:
    """An executor for one CPU of one node, with Slurm's own names for its parameters."""
    made = submitit.SlurmExecutor(folder, max_num_timeout=3)
    made.update_parameters(**{"time": 5, "mem": "100MB", **parameters})
    return made


def restartable(starts: Path) -> Any:
    """A job whose first life lasts until it is ended; a later one returns at once what its starts have noted.

    Each start notes Slurm's count of restarts and whether submitit has restored a checkpoint.
    """

    class Restartable(submitit.helpers.Checkpointable):
        def __init__(self) -> None:
            self.begun = False

        def __call__(self) -> list[str]:
            restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
            with starts.open("a") as file:
                file.write(f"{restarts} {'restored' if self.begun else 'new'}\n")
            self.begun = True
            while restarts == "0":
                time.sleep(0.1)
            return starts.read_text().splitlines()

    return Restartable()


def test_a_job_returns_its_result(slurm: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path, gpus_per_node=2).submit(
        lambda x: (x + 1, os.environ["CUDA_VISIBLE_DEVICES"]), 41
    )
    assert job.result() == (42, "0,1")


def test_a_job_fails_with_its_traceback(slurm: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path).submit(lambda: 1 / 0)
    with pytest.raises(submitit.core.utils.FailedJobError, match="ZeroDivisionError"):
        job.result()


def test_an_array_is_throttled(slurm: Cluster, tmp_path: Path) -> None:
    def work() -> tuple[float, float]:
        began = time.time()
        time.sleep(3)  # more than one starts later than the next
        return began, time.time()

    array = executor(tmp_path, array_parallelism=2)
    with array.batch():
        jobs = [array.submit(work) for _ in range(8)]
    main = jobs[0].job_id.split("_")[0]
    assert [job.job_id for job in jobs] == [f"{main}_{index}" for index in range(8)]
    spans = [job.result() for job in jobs]
    together = [sum(one <= began < end for one, end in spans) for began, _ in spans]
    assert max(together) == 2


def test_scontrol_requeue_starts_a_job_again(slurm: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path).submit(restartable(tmp_path / "starts"))
    until("it runs", (tmp_path / "starts").exists)
    slurm.call("scontrol", "requeue", job.job_id)
    # Nothing is checkpointed: from outside comes only SIGTERM, which submitit ignores.
    assert job.result() == ["0 new", "1 new"]


def preempted(folder: Path, partition: str) -> submitit.Job[list[str]]:
    """A job that has been pushed from its node by one of the partition `high`, which is through."""
    node = {"nodelist": "n1", "exclusive": True}
    low = executor(folder, partition=partition, time=60, **node).submit(restartable(folder / "starts"))
    until("it runs", (folder / "starts").exists)
    assert executor(folder, partition="high", **node).submit(lambda: "pushed").result() == "pushed"
    return low


def test_a_higher_partition_preempts_with_a_warning(slurm: Cluster, tmp_path: Path) -> None:
    assert preempted(tmp_path, "low_grace").result() == ["0 new", "1 restored"]


def test_a_higher_partition_preempts_without_a_warning(slurm: Cluster, tmp_path: Path) -> None:
    low = preempted(tmp_path, "low")
    # The signal comes together with Slurm's own requeueing, so submitit's attempt to requeue fails, and it leaves an
    # error as the result of a job that will run again.
    with pytest.raises(submitit.core.utils.FailedJobError, match="scontrol"):
        low.result()
    until("it runs again", lambda: len((tmp_path / "starts").read_text().splitlines()) == 2, 240)
    until("it has a result", lambda: low.exception() is None)
    assert low.result() == ["0 new", "1 restored"]


def test_the_time_limit_checkpoints_and_requeues(slurm: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path, time=2, signal_delay_s=60).submit(restartable(tmp_path / "starts"))
    until("it is through", job.done, 600)
    assert job.result() == ["0 new", "1 restored"]
