"""submitit on the development cluster: what the launcher relies on, seen on a real slurmctld.

The functions that run in jobs are defined inside other functions, so that they are sent by value: a job need not find
the tests.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
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
    made.update_parameters(**{"time": 60, "mem": "100MB", **parameters})
    return made


def restartable(folder: Path) -> Any:
    """A job whose first life lasts until it is ended; a later one returns what its starts have noted, once it may.

    Each start notes Slurm's count of restarts and whether submitit has restored a checkpoint.
    """
    starts, go = folder / "starts", folder / "go"

    class Restartable(submitit.helpers.Checkpointable):
        def __init__(self) -> None:
            self.begun = False

        def __call__(self) -> list[str]:
            restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
            if restarts == "0":
                (folder / "pid").write_text(str(os.getpid()))
            with starts.open("a") as file:
                file.write(f"{restarts} {'restored' if self.begun else 'new'}\n")
            self.begun = True
            while restarts == "0" or not go.exists():
                time.sleep(0.1)  # noqa: TID251  a job, which waits for the test
            return starts.read_text().splitlines()

    return Restartable()


@dataclass(frozen=True)
class Restarted:
    """A job that Slurm has taken away, in its folder."""

    folder: Path
    job: submitit.Job[list[str]]

    def starts(self) -> list[str]:
        """What it has noted."""
        noted = self.folder / "starts"
        return noted.read_text().splitlines() if noted.exists() else []

    def result(self) -> list[str]:
        """What its second life returns."""
        until("it runs again", lambda: len(self.starts()) >= 2)
        (self.folder / "go").touch()
        # Not `done`, which asks Slurm's accounts about a job that they may take for ended.
        there = self.job.paths.result_pickle.exists
        until("it has a result", lambda: there() and self.job.exception() is None)
        return self.job.result()


@pytest.fixture(scope="module")
def taken_away(
    slurm_of_module: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Restarted]]:
    """Jobs whose node Slurm takes away in every way it has, all at once: most of the time passes with waiting."""
    slurm = slurm_of_module
    kinds: dict[str, dict[str, Any]] = {
        "limited": {"time": 10, "signal_delay_s": 300},
        "low": {"partition": "low", "exclusive": True},
        "low_grace": {"partition": "low_grace", "exclusive": True},
        "requeued": {},
    }
    jobs = {}
    for number, (kind, parameters) in enumerate(kinds.items(), 1):
        folder = tmp_path_factory.mktemp(kind)
        submitted = executor(folder, nodelist=f"n{number}", **parameters).submit(restartable(folder))
        jobs[kind] = Restarted(folder, submitted)
    until("all run", lambda: all(job.starts() for job in jobs.values()))
    # Five minutes are left, so the warning comes when Slurm looks at limits next, within half a minute.
    slurm.call("scontrol", "update", f"JobId={jobs['limited'].job.job_id}", "TimeLimit=5")
    slurm.call("sbatch", "-p", "high", "-w", "n2", "--exclusive", "-o", "/dev/null", "--wrap", "true")
    slurm.call("sbatch", "-p", "high", "-w", "n3", "--exclusive", "-o", "/dev/null", "--wrap", "true")
    slurm.call("scontrol", "requeue", jobs["requeued"].job.job_id)
    yield jobs


def test_a_job_returns_its_result(slurm_of_module: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path, gpus_per_node=2).submit(
        lambda x: (x + 1, os.environ["CUDA_VISIBLE_DEVICES"]), 41
    )
    until("it is through", job.paths.result_pickle.exists)
    assert job.result() == (42, "0,1")


def test_a_job_fails_with_its_traceback(slurm_of_module: Cluster, tmp_path: Path) -> None:
    job = executor(tmp_path).submit(lambda: 1 / 0)
    until("it is through", job.paths.result_pickle.exists)
    with pytest.raises(submitit.core.utils.FailedJobError, match="ZeroDivisionError"):
        job.result()


def test_an_array_is_throttled(slurm_of_module: Cluster, tmp_path: Path) -> None:
    log, go = tmp_path / "log", tmp_path / "go"

    def work() -> None:
        for change in ("1", "-1"):
            with log.open("a") as file:
                file.write(change + "\n")
            while not go.exists():
                time.sleep(0.05)  # noqa: TID251  a job, which waits for the test

    def changes() -> list[int]:
        return [int(line) for line in log.read_text().splitlines()] if log.exists() else []

    array = executor(tmp_path, array_parallelism=2)
    with array.batch():
        jobs = [array.submit(work) for _ in range(6)]
    main = jobs[0].job_id.split("_")[0]
    assert [job.job_id for job in jobs] == [f"{main}_{index}" for index in range(6)]
    until("two have begun", lambda: len(changes()) == 2)
    shown = slurm_of_module.call("squeue", "-h", "-r", "-j", main, "-t", "PENDING", "-o", "%r").split()
    assert shown == ["JobArrayTaskLimit"] * 4
    go.touch()
    until("all are through", lambda: all(job.paths.result_pickle.exists() for job in jobs))
    assert len(changes()) == 12
    assert max(accumulate(changes())) == 2


def test_scontrol_requeue_starts_a_job_again(taken_away: dict[str, Restarted]) -> None:
    # Nothing is checkpointed: from outside comes only SIGTERM, which submitit ignores until Slurm kills it (KillWait).
    requeued = taken_away["requeued"]
    until(
        "it has ignored SIGTERM", lambda: "Bypassing signal SIGTERM" in requeued.job.paths.stderr.read_text()
    )
    os.kill(int((requeued.folder / "pid").read_text()), signal.SIGKILL)
    assert requeued.result() == ["0 new", "1 new"]


def test_a_higher_partition_preempts_with_a_warning(taken_away: dict[str, Restarted]) -> None:
    assert taken_away["low_grace"].result() == ["0 new", "1 restored"]


def test_a_higher_partition_preempts_without_a_warning(taken_away: dict[str, Restarted]) -> None:
    low = taken_away["low"]
    # The signal comes together with Slurm's own requeueing, so submitit's attempt to requeue fails, and it leaves an
    # error as the result of a job that will run again.
    until("it has left an error", low.job.paths.result_pickle.exists)
    with pytest.raises(submitit.core.utils.FailedJobError, match="scontrol"):
        low.job.result()
    assert low.result() == ["0 new", "1 restored"]


def test_the_time_limit_checkpoints_and_requeues(taken_away: dict[str, Restarted]) -> None:
    # Its second life has the shortened limit, too, and may be taken away again.
    assert taken_away["limited"].result()[:2] == ["0 new", "1 restored"]
