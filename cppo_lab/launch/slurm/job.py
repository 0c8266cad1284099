"""What runs inside a Slurm job: one launcher job, put back into the queue when Slurm takes its machine away."""

import dataclasses
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from submitit import JobEnvironment
from submitit.helpers import DelayedSubmission

from cppo_lab.launch.base import Job
from cppo_lab.run import Allocation, AlreadyRunning

PREDECESSOR_SECONDS = (
    120.0  # a run that was taken away may still be writing its last words on the other machine
)


class RequeuedTooOften(RuntimeError):
    """The job has been put back into the queue as often as it may."""


@dataclass(frozen=True)
class SlurmTask:
    """`job`, and how often it may go back into the queue. submitit calls it, and `checkpoint` on Slurm's warning."""

    job: Job
    requeues: int

    def __call__(self) -> None:
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if restarts > self.requeues:
            raise RequeuedTooOften(
                f"{self.job.name} went back into the queue {restarts} times, and may {self.requeues} times "
                "(launcher.requeues): launch again to go on"
            )
        allocation = _allocation(self.job, restarts)
        try:
            self._run(_in_this_job(self.job, allocation))
        finally:
            if allocation is not None and allocation.rank == 0:
                allocation.end()

    def _run(self, job: Job) -> None:
        deadline = time.monotonic() + PREDECESSOR_SECONDS
        while True:
            try:
                return job.run()
            except AlreadyRunning:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def checkpoint(self) -> DelayedSubmission:
        """The same again, from the run's own checkpoint.

        Called in the signal handler of a job that is preempted or reaches its time limit.
        """
        # Slurm's SIGTERM follows: the run is ending already, and writes down how far it came.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if int(os.environ.get("SLURM_RESTART_COUNT", "0")) >= self.requeues:
            # Ends the run in order, where returning None would count as an error of its own.
            sys.exit(f"time limit or preemption, and launcher.requeues={self.requeues} are used up")
        return DelayedSubmission(self)


def _allocation(job: Job, restarts: int) -> Allocation | None:
    """The machines that Slurm gave to a job which asked for several: one task runs on each."""
    if job.nodes == 1:
        return None
    environment = JobEnvironment()
    life = f"nodes-{environment.raw_job_id}.{restarts}"  # a job that is requeued keeps its number
    meeting = job.folder.resolve() / "attempts" / life
    return Allocation(tuple(environment.hostnames), environment.global_rank, meeting)


def _in_this_job(job: Job, allocation: Allocation | None) -> Job:
    """`job` with the machines and GPUs that Slurm gave to it, in place of those that the launcher saw."""
    here = {"visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "allocation": allocation}
    known = {name: value for name, value in here.items() if hasattr(job, name)}
    if not known:
        return job
    changed: Any = dataclasses.replace(job, **known)  # type: ignore[type-var]
    return changed
