"""Cancels runs cleanly, whether running or queued. The next launch can resume them.

A run is first marked in its folder: a launcher with the run on its list then skips it, and the run itself records that
it was cancelled. Then its job is passed to `scancel`, or its process gets SIGTERM.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cppo_lab import schema
from cppo_lab.launch.slurm.queue import ACTIVE, LEDGER, Ledger, QueuedJob, name_of, refresh, submitting
from cppo_lab.launch.slurm.queue import cancel as cancel_jobs
from cppo_lab.runs import folder as run_folder
from cppo_lab.runs.folder import is_held
from cppo_lab.sweep.status import RunStatus

PATIENCE_SECONDS = 60.0  # for runs to record their progress
POLL_SECONDS = 0.2
WORD = "CANCELLED"  # Slurm's state


@dataclass(frozen=True)
class Cancelled:
    """What was done about a run: one line, and whether that ended it or keeps it from starting."""

    run_id: str
    text: str
    done: bool


def candidates(runs: Sequence[RunStatus], queued_only: bool) -> list[RunStatus]:
    """The running and queued runs, or only the queued ones."""
    return [run for run in runs if run.state in ({schema.QUEUED} if queued_only else schema.ALIVE)]


def cancel(runs: Path, chosen: Sequence[RunStatus], queued_only: bool) -> list[Cancelled]:
    """Cancel the runs; with `queued_only`, those that have started meanwhile are left alone. Waits for them to end.

    Raises UserError if Slurm's controller does not answer.
    """
    run_ids = [run.run_id for run in chosen]
    for run_id in run_ids:
        run_folder.cancel(runs / run_id)
    jobs, shared = _cancel_jobs(runs, run_ids, queued_only)
    settled: dict[str, tuple[str, bool]] = {}
    ending: dict[str, str] = {}
    for run_id in run_ids:
        job, folder = jobs.get(run_id), runs / run_id
        started = is_held(folder) if job is None else job.state in ACTIVE
        what = "" if job is None else f"Slurm job {job.job}"
        if job is not None and job.owner != os.getuid():  # Slurm does not let us end it
            what += f" of {name_of(job.owner)}"
            if started:
                run_folder.forget_cancelled(folder)
                settled[run_id] = (f"{what} trains it: ask them to cancel it", False)
            else:
                settled[run_id] = (f"will not be trained: {what} ends as soon as it starts", True)
        elif started and queued_only:
            run_folder.forget_cancelled(folder)
            settled[run_id] = (f"{what} has started meanwhile: left alone".lstrip(), False)
        elif started:
            if job is None and (problem := run_folder.end_process(folder)):
                settled[run_id] = (problem, False)
            else:
                ending[run_id] = what or "its process"
        elif job is None:
            settled[run_id] = ("will not be started", True)
        elif job.job in shared:
            settled[run_id] = (f"will not be trained by {what}", True)
        else:
            settled[run_id] = (f"taken out of Slurm's queue (job {job.job})", True)
    alive = _wait(runs, ending)
    for run_id, what in ending.items():
        text = (
            f"asked {what} to end; it has not ended yet"
            if run_id in alive
            else "ended; the next launch resumes it"
        )
        settled[run_id] = (text, True)
    return [Cancelled(run_id, *outcome) for run_id, outcome in settled.items()]


def _cancel_jobs(
    runs: Path, run_ids: Sequence[str], queued_only: bool
) -> tuple[dict[str, QueuedJob], set[str]]:
    """Cancel the jobs of these runs that belong to this account.

    Returns the jobs that were in the queue, by run, and those that other runs share: these continue, and skip runs that
    are marked as cancelled.
    """
    if not (runs / LEDGER).is_file():
        return {}, set()
    with submitting(runs), Ledger(runs) as ledger:
        here = refresh(ledger)
        jobs = {run_id: here[run_id] for run_id in run_ids if run_id in here}
        mine = {run_id: job for run_id, job in jobs.items() if job.owner == os.getuid()}
        waiting = {run_id for run_id, job in mine.items() if job.state not in ACTIVE}
        tasks = ledger.open_tasks()
        shared = {
            task.job
            for task in tasks
            if task.name not in run_ids and not run_folder.is_cancelled(runs / task.name)
        }
        ending = {job.job for run_id, job in mine.items() if run_id in waiting or not queued_only}
        cancel_jobs(sorted(ending - shared))
        # The others are recorded when they have left the queue.
        ledger.end([task for task in tasks if task.name in waiting], WORD)
    return jobs, shared


def _wait(runs: Path, run_ids: Iterable[str]) -> list[str]:
    """Wait until the runs have released the locks of their folders; those that have not in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (alive := [run_id for run_id in run_ids if is_held(runs / run_id)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return alive
