"""Runs in processes of their own on this machine, through submitit's local executor."""

import os
import time
from collections.abc import Callable, Sequence

from submitit import LocalExecutor, LocalJob

from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.run import Attempt, execute

POLL_SECONDS = 0.5
UNLIMITED_HOURS = 10_000.0  # submitit wants a number


def launch_local(attempts: Sequence[Attempt], spec: LauncherSpec, report: Callable[[Event], None]) -> None:
    """Keep `workers` runs going until all have ended. On an interrupt the running ones are ended too."""
    workers = spec.workers or default_workers(attempts)
    queue = list(attempts)
    running: list[tuple[Attempt, LocalJob[None]]] = []
    try:
        while queue or running:
            while queue and len(running) < workers:
                attempt = queue.pop(0)
                running.append((attempt, _submit(attempt)))
                report(Event("started", attempt))
            time.sleep(POLL_SECONDS)
            for attempt, job in list(running):
                ended = job.done()
                report(Event("ended" if ended else "progress", attempt))
                if ended:
                    running.remove((attempt, job))
    finally:
        for _, job in running:
            job.cancel(check=False)
        # The runs record their own end before they go.
        deadline = time.monotonic() + 30
        while any(not job.done() for _, job in running) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def default_workers(attempts: Sequence[Attempt]) -> int:
    """One run per core; one at a time where a run takes the machine's GPUs."""
    on_gpus = any(
        a.spec.core == "verl" and a.layout is not None and a.layout.device == "cuda" for a in attempts
    )
    return 1 if on_gpus else len(os.sched_getaffinity(0))


def _submit(attempt: Attempt) -> "LocalJob[None]":
    executor = LocalExecutor(folder=attempt.folder / "attempts")
    hours = attempt.resources.hours if attempt.resources else UNLIMITED_HOURS
    # submitit ends local jobs after two minutes unless told otherwise, and takes misspelt names in silence.
    executor.update_parameters(timeout_min=max(1, round(hours * 60)), name=attempt.spec.run_id)
    return executor.submit(execute, attempt)
