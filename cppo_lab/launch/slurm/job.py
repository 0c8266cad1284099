"""What runs inside a Slurm job: one launcher job, requeued when Slurm takes its machine away."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from submitit import JobEnvironment
from submitit.helpers import DelayedSubmission

from cppo_lab import schema
from cppo_lab.errors import Interrupted
from cppo_lab.launch.base import Job, run_masked
from cppo_lab.launch.slurm.container import GO_BACK, GO_BACK_IF_PREEMPTED, OUTSIDE, ask_outside
from cppo_lab.launch.slurm.queue import command_output
from cppo_lab.launch.training import TrainingJob
from cppo_lab.runs.attempt import Allocation
from cppo_lab.runs.folder import AlreadyRunning
from cppo_lab.runs.machine import code_version

# A preempted run may still be writing its last records on the other machine.
PREDECESSOR_SECONDS = 120.0


@dataclass(frozen=True)
class SlurmTask:
    """`job`, how often it may be requeued, and its name in the queue. submitit calls it, and `checkpoint` on Slurm's
    warning.
    """

    job: Job
    requeues: int
    title: str = ""  # empty in jobs of older versions
    grace_seconds: float = 0.0  # how long before the time limit Slurm warns it

    def __call__(self) -> None:
        allocation = _allocation(self.job)
        if _restarts() > self.requeues:
            if allocation is not None and allocation.rank:
                return
            sys.exit(self._give_up())
        self._take_name()
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's: `checkpoint`, then `scontrol requeue`
        try:
            self._run(_in_this_job(self.job, allocation, self.grace_seconds))
        except Interrupted as error:  # the job has recorded it and has replaced submitit's handlers
            if not callable(requeue) or not (error.number == signal.SIGUSR2 or self._preempted()):
                raise  # a user cancelled or requeued it
            try:
                requeue(signal.SIGUSR2, None)
            except subprocess.CalledProcessError:
                raise error from None  # Slurm has already requeued it
        finally:
            if allocation is not None and allocation.rank == 0:
                allocation.end()

    def _take_name(self) -> None:
        """Show this run's name in the queue, where the tasks of an array share a name until they start."""
        name = os.environ.get("SLURM_JOB_NAME", "")
        if not self.title or "SLURM_ARRAY_TASK_ID" not in os.environ or OUTSIDE in os.environ:
            return
        mine = self.title + "".join(name.partition("@")[1:])  # the token stays
        if name != mine and os.environ.get("SLURM_PROCID", "0") == "0":
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                job_id = os.environ.get("SLURM_JOB_ID", "")
                command_output("scontrol", "update", f"JobId={job_id}", f"JobName={mine}")

    def _run(self, job: Job) -> None:
        deadline = time.monotonic() + PREDECESSOR_SECONDS
        while True:
            try:
                return run_masked(job)
            except AlreadyRunning:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def checkpoint(self) -> DelayedSubmission:
        """What goes back into the queue; nothing is saved here, since the run's core has written its checkpoint.

        submitit calls it when a job without a signal handler is preempted or reaches its time limit. Ends the
        process if the job may not be requeued.
        """
        # Slurm's SIGTERM follows, and Apptainer forwards signals that the container has already received. Ignore them:
        # the job is already ending and records its progress.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        if _restarts() >= self.requeues:
            sys.exit(self._give_up())
        if ask_outside(GO_BACK):
            sys.exit(f"{self.job.name}: the batch script requeues the job")
        return DelayedSubmission(self)

    def _preempted(self) -> bool:
        """Whether Slurm reports that this job is being preempted; it leaves it to the job to requeue itself.

        In a container only the batch script can find out, and requeues the job if so.
        """
        if OUTSIDE in os.environ:
            if _restarts() < self.requeues:
                ask_outside(GO_BACK_IF_PREEMPTED)
            return False
        try:
            shown = command_output(
                "scontrol", "show", "job", "--oneliner", os.environ.get("SLURM_JOB_ID", "")
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return re.search(r"\bJobState=RUNNING .*\bPreemptTime=[0-9]", shown.stdout) is not None

    def _give_up(self) -> str:
        why = (
            f"it was requeued {min(_restarts(), self.requeues)} times, the most allowed "
            f"(launcher.requeues={self.requeues}): launch again to resume"
        )
        self.job.give_up(why)
        return f"{self.job.name}: {why}"


def _restarts() -> int:
    """How often Slurm has started this job again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _allocation(job: Job) -> Allocation | None:
    """The machines that Slurm allocated to a multi-node job; one task runs on each."""
    if job.nodes == 1:
        return None
    environment = JobEnvironment()
    life = f"nodes-{environment.raw_job_id}.{_restarts()}"  # a requeued job keeps its id
    meeting = job.folder.resolve() / "attempts" / life
    return Allocation(tuple(environment.hostnames), environment.global_rank, meeting)


def _in_this_job(job: Job, allocation: Allocation | None, grace_seconds: float) -> Job:
    """`job` with the machines and GPUs that Slurm allocated, in place of those that the launcher saw."""
    here: dict[str, Any] = {
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "allocation": allocation,
        "grace_seconds": grace_seconds,
    }
    if isinstance(job, TrainingJob):
        # The project in the image does the training.
        tags = {schema.TAG_CODE_VERSION: code_version()} if OUTSIDE in os.environ else {}
        attempts = (
            dataclasses.replace(attempt, **here, tags={**attempt.tags, **tags}) for attempt in job.attempts
        )
        return dataclasses.replace(job, attempts=tuple(attempts))
    fields = {name: value for name, value in here.items() if hasattr(job, name)}
    if isinstance(training := getattr(job, "training", None), TrainingJob):  # of a search's worker
        fields["training"] = _in_this_job(training, allocation, grace_seconds)
    if not fields:
        return job
    assert dataclasses.is_dataclass(job) and not isinstance(job, type)
    return dataclasses.replace(job, **fields)
