"""A plan as text: its runs, their states, and what they cost."""

from collections.abc import Mapping, Sequence

from cppo_lab.core_records import core_of
from cppo_lab.estimate import UNCERTAINTY
from cppo_lab.runs.state import RunState
from cppo_lab.sweep.columns import RUN_ID, aligned
from cppo_lab.sweep.cost import ESTIMATE, PREFLIGHT, Cost, CostSum
from cppo_lab.sweep.enumerate import PlannedRun

LEFT_OUT = "without validations, warm start and start-up"


def table(
    runs: Sequence[PlannedRun],
    states: Mapping[str, RunState],
    costs: Mapping[str, Cost | None],
    width: int | None = None,
    coloured: bool = False,
) -> str:
    """Runs and their states as aligned text, with layout and GPU-hours for cores that use a layout.

    If lines are longer than `width` (None: no limit), columns are left out and reasons are cut.
    """
    placed = any(core_of(run.spec.core).uses_layout for run in runs)
    noted = any(states[run.run_id].note for run in runs)
    head = ["run id", "variant", "model", "seed"]
    head += [*(["layout", "GPU-hours"] if placed else []), "state", *(["reason"] if noted else [])]
    rows = []
    for run in runs:
        cost = [run.layout.name, _hours(costs.get(run.run_id))] if placed else []
        state = states[run.run_id]
        name = [run.run_id, run.variant, run.spec.model.name, str(run.spec.seed)]
        rows.append([*name, *cost, state.state, *([state.note] if noted else [])])
    return aligned(
        head, rows, right={"GPU-hours"}, width=width, spare=("GPU-hours", "layout", RUN_ID), coloured=coloured
    )


def cost_summary(
    runs: Sequence[PlannedRun], costs: Mapping[str, Cost | None], sums: Sequence[CostSum]
) -> str:
    """The total cost of all runs in sentences; empty if it is unknown."""
    lines = [_sentence(one) for one in sums]
    if len(sums) > 1 and all(one.gpu_hours is not None for one in sums):
        total = sum(one.gpu_hours or 0.0 for one in sums)
        left = sum(one.gpu_hours_left or 0.0 for one in sums)
        lines.append(f"Together: {total:.0f} GPU-hours; {left:.0f} remaining.")
    verdicts: dict[tuple[str, str], str] = {}
    for run in runs:
        cost = costs.get(run.run_id)
        if cost is not None and cost.verdict:
            verdicts.setdefault((run.spec.model.name, run.layout.name), cost.verdict)
    lines += [f"{model} on {layout}: {verdict}" for (model, layout), verdict in verdicts.items()]
    return "\n".join(lines)


def _sentence(cost: CostSum) -> str:
    runs = f"{cost.runs} run" + ("" if cost.runs == 1 else "s")
    to_come = f"remaining ({cost.runs_left} of them)"
    if cost.basis == ESTIMATE:
        return (
            f"Estimated cost: {cost.gpu_hours or 0:.0f} GPU-hours of an H100 80 GB for {runs}, good to a factor of "
            f"{UNCERTAINTY:g} either way; {cost.gpu_hours_left or 0:.0f} {to_come}."
        )
    if cost.basis == PREFLIGHT:
        hours, left, unit = cost.hours, cost.hours_left, "hours of one process"
        if cost.gpu_hours is not None:
            hours, left, unit = cost.gpu_hours, cost.gpu_hours_left or 0.0, "GPU-hours"
        return (
            f"Cost by preflight: {_short(hours)} {unit} for {runs}; {_short(left)} {to_come}. "
            "`cppo preflight --show` has the interval."
        )
    past = "the newest past run" if cost.measured_runs == 1 else f"up to {cost.measured_runs} past runs"
    by = f"by the step times of {past} of each kind"
    if cost.gpu_hours is not None:
        return (
            f"Measured cost: {cost.gpu_hours:.0f} GPU-hours for {runs}, {by}; "
            f"{cost.gpu_hours_left or 0:.0f} {to_come}."
        )
    return (
        f"Measured cost: {_short(cost.hours)} hours of one process for {runs}, {by}; {_short(cost.hours_left)} "
        f"{to_come}; {LEFT_OUT}."
    )


def _short(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 10 else f"{hours:.2g}"


def _hours(cost: Cost | None) -> str:
    if cost is None or cost.gpu_hours is None:
        return "-"
    return f"{cost.gpu_hours:.0f}" if cost.fits else "does not fit"
