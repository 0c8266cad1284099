"""Compares the ledger with Slurm's queue: which runs are pending, which are running, which have left the queue."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from cppo_lab.launch.slurm.ledger import NAME, Ledger, LedgerTask, name_of
from cppo_lab.launch.slurm.queue import (
    ACTIVE,
    WAITING,
    QueuedJob,
    cancel,
    ended_as,
    jobs_of,
    shows_others,
)

SETTLING_SECONDS = 10.0  # an sbatch of a killed launcher may still be in progress
LEFT = "left Slurm's queue"


def query_queue(tasks: Sequence[LedgerTask]) -> tuple[list[QueuedJob], dict[str, QueuedJob]]:
    """The queue's jobs of the accounts that submitted `tasks`, and the tasks that are in it, by name.

    Raises UserError if Slurm's controller does not answer.
    """
    jobs = jobs_of({task.owner for task in tasks if task.owner is not None})
    return jobs, _in_queue(tasks, jobs)


def _in_queue(tasks: Sequence[LedgerTask], jobs: Sequence[QueuedJob]) -> dict[str, QueuedJob]:
    """Which of the tasks are in the queue, by name.

    If the cluster hides the jobs of other users, those count as pending: only their owner can see that they have ended.
    """
    live = {job.job: job for job in jobs if job.state in WAITING | ACTIVE}
    here = {task.name: live[task.job] for task in tasks if task.job in live}
    unseen = [task for task in tasks if task.name not in here and not task.is_mine]
    if unseen and not shows_others():
        for task in unseen:
            assert task.owner is not None
            why = f"a job of {name_of(task.owner)}, which Slurm does not show to you"
            here[task.name] = QueuedJob(task.job, task.owner, "PENDING", why, 0, "", task.token)
    return here


def refresh(ledger: Ledger) -> dict[str, QueuedJob]:
    """Update the ledger; returns the queue's view of the runs that are in it, by name.

    The caller holds the ledger's lock. Raises UserError if Slurm's controller does not answer.
    """
    tasks = ledger.open_tasks()
    if not tasks:
        return {}
    lost = [task.created for task in tasks if task.job_id is None]
    if lost and (wait := max(lost) + SETTLING_SECONDS - time.time()) > 0:
        time.sleep(min(wait, SETTLING_SECONDS))
    jobs, _ = query_queue(tasks)
    _adopt(ledger, jobs)
    tasks = ledger.open_tasks()
    here = _in_queue(tasks, jobs)
    _end(ledger, [task for task in tasks if task.name not in here], jobs)
    return here


def in_queue(runs: Path) -> dict[str, QueuedJob]:
    """The part of the ledger that is in Slurm's queue, by name. Writes nothing.

    Raises UserError if Slurm's controller does not answer.
    """
    if not (runs / NAME).is_file():
        return {}
    with Ledger(runs) as ledger:
        tasks = ledger.open_tasks()
    if not tasks:
        return {}
    return query_queue(tasks)[1]


def _adopt(ledger: Ledger, jobs: Sequence[QueuedJob]) -> None:
    """Find the jobs of launchers that died before they recorded the job id, by the token in the comment.

    submitit stores a task's function after sbatch has returned, so tasks without one could only fail. They are
    cancelled, and their runs can be submitted again. So is a whole array that entered the queue after it had been given
    up. This account cannot cancel those of another account; they fail as soon as they start.
    """
    by_token = {job.comment: job for job in jobs}
    for token in by_token.keys() & set(ledger.unanswered()):
        number = by_token[token].job.partition("_")[0]
        ledger.submitted(token, int(number))
        if by_token[token].owner != os.getuid():
            continue
        tasks = ledger.open_tasks_of(token)
        hollow = [task for task in tasks if not _function(ledger, task).exists()]
        cancel([task.job for task in hollow] if tasks else [number])
        ledger.end(hollow, "cancelled: its launcher was killed before it was complete")


def _function(ledger: Ledger, task: LedgerTask) -> Path:
    """The file from which submitit's job loads its function."""
    from submitit.core.utils import JobPaths  # read-only commands do not need submitit

    return JobPaths(ledger.folder_of(task.token), task.job).submitted_pickle


def _end(ledger: Ledger, gone: Sequence[LedgerTask], jobs: Sequence[QueuedJob]) -> None:
    """Record that tasks have left the queue, and why, if that is known."""
    remembered = {job.job: job.state for job in jobs}
    unknown = [task.job for task in gone if task.job and task.job not in remembered]
    known = remembered | ended_as(unknown)
    for task in gone:
        ended = known.get(task.job, "")
        # Accounting lags some seconds behind the queue: jobs that it still reports as running have left it.
        ledger.end([task], ended if ended and ended not in WAITING | ACTIVE else LEFT)
