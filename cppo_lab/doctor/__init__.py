"""`cppo doctor`: checks what this machine has and lacks for one run.

Guarantees of this package:

- Each line has a verdict and, if something is missing, the remedy (`check.py`).
- Nothing is written or downloaded, and a missing package is a finding, not an error.
- What a core or a launcher needs is checked by its own list (`check.py`, `slurm.py`, `verl.py`).

Begin with `check.py` and `machine.py`. docs/verl.md shows an example.
"""

from collections.abc import Sequence
from pathlib import Path

from cppo_lab.doctor.check import MISSING, Check, checks_of
from cppo_lab.doctor.machine import (
    check_data,
    check_devices,
    check_launcher,
    check_machine,
    check_model,
    check_packages,
    check_store,
)
from cppo_lab.errors import printable
from cppo_lab.launch.launchers import launcher_of
from cppo_lab.sweep.compose import Composed

__all__ = ["MISSING", "Check", "examine", "lines", "ready"]


def examine(composed: Composed, uri: str, runs: Path, interfaces: bool = True) -> list[Check]:
    """Check everything that the run needs from this machine, the store at `uri` and the folder `runs`.

    Checking a core's `interfaces` may take seconds; before a launch the check of versions is enough.
    """
    run, layout, paths = composed.run, composed.layout, composed.paths
    launcher = composed.launcher
    elsewhere = launcher_of(launcher.name).load("doctor")
    return [
        # The packages of a container are in its image.
        *(() if launcher.contained else check_packages(run, layout)),
        *check_launcher(launcher.name),
        *(checks_of(run.core).interfaces() if interfaces and not launcher.contained else ()),
        # A cluster's nodes have their own devices; this machine only submits.
        *(elsewhere(composed.resources, runs, launcher) if elsewhere else check_devices(run, layout)),
        *check_machine(run, layout, runs),
        check_model(run, paths),
        check_data(run, paths),
        check_store(uri),
    ]


def lines(checks: Sequence[Check]) -> list[str]:
    """The checks as lines of text."""
    return [printable(check.line) for check in checks]


def ready(checks: Sequence[Check]) -> bool:
    """Whether nothing that the run needs is missing."""
    return all(check.status != MISSING for check in checks)
