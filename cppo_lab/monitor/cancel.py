"""Cancels runs cleanly, whether running or queued. The next launch can resume them.

A run is first marked in its folder: a launcher with the run on its list then skips it, and the run itself records that
it was cancelled. Then its job is passed to `scancel`, or its process gets SIGTERM.
"""

import os
import signal
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cppo_lab import schema
from cppo_lab.launch.slurm.ledger import NAME, Ledger, name_of, submitting
from cppo_lab.launch.slurm.queue import ACTIVE, refresh
from cppo_lab.launch.slurm.queue import cancel as cancel_jobs
from cppo_lab.monitor.status import RunStatus
from cppo_lab.runs import folder as run_folder
from cppo_lab.runs.folder import holder, in_living_batch, is_held

PATIENCE_SECONDS = 60.0  # for runs to record their progress
POLL_SECONDS = 0.2
WORD = "CANCELLED"  # Slurm's state


@dataclass(frozen=True)
class Cancelled:
    """What was done about a run: one line, and whether that ended it or keeps it from starting."""

    run_id: str
    text: str
    done: bool


def candidates(found: Sequence[RunStatus], queued_only: bool) -> list[RunStatus]:
    """The running and queued runs, or only the queued ones."""
    return [one for one in found if one.state in ({schema.QUEUED} if queued_only else schema.ALIVE)]


def cancel(runs: Path, chosen: Sequence[RunStatus], queued_only: bool) -> list[Cancelled]:
    """Cancel the runs; with `queued_only`, those that have started meanwhile are left alone. Waits for them to end.

    Raises UserError if Slurm's controller does not answer.
    """
    for one in chosen:
        run_folder.cancel(runs / one.run_id)
    jobs, shared = _in_slurm(runs, [one.run_id for one in chosen], queued_only)
    ended, running = [], []
    for one in chosen:
        folder = runs / one.run_id
        if one.run_id in jobs:
            active, job, owner = jobs[one.run_id]
            if owner != os.getuid():
                ended.append(_of_another(one.run_id, folder, active, f"Slurm job {job} of {name_of(owner)}"))
            elif active and queued_only:
                run_folder.forget_cancelled(folder)
                ended.append(
                    Cancelled(one.run_id, f"Slurm job {job} has started meanwhile: left alone", False)
                )
            elif active:
                running.append((one.run_id, f"Slurm job {job}"))
            elif job in shared:
                ended.append(Cancelled(one.run_id, f"will not be trained by Slurm job {job}", True))
            else:
                ended.append(Cancelled(one.run_id, f"taken out of Slurm's queue (job {job})", True))
        elif not is_held(folder):
            ended.append(Cancelled(one.run_id, "will not be started", True))
        elif queued_only:
            run_folder.forget_cancelled(folder)
            ended.append(Cancelled(one.run_id, "has started meanwhile: left alone", False))
        elif problem := _end_process(folder):
            ended.append(Cancelled(one.run_id, problem, False))
        else:
            running.append((one.run_id, "its process"))
    return ended + _wait(runs, running)


def _in_slurm(
    runs: Path, run_ids: Sequence[str], queued_only: bool
) -> tuple[Mapping[str, tuple[bool, str, int]], Collection[str]]:
    """Cancel the jobs of these runs that belong to this account.

    Returns, for each run with a job in the queue: whether the job had nodes, its id and its owner. Also returns the
    jobs
    that other runs share: these continue, and skip runs that are marked as cancelled.
    """
    if not (runs / NAME).is_file():
        return {}, ()
    with submitting(runs), Ledger(runs) as ledger:
        here = refresh(ledger)
        jobs = {run_id: here[run_id] for run_id in run_ids if run_id in here}
        mine = {run_id: job for run_id, job in jobs.items() if job.owner == os.getuid()}
        waiting = {run_id for run_id, job in mine.items() if job.state not in ACTIVE}
        wanted = [task for task in ledger.open_tasks() if not run_folder.is_cancelled(runs / task.name)]
        shared = {task.job for task in wanted if task.name not in run_ids}
        ending = [job.job for run_id, job in mine.items() if run_id in waiting or not queued_only]
        cancel_jobs([job for job in dict.fromkeys(ending) if job not in shared])
        # The others are recorded when they have left the queue.
        ledger.end([task for task in ledger.open_tasks() if task.name in waiting], WORD)
    return {run_id: (job.state in ACTIVE, job.job, job.owner) for run_id, job in jobs.items()}, shared


def _of_another(run_id: str, folder: Path, active: bool, job: str) -> Cancelled:
    """Report on a job of another account, which Slurm does not let us end. A pending one ends as soon as it starts."""
    if active:
        run_folder.forget_cancelled(folder)
        return Cancelled(run_id, f"{job} trains it: ask them to cancel it", False)
    return Cancelled(run_id, f"will not be trained: {job} ends as soon as it starts", True)


def _end_process(folder: Path) -> str:
    """Send SIGTERM to the process that trains a run; why that cannot be done, or an empty text.

    A batch checks the mark in the run's folder, and ends only this run.
    """
    if in_living_batch(folder.parent, folder.name):
        return ""
    where = holder(folder)
    if where is None:
        return "" if not is_held(folder) else "the process that trains it is not known: wait for it to end"
    host, pid = where
    if host != socket.gethostname():
        return f"is trained on {host} (process {pid}): cancel it there"
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return ""
    try:
        if holder(folder) == where:  # still the same: the pid has not been reused
            signal.pidfd_send_signal(process, signal.SIGTERM)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return f"process {pid} belongs to another user: ask them"
    finally:
        os.close(process)
    return ""


def _wait(runs: Path, running: Sequence[tuple[str, str]]) -> list[Cancelled]:
    """Wait until the runs have released the locks of their folders."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    left = dict(running)
    while left and time.monotonic() < deadline:
        left = {run_id: what for run_id, what in left.items() if is_held(runs / run_id)}
        if left:
            time.sleep(POLL_SECONDS)
    return [
        Cancelled(run_id, f"asked {what} to end; it has not ended yet", True)
        if run_id in left
        else Cancelled(run_id, "ended; the next launch resumes it", True)
        for run_id, what in running
    ]
