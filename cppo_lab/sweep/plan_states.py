"""The states of the runs of a plan."""

from cppo_lab.launch.run_state import RunState
from cppo_lab.launch.snapshot import run_states
from cppo_lab.sweep.paths import runs_folder
from cppo_lab.sweep.plan import Plan


def plan_states(plan: Plan, uri: str) -> dict[str, RunState]:
    """The state of every run of a plan. Writes nothing."""
    return run_states([run.run_id for run in plan.runs], plan.core, uri, runs_folder())
