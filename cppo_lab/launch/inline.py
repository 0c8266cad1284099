"""One job after the other in this process; those that need it each in a fresh one."""

import multiprocessing
from collections.abc import Callable, Sequence

from cppo_lab.launch.base import Event, J, Job, LauncherSpec
from cppo_lab.run import AlreadyRunning, describe


def launch_inline(jobs: Sequence[J], spec: LauncherSpec, report: Callable[[Event[J]], None]) -> None:
    """Run the jobs here; a failure is said and the next one starts."""
    for job in jobs:
        report(Event("started", job))
        if job.fresh_process:
            _in_a_process(job)
        else:
            _run(job)
        report(Event("ended", job))


def _run(job: Job) -> None:
    try:
        job.run()
    except AlreadyRunning as error:
        print(error)
    except Exception as error:  # noqa: BLE001 - a run has recorded it; the others go on
        print(f"{job.name} failed: {describe(error)}")


def _in_a_process(job: Job) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(job,))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():  # interrupted: its own handler ends it in order
            process.terminate()
            process.join()
