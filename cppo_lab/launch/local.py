"""Jobs in processes of their own on this machine, through submitit's local executor."""

import os
import time
from collections.abc import Callable, Sequence

from submitit import LocalExecutor, LocalJob

from cppo_lab.launch.base import Event, J, Job, LauncherSpec
from cppo_lab.tracking.run_folder import is_cancelled

POLL_SECONDS = 0.5
UNLIMITED_HOURS = 10_000.0  # submitit wants a number


def launch_local(jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None:
    """Keep `workers` jobs going until all have ended. On an interrupt the running ones are ended too."""
    workers = spec.workers or default_workers(jobs)
    queue = list(jobs)
    running: list[tuple[J, LocalJob[None]]] = []
    began = time.time()
    try:
        while queue or running:
            while queue and len(running) < workers:
                job = queue.pop(0)
                if is_cancelled(job.folder, began):
                    report(Event("cancelled", job))
                    continue
                running.append((job, _submit(job)))
                report(Event("started", job))
            if running:
                time.sleep(POLL_SECONDS)
            for job, process in list(running):
                ended = process.done()
                report(Event("ended" if ended else "progress", job))
                if ended:
                    running.remove((job, process))
    finally:
        for _, process in running:
            process.cancel(check=False)
        # The jobs record their own end before they go.
        deadline = time.monotonic() + 30
        while any(not process.done() for _, process in running) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def default_workers(jobs: Sequence[Job]) -> int:
    """One job per core; one at a time where a job takes the machine's GPUs."""
    return 1 if any(job.gpus for job in jobs) else len(os.sched_getaffinity(0))


def _submit(job: Job) -> "LocalJob[None]":
    executor = LocalExecutor(folder=job.folder / "attempts")
    hours = job.resources.hours if job.resources else UNLIMITED_HOURS
    # submitit ends local jobs after two minutes unless told otherwise, and takes misspelt names in silence.
    executor.update_parameters(timeout_min=max(1, round(hours * 60)), name=job.name)
    return executor.submit(job.run)
