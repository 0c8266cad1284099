"""`cppo doctor`: what this machine has and lacks for one run, line by line, with what to do.

What this room promises:

- It writes nothing and starts no training. Only Slurm's container check runs a job, of a few seconds.
- Each line names what was looked for, what was found, and the remedy if that is not enough (`check.py`).
- MISSING keeps a run from starting, WARNING does not; `cppo launch` stops at the same lines (core=verl).
- What is checked for one core or one launcher is named in its record (`core_checks.py`), not here.

Begin with `examine` below. `machine.py`: GPUs and disk; `packages.py`: versions; `inputs.py`: data, models, store;
`slurm.py`, `container.py`, `verl.py`: what belongs to one launcher or core.
"""

from collections.abc import Sequence
from pathlib import Path

from cppo_lab.doctor.check import MISSING, Check
from cppo_lab.doctor.core_checks import checks_of
from cppo_lab.doctor.inputs import check_data, check_model, check_store
from cppo_lab.doctor.machine import check_devices, check_machine
from cppo_lab.doctor.packages import check_launcher, check_packages
from cppo_lab.launch.launchers import launcher_of
from cppo_lab.sweep.compose import Composed

__all__ = ["MISSING", "Check", "examine", "lines", "ready"]


def examine(composed: Composed, uri: str, runs: Path, interfaces: bool = True) -> list[Check]:
    """Everything that the run needs of this machine, of the store at `uri` and of the folder `runs`.

    Looking at a core's `interfaces` may take seconds; the check of versions is enough before a launch.
    """
    run, layout, paths = composed.run, composed.layout, composed.paths
    launcher = composed.launcher
    elsewhere = launcher_of(launcher.name).load("doctor")
    return [
        # What a container has is in its image.
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
    """As printed."""
    return [check.line for check in checks]


def ready(checks: Sequence[Check]) -> bool:
    """Whether nothing that the run needs is missing."""
    return all(check.status != MISSING for check in checks)
