"""What the launchers have yet to start or end: looked at, cancelled, and repaired after killed processes."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cppo_lab import schema
from cppo_lab.files import has_database
from cppo_lab.launch.slurm import LEDGER
from cppo_lab.runs.folder import (
    AlreadyRunning,
    end_process,
    forget_cancelled,
    is_cancelled,
    is_locked,
    read_status,
    run_lock,
    write_status,
)
from cppo_lab.runs.folder import cancel as mark_cancelled
from cppo_lab.runs.folder import queued as listed
from cppo_lab.runs.spool import files
from cppo_lab.runs.state import Queued, RunFolder, state_of

if TYPE_CHECKING:
    from cppo_lab.launch.slurm.queue import Ledger, QueuedJob

_ENDED = (*schema.FINISHED, schema.FAILED, schema.PARTIAL, schema.STOPPED)
PATIENCE_SECONDS = 60.0  # for runs to record their progress
POLL_SECONDS = 0.2
CANCELLED = "CANCELLED"  # Slurm's word for a job that was


def read_queues(runs: Path, warn: bool = False) -> Queued:
    """One look at the lists of the live launchers on this machine, and at Slurm's queue. Writes nothing.

    `warn`: say on standard error if the record of Slurm jobs cannot be read or Slurm does not answer. Otherwise the
    first raises UserError, and the second is in the reasons of the runs.
    """
    run_ids = listed(runs)
    if not has_database(runs / LEDGER):
        return Queued(run_ids)
    from cppo_lab.launch.slurm.queue import view

    slurm = view(runs, warn)
    return Queued(run_ids, slurm.places(), slurm.words)


def settle_jobs(runs: Path) -> list[str]:
    """Record which Slurm jobs have left the queue, and adopt or cancel those of killed launchers; a line for each job
    that is over.

    Raises UserError if Slurm's controller does not answer.
    """
    with _submitted(runs) as ledger:
        if ledger is None:
            return []
        from cppo_lab.launch.slurm.queue import refresh

        before = [task.name for task in ledger.open_tasks()]
        refresh(ledger)
        still_open = {task.name for task in ledger.open_tasks()}
        newest = ledger.newest_tasks()
    jobs = {name: newest[name].job for name in before if name not in still_open}
    return [
        f"{name}: Slurm job {job} is over" if job else f"{name}: its submission never became a Slurm job"
        for name, job in jobs.items()
    ]


@contextlib.contextmanager
def _submitted(runs: Path) -> Iterator["Ledger | None"]:
    """The record of Slurm jobs, which no launcher changes during the block; None where there is none."""
    if not has_database(runs / LEDGER):
        yield None
        return
    from cppo_lab.launch.slurm.queue import Ledger, submitting

    with submitting(runs), Ledger(runs) as ledger:
        yield ledger


def spare_code(runs: Path, remove: bool = False) -> int:
    """Bytes of the copies of the code that no job in Slurm's queue reads; with `remove`, they are removed. Raises
    UserError if Slurm's controller does not answer.
    """
    from cppo_lab.runs.export import size_of

    with _submitted(runs) as ledger:  # a launch would use a copy again
        scripts = ""
        if ledger is not None:
            from cppo_lab.launch.slurm.queue import refresh

            refresh(ledger)
            folders = {ledger.folder_of(task.token) for task in ledger.open_tasks()}
            scripts = "".join(path.read_text() for folder in folders for path in folder.glob("*.sh"))
        spare = [path for path in (runs / "code").glob("*") if path.name not in scripts]
        size = sum(map(size_of, spare))
        for path in spare if remove else ():
            shutil.rmtree(path)
    return size


def repair(runs: Path, run_ids: Sequence[str], uri: str) -> list[str]:
    """Repair the records of jobs and runs, and upload what the store at `uri` lacks; a line for each repair.

    Raises UserError if Slurm's controller or the store does not answer.
    """
    lines = settle_jobs(runs)
    ended = record_dead_ends(runs, run_ids, read_queues(runs))
    send(list(ended), uri)
    for folder, state in ended.items():
        if state == schema.PARTIAL and files(folder):
            lines.append(f"{folder.name}: its record in MLflow is repaired")
        elif state:
            lines.append(f"{folder.name}: its folder now says that it is {state}")
    return lines


def record_dead_ends(runs: Path, run_ids: Sequence[str], queued: Queued) -> dict[Path, str]:
    """Record the ends of runs whose process is gone, and remove the checkpoints of finished ones.

    Returns the folders that no process holds, each with the run's state if that was not recorded.
    """
    from cppo_lab.runs.attempt import tidy

    ended = {}
    for run_id in run_ids:
        run = RunFolder(runs / run_id)
        if run.locked or queued.place(run_id).active:  # an active run is starting or ending
            continue
        tidy(run.path)
        ended[run.path] = _end(run)
    return ended


def _end(run: RunFolder) -> str:
    """Record how a run has ended whose process is gone, in its spool and its status; its state, if that is new."""
    status = read_status(run.path).get("status")
    if status in _ENDED or (status != schema.RUNNING and not files(run.path)):
        return ""
    from cppo_lab.runs.recorder import record_end

    with contextlib.suppress(AlreadyRunning), run_lock(run.path):
        state = state_of(run, Queued(), replacing=True)  # read now: it may have ended meanwhile
        if state.state not in _ENDED or run.status.get("status") == state.state:
            return ""
        end: dict[str, Any] = {"status": state.state, "reason": state.reason, "cause": state.cause}
        if run.record is not None:
            end["step"] = step = max(run.record.rows, default=None)
            if run.record.end is None:
                end["reason"] += "" if step is None else f" at step {step}"
                record_end(run.path, state.state, end["reason"])
        with contextlib.suppress(OSError):  # a full disk: the spool knows as much
            write_status(run.path, {**run.status, **end})
        return state.state
    return ""


def send(folders: Sequence[Path], uri: str) -> None:
    """Upload what the store lacks of runs, and again what it has lost.

    Raises UserError if the store does not answer or refuses a run.
    """
    from cppo_lab.tracking.upload import forget_lost, upload
    from cppo_lab.tracking.uploader import tell_left

    forget_lost(folders, uri)
    tell = tell_left()
    upload(folders, uri, lambda done, of: tell(of - done, of))


@dataclass(frozen=True)
class Cancelled:
    """What was done about a run: a line, and whether that ended it or keeps it from starting."""

    run_id: str
    text: str
    done: bool


def cancel(runs: Path, run_ids: Sequence[str], queued_only: bool) -> list[Cancelled]:
    """Cancel runs cleanly, whether running or queued; the next launch can resume them. With `queued_only`, those that
    have started meanwhile are left alone. Waits for them to end.

    A run is first marked in its folder: a launcher with the run on its list then skips it, and the run itself records
    that it was cancelled. Then its job is passed to `scancel`, or its process gets SIGTERM.

    Raises UserError if Slurm's controller does not answer.
    """
    unmarked = [run_id for run_id in run_ids if not is_cancelled(runs / run_id)]
    for run_id in run_ids:
        mark_cancelled(runs / run_id)
    jobs, shared = _cancel_jobs(runs, run_ids, queued_only, unmarked)
    settled: dict[str, tuple[str, bool]] = {}
    ending: dict[str, str] = {}
    for run_id in run_ids:
        job, folder = jobs.get(run_id), runs / run_id
        started = is_locked(folder) if job is None else job.active
        what = "" if job is None else f"Slurm job {job.job}"
        if job is not None and job.owner != os.getuid():  # Slurm does not let us end it
            from cppo_lab.runs.machine import user_name

            what += f" of {user_name(job.owner)}"
            if started:
                forget_cancelled(folder)
                settled[run_id] = (f"{what} trains it: ask them to cancel it", False)
            else:
                settled[run_id] = (f"will not be trained: {what} ends as soon as it starts", True)
        elif started and queued_only:
            forget_cancelled(folder)
            settled[run_id] = (f"{what} has started meanwhile: left alone".lstrip(), False)
        elif started:
            if job is None and (problem := end_process(folder)):
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
    runs: Path, run_ids: Sequence[str], queued_only: bool, unmarked: Sequence[str]
) -> tuple[dict[str, "QueuedJob"], set[str]]:
    """Cancel the jobs of these runs that belong to this account. If Slurm does not say which these are, or the user
    ends the question, nothing is cancelled, and the runs that were `unmarked` before are so again.

    Returns the jobs that were in the queue, by run, and those that other runs share: these continue, and skip runs that
    are marked as cancelled.
    """
    with contextlib.ExitStack() as stack:
        try:
            if (ledger := stack.enter_context(_submitted(runs))) is None:
                return {}, set()
            from cppo_lab.launch.slurm import queue as slurm

            queue = slurm.refresh(ledger)
        except BaseException:
            for run_id in unmarked:
                forget_cancelled(runs / run_id)
            raise
        jobs = {run_id: queue[run_id] for run_id in run_ids if run_id in queue}
        for run_id, job in jobs.items():
            if job.active and (
                queued_only or job.owner != os.getuid()
            ):  # left alone, whatever Slurm answers next
                forget_cancelled(runs / run_id)
        cancellable = {run_id: job for run_id, job in jobs.items() if job.owner == os.getuid()}
        waiting = {run_id for run_id, job in cancellable.items() if not job.active}
        tasks = ledger.open_tasks()
        shared = {
            task.job for task in tasks if task.name not in run_ids and not is_cancelled(runs / task.name)
        }
        ending = {job.job for run_id, job in cancellable.items() if run_id in waiting or not queued_only}
        slurm.cancel(sorted(ending - shared))
        # The others are recorded when they have left the queue.
        ledger.end([task for task in tasks if task.name in waiting], CANCELLED)
    return jobs, shared


def _wait(runs: Path, run_ids: Iterable[str]) -> list[str]:
    """Wait until the runs have released the locks of their folders; those that have not in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (
        alive := [run_id for run_id in run_ids if is_locked(runs / run_id)]
    ) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return alive
