"""A read-only view of runs in Slurm and the ledger: one `squeue`, and `sacct` for jobs that it has forgotten."""

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm.ledger import NAME, Ledger, LedgerTask
from cppo_lab.launch.slurm.queue import ACTIVE, QueuedJob, ended_as
from cppo_lab.launch.slurm.reconcile import LEFT, query_queue

ANSWER_SECONDS = 60.0  # after this time, sbatch has returned or its launcher is dead
_UNEVENTFUL = frozenset({"", "COMPLETED", LEFT})


@dataclass(frozen=True)
class SlurmView:
    """`tasks`: the newest of each run. `here`: those in the queue, by run.

    `ended`: Slurm's final state of jobs that have left it recently, by job. `silent`: why the queue could not be
    queried.
    """

    tasks: Mapping[str, LedgerTask] = field(default_factory=dict)
    here: Mapping[str, QueuedJob] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    silent: str = ""

    def job_of(self, run_id: str) -> str:
        """The newest job of a run, as Slurm's commands write it; empty if it had none."""
        if run_id in self.here:
            return self.here[run_id].job
        return self.tasks[run_id].job if run_id in self.tasks else ""

    def is_active(self, run_id: str) -> bool:
        """Whether its job has nodes."""
        return run_id in self.here and self.here[run_id].state in ACTIVE

    def is_ending(self, run_id: str) -> bool:
        """Whether Slurm is releasing its nodes."""
        return run_id in self.here and self.here[run_id].state == "COMPLETING"

    def waiting(self, run_id: str) -> str | None:
        """Why its job has not started; None if it is not known to be pending."""
        if job := self.here.get(run_id):
            if job.state in ACTIVE:
                return None
            why = f", {job.reason}" if job.reason else ""
            return f"Slurm job {job.job}: {job.state.lower()}{why}"
        task = self.tasks.get(run_id)
        if task is None or task.ended is not None:
            return None
        if task.job_id is None:
            return "is being submitted" if time.time() - task.created < ANSWER_SECONDS else None
        return f"not known now: {self.silent}" if self.silent else None

    def words(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Slurm's final states of the jobs of runs, where informative: OUT_OF_MEMORY, TIMEOUT, ..."""
        tasks = [self.tasks[run_id] for run_id in run_ids if run_id in self.tasks and run_id not in self.here]
        unknown = [
            task.job
            for task in tasks
            if task.ended in (None, LEFT) and task.job and task.job not in self.ended
        ]
        known = {**(ended_as(unknown) if not self.silent else {}), **self.ended}
        found = {}
        for task in tasks:
            word = task.ended if task.ended not in (None, LEFT) else known.get(task.job, "")
            if word not in _UNEVENTFUL:
                found[task.name] = str(word)
        return found


def view(runs: Path) -> SlurmView:
    """The state of everything that was submitted for the runs in folder `runs`. Writes nothing."""
    if not (runs / NAME).is_file():
        return SlurmView()
    with Ledger(runs) as ledger:
        tasks = ledger.newest_tasks()
    if all(task.ended is not None for task in tasks.values()):
        return SlurmView(tasks)
    try:
        jobs, here = query_queue([task for task in tasks.values() if task.ended is None])
    except UserError as error:
        return SlurmView(tasks, silent=str(error))
    live = {job.job for job in here.values()}
    return SlurmView(tasks, here, {job.job: job.state for job in jobs if job.job not in live})


def view_or_warn(runs: Path) -> SlurmView:
    """The same. If Slurm or the ledger does not answer, prints a warning and continues without it."""
    try:
        found = view(runs)
    except UserError as error:  # the ledger cannot be read
        found = SlurmView(silent=str(error))
    if found.silent:
        print(f"cppo: the state of Slurm's queue is unknown: {found.silent}", file=sys.stderr)
    return found
