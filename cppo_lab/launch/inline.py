"""One run after the other in this process."""

from collections.abc import Callable, Sequence

from cppo_lab.launch.base import Event, LauncherSpec
from cppo_lab.run import AlreadyRunning, Attempt, describe, execute


def launch_inline(attempts: Sequence[Attempt], spec: LauncherSpec, report: Callable[[Event], None]) -> None:
    """Run the attempts here; a failure is recorded and the next one starts."""
    for attempt in attempts:
        report(Event("started", attempt))
        try:
            execute(attempt)
        except AlreadyRunning as error:
            print(error)
        except Exception as error:  # noqa: BLE001 - execute has recorded it; the sweep goes on
            print(f"run {attempt.spec.run_id} failed: {describe(error)}")
        report(Event("ended", attempt))
