"""Checks what this machine has and lacks for a run: `cppo doctor`, and every launch before it starts a run.

Guarantees of this package:

- Each line has a verdict and, if something is missing, the remedy (`check.py`).
- Nothing is written or downloaded, and a missing package is a finding, not an error.
- What a core or a launcher needs is checked by its list (`check.py`, `slurm.py`, `verl.py`).

Begin with `check.py` and `machine.py`. docs/verl.md shows an example.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from cppo_lab.core_records import BUILT_IN, core_of
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
from cppo_lab.errors import UserError, printable
from cppo_lab.files import runs_folder
from cppo_lab.launch.launchers import launcher_of, load_launcher
from cppo_lab.sweep.compose import Composed
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.address import sqlite_file

__all__ = ["MISSING", "Check", "examine", "lines", "ready", "require_machine", "require_plan"]


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
        # A cluster's nodes have the devices; this machine only submits.
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


def require_plan(plan: Plan, uri: str) -> None:
    """See that what the runs of a plan need is here, before any of them is started.

    Raises UserError naming everything that is missing, ModuleNotFoundError for a package that every run needs.
    """
    load_launcher(plan.launcher.name)
    # A queue's nodes have other packages, and what another package's core needs it says itself.
    one_machine = launcher_of(plan.launcher.name).one_machine
    if plan.core in BUILT_IN and one_machine and importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    kinds = {(run.spec.model.name, run.layout.name): run for run in plan.runs}
    require_machine(
        [
            Composed(
                run.spec, run.layout, plan.paths, plan.launcher, plan.tracking, run.resources, run.run_id
            )
            for run in kinds.values()
        ],
        uri,
    )


def require_machine(kinds: Sequence[Composed], uri: str) -> None:
    """See that what these kinds of runs need is here, if their core uses a layout.

    Raises UserError naming everything that is missing.
    """
    if not core_of(kinds[0].run.core).uses_layout or not launcher_of(kinds[0].launcher.name).one_machine:
        return  # a cluster's nodes are other machines than this
    missing = []
    for composed in kinds:
        checks = examine(composed, uri, runs_folder(), interfaces=False)
        if sqlite_file(uri) is None:  # a launch asks a server itself, and goes on with what it can without it
            checks = [check for check in checks if check.name != "MLflow store"]
        missing += [check.line for check in checks if check.status == MISSING and check.line not in missing]
    if missing:
        raise UserError(
            "runs of this sweep cannot start here (see `cppo doctor`):\n  " + "\n  ".join(missing)
        )
