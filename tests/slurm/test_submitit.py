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
from tests.slurm.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def executor(folder: Path, **parameters: Any) -> submitit.SlurmExecutor:
    """An executor for one CPU of one node, with Slurm's own names for its parameters."""
    made = submitit.SlurmExecutor(folder, max_num_timeout=3)
    made.update_parameters(**{"time": 5, "mem": "100MB", **parameters})
    return made


def counting(starts: Path, seconds: float) -> Any:
    """A job that notes each of its starts in a file, works so long, and can be checkpointed."""

    class Counting(submitit.helpers.Checkpointable):
        def __init__(self) -> None:
            self.done = 0.0

        def __call__(self) -> list[str]:
            with starts.open("a") as file:
                file.write(f"{os.environ.get('SLURM_RESTART_COUNT', '0')} {self.done > 0}\n")
            while self.done < seconds:
                time.sleep(0.2)
                self.done += 0.2
            return starts.read_text().splitlines()

    return Counting()


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
        time.sleep(1)
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
    job = executor(tmp_path).submit(counting(tmp_path / "starts", 15))
    until("it runs", (tmp_path / "starts").exists)
    slurm.call("scontrol", "requeue", job.job_id)
    # Nothing was checkpointed: from outside there is only SIGTERM, which submitit ignores.
    assert job.result() == ["0 False", "1 False"]


@pytest.mark.parametrize("partition", ["low", "low_grace"])
def test_a_higher_partition_preempts_and_requeues(slurm: Cluster, tmp_path: Path, partition: str) -> None:
    node: dict[str, Any] = {"nodelist": "n1", "exclusive": True}
    low = executor(tmp_path, partition=partition, time=60, **node).submit(counting(tmp_path / "starts", 8))
    until("it runs", (tmp_path / "starts").exists)
    time.sleep(1)
    high = executor(tmp_path, partition="high", **node).submit(time.time)
    # With a grace time Slurm sends the signal that the job asked for, and submitit checkpoints.
    warned = partition == "low_grace"
    assert high.result() > 0
    assert low.result() == ["0 False", f"1 {warned}"]


def test_the_time_limit_checkpoints_and_requeues(slurm: Cluster, tmp_path: Path) -> None:
    limited = executor(tmp_path, time=1, signal_delay_s=55)
    job = limited.submit(counting(tmp_path / "starts", 40))
    until("it is through", job.done, 150)
    assert job.result() == ["0 False", "1 True"]
