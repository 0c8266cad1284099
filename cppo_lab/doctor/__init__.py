"""`cppo doctor`: what this machine has and lacks for one run, line by line, with what to do. Writes nothing."""

from collections.abc import Sequence
from pathlib import Path

from cppo_lab.doctor.check import MISSING, Check
from cppo_lab.doctor.core_checks import checks_of
from cppo_lab.doctor.inputs import check_data, check_model, check_store
from cppo_lab.doctor.machine import check_devices, check_machine
from cppo_lab.doctor.packages import check_launcher, check_packages
from cppo_lab.doctor.slurm import check_slurm
from cppo_lab.launch.slurm.settings import SlurmSpec
from cppo_lab.sweep.compose import Composed

__all__ = ["MISSING", "Check", "examine", "lines", "ready"]


def examine(composed: Composed, uri: str, runs: Path, interfaces: bool = True) -> list[Check]:
    """Everything that the run needs of this machine, of the store at `uri` and of the folder `runs`.

    Looking at a core's `interfaces` may take seconds; the check of versions is enough before a launch.
    """
    run, layout, paths = composed.run, composed.layout, composed.paths
    launcher = composed.launcher
    slurm = launcher if isinstance(launcher, SlurmSpec) else None
    boxed = slurm is not None and slurm.container.runtime is not None
    return [
        # What a container has is in its image.
        *(() if boxed else check_packages(run, layout)),
        *check_launcher(launcher.name),
        *(checks_of(run.core).interfaces() if interfaces and not boxed else ()),
        # Slurm's nodes have their own devices; this machine only submits.
        *(check_slurm(composed.resources, runs, slurm) if slurm else check_devices(run, layout)),
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
