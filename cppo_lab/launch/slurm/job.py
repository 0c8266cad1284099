"""What runs inside a Slurm job: one launcher job, put back into the queue when Slurm takes its machine away."""

import dataclasses
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from submitit.helpers import DelayedSubmission

from cppo_lab.launch.base import Job
from cppo_lab.run import AlreadyRunning

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
        job = _with_devices_of_the_job(self.job)
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


def _with_devices_of_the_job(job: Job) -> Job:
    """The GPUs that Slurm gave to this job, in place of those that the launcher saw."""
    if not hasattr(job, "visible_devices"):
        return job
    changed: Any = dataclasses.replace(job, visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"))  # type: ignore[type-var]
    return changed
