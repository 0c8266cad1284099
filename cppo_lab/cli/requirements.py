"""What runs need of this machine: seen to before any of them is started."""

from typing import TYPE_CHECKING

from cppo_lab.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cppo_lab.sweep.compose import Composed
    from cppo_lab.sweep.plan import Plan


def require_plan(found: "Plan", uri: str) -> None:
    """See that what the runs of a plan need is here, before any of them is started.

    Raises UserError naming everything that is missing.
    """
    from cppo_lab.sweep.compose import Composed

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


def require_machine(kinds: "Sequence[Composed]", uri: str) -> None:
    """See that what these kinds of runs need is here, if their core uses a layout.

    Raises UserError naming everything that is missing.
    """
    from cppo_lab.core_records import core_of
    from cppo_lab.launch.launchers import launcher_of

    if not core_of(kinds[0].run.core).uses_layout or not launcher_of(kinds[0].launcher.name).one_machine:
        return  # a cluster's nodes are other machines than this one
    from cppo_lab.doctor import MISSING, examine
    from cppo_lab.sweep.paths import runs_folder

    missing = []
    for composed in kinds:
        checks = examine(composed, uri, runs_folder(), interfaces=False)
        missing += [check.line for check in checks if check.status == MISSING and check.line not in missing]
    if missing:
        raise UserError(
            "runs of this sweep cannot start here (see `cppo doctor`):\n  " + "\n  ".join(missing)
        )
