"""The states of the runs of a plan, and their names on the command line."""

from cppo_lab import schema
from cppo_lab.errors import unknown
from cppo_lab.launch.run_state import RunState
from cppo_lab.launch.snapshot import run_states
from cppo_lab.sweep.paths import runs_folder
from cppo_lab.sweep.plan import Plan


def parse_states(text: str) -> frozenset[str]:
    """The states of a comma list.

    Raises UserError for one that does not exist.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in schema.STATES:
            raise unknown("state", name, schema.STATES)
    return frozenset(names)


def plan_states(plan: Plan, uri: str) -> dict[str, RunState]:
    """The state of every run of a plan. Writes nothing."""
    return run_states([run.run_id for run in plan.runs], plan.core, uri, runs_folder())
