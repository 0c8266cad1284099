"""What runs need on this machine, checked before any of them starts."""

import sys
from typing import TYPE_CHECKING

from cppo_lab.errors import UserError
from cppo_lab.sweep.paths import runs_folder
from cppo_lab.tracking.address import require_place, sqlite_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cppo_lab.sweep.compose import Composed
    from cppo_lab.sweep.plan import Plan


def known_store(uri: str) -> str:
    """`uri`, if the store can be there; a note on standard error if somebody has named one that is not there yet.

    Raises StoreAway for a SQLite file in a folder that does not exist.
    """
    if note := require_place(uri):
        print(f"cppo: note: {note}", file=sys.stderr)
    return uri


def require_plan(found: "Plan", uri: str) -> None:
    """See that what the runs of a plan need is here, before any of them is started.

    Raises UserError naming everything that is missing, ModuleNotFoundError for a package that every run needs.
    """
    from cppo_lab.sweep.compose import Composed

    _require_packages(found.core, found.launcher.name)
    kinds = {(run.spec.model.name, run.layout.name): run for run in found.runs}
    require_machine(
        [
            Composed(
                run.spec, run.layout, found.paths, found.launcher, found.tracking, run.resources, run.run_id
            )
            for run in kinds.values()
        ],
        uri,
    )


def _require_packages(core: str, launcher: str) -> None:
    """Raises ModuleNotFoundError for a package without which nothing could be started, or no run could train."""
    import importlib.util

    from cppo_lab.core_records import BUILT_IN
    from cppo_lab.launch.launchers import launcher_of, load_launcher

    load_launcher(launcher)
    # A queue's nodes have packages of their own, and what another package's core needs it says itself.
    if core in BUILT_IN and launcher_of(launcher).one_machine and importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


def require_machine(kinds: "Sequence[Composed]", uri: str) -> None:
    """See that what these kinds of runs need is here, if their core uses a layout.

    Raises UserError naming everything that is missing.
    """
    from cppo_lab.core_records import core_of
    from cppo_lab.launch.launchers import launcher_of

    if not core_of(kinds[0].run.core).uses_layout or not launcher_of(kinds[0].launcher.name).one_machine:
        return  # a cluster's nodes are other machines than this one
    from cppo_lab.doctor import MISSING, examine

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
