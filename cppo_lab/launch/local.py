"""Jobs in separate processes on this machine, through submitit's local executor."""

import os
import re
import signal
import time
from collections.abc import Callable, Sequence

from submitit import Job as Process
from submitit import LocalExecutor

from cppo_lab.errors import UserError, blocked, deferred
from cppo_lab.launch.base import (
    Event,
    J,
    Job,
    LauncherSpec,
    job_environment,
    must_not_begin,
    run_masked,
    variables,
)

POLL_SECONDS = 0.5
END_SECONDS = 30.0
UNLIMITED_HOURS = 10_000.0  # submitit requires a number


def launch_local(jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None:
    """Keep `workers` jobs running until all have ended. On an interrupt the running ones are ended too."""
    workers = spec.workers or default_workers(jobs)
    waiting = list(jobs)
    running: list[tuple[J, Process[None]]] = []
    began = time.time()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                if must_not_begin(job, began):
                    report(Event("cancelled", job))
                    continue
                # Ctrl-C and SIGHUP reach every process of a terminal, and submitit kills its job one second after the
                # first. So the jobs block them, and the launcher ends the jobs.
                # (A job that uses multiprocessing's `spawn` receives SIGINT again.)
                # A signal to end waits until the job is in the list, by which it is ended.
                with deferred(), blocked(signal.SIGINT, signal.SIGHUP):
                    running.append((job, _submit(job)))
                report(Event("started", job))
            if running:
                time.sleep(POLL_SECONDS)
            for job, process in list(running):
                if process.done():
                    running.remove((job, process))
                    report(Event("ended", job))
                else:
                    report(Event("progress", job))
    finally:
        _end([process for _, process in running])


def default_workers(jobs: Sequence[Job]) -> int:
    """One job per core, or a single job at a time if any takes the machine's GPUs."""
    return 1 if any(job.gpus for job in jobs) else len(os.sched_getaffinity(0))


def _submit(job: Job) -> Process[None]:
    """Start a job. Raises UserError for a folder in whose name submitit would write numbers, and miss the folder."""
    if replaced := re.search("%[ajtA]", str(job.folder)):
        raise UserError(
            f"launcher=local: the folder {str(job.folder.parent)!r} has {replaced[0]} in its name, which submitit "
            "replaces: rename it, work in another folder, or choose launcher=inline"
        )
    executor = LocalExecutor(folder=job.folder / "attempts")
    hours = job.resources.hours if job.resources else UNLIMITED_HOURS
    # submitit ends local jobs after two minutes by default, and silently accepts misspelt names.
    executor.update_parameters(timeout_min=max(1, round(hours * 60)), name=job.name)
    with variables(job_environment()):
        return executor.submit(run_masked, job)


def _end(processes: Sequence[Process[None]]) -> None:
    """Ask the jobs to record their end and exit; do not wait for those that take too long."""
    deadline = time.monotonic() + END_SECONDS
    while (alive := [process for process in processes if not process.done()]) and time.monotonic() < deadline:
        for process in alive:
            # submitit forwards the signal once to its job, which may miss it while starting.
            os.kill(int(process.job_id), signal.SIGTERM)
        time.sleep(POLL_SECONDS)
