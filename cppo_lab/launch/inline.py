"""One run after the other in this process; those of verl each in a fresh one."""

import multiprocessing
from collections.abc import Callable, Sequence

from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.run import AlreadyRunning, Attempt, describe, execute


def launch_inline(attempts: Sequence[Attempt], spec: LauncherSpec, report: Callable[[Event], None]) -> None:
    """Run the attempts here; a failure is recorded and the next one starts."""
    for attempt in attempts:
        report(Event("started", attempt))
        if attempt.spec.core == "verl":
            _in_a_process(attempt)
        else:
            _run(attempt)
        report(Event("ended", attempt))


def _run(attempt: Attempt) -> None:
    try:
        execute(attempt)
    except AlreadyRunning as error:
        print(error)
    except Exception as error:  # noqa: BLE001 - execute has recorded it; the sweep goes on
        print(f"run {attempt.spec.run_id} failed: {describe(error)}")


def _in_a_process(attempt: Attempt) -> None:
    """Run an attempt where neither Ray nor verl is loaded yet.

    Both read the environment when they are, and Ray keeps the first run's token: the next one could not log in.
    """
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(attempt,))
    process.start()
    try:
        process.join()
    finally:
        if process.is_alive():  # interrupted: its own handler ends it in order
            process.terminate()
            process.join()
