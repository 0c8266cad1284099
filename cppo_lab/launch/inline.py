"""Runs one job after the other in this process; jobs that need a fresh process get it."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence

from cppo_lab.errors import Interrupted, blocked
from cppo_lab.launch.base import Event, J, Job, LauncherSpec, agreed, must_not_begin, variables
from cppo_lab.runs.attempt import describe
from cppo_lab.runs.folder import AlreadyRunning, is_cancelled


def launch_inline(jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None:
    """Run the jobs here; a failure is printed and the next starts."""
    began = time.time()
    for job in jobs:
        if must_not_begin(job, began):
            report(Event("cancelled", job))
            continue
        report(Event("started", job))
        if job.fresh_process:
            _in_a_process(job)
        else:
            _run(job, began)
        report(Event("ended", job))


def _run(job: Job, began: float) -> None:
    try:
        job.run()
    except AlreadyRunning as error:
        print(error)
    except Interrupted:
        if not is_cancelled(job.folder, began):  # then the signal was for the launcher
            raise
    except Exception as error:  # noqa: BLE001 - the run has recorded it; the others continue
        print(f"{job.name} failed: {describe(error)}")


def _in_a_process(job: Job) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(job, time.time()))
    try:
        with blocked(signal.SIGHUP), variables(agreed()):  # it is ended below
            process.start()
        process.join()
    finally:
        if process.is_alive():  # interrupted: its signal handler shuts it down cleanly
            process.terminate()
            process.join()
