"""A plan as text: its runs, their states, and what they cost where GPUs are needed."""

from collections.abc import Mapping, Sequence

from cppo_lab.estimate import UNCERTAINTY, Estimate, estimate
from cppo_lab.launch.reconcile import State
from cppo_lab.sweep.enumerate import PlannedRun


def table(runs: Sequence[PlannedRun], states: Mapping[str, State]) -> str:
    """Runs and their states as aligned text; runs of the verl core with their layout and GPU-hours."""
    costs = {run.run_id: estimate(run.spec, run.layout) for run in runs}
    placed = any(run.spec.core == "verl" for run in runs)
    head = ["run id", "variant", "model", "seed", *(["layout", "GPU-hours"] if placed else []), "state"]
    rows = []
    for run in runs:
        cost = [run.layout.name, _hours(costs[run.run_id])] if placed else []
        name = [run.run_id, run.variant, run.spec.model.name, str(run.spec.seed)]
        rows.append([*name, *cost, states[run.run_id].state])
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    right = head.index("GPU-hours") if placed else -1
    lines = [
        "  ".join(
            cell.rjust(width) if i == right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    ]
    for run in runs:
        if states[run.run_id].reason:
            lines.append(f"{run.run_id} {states[run.run_id].state}: {states[run.run_id].reason}")
    return "\n".join(lines)


def cost_summary(runs: Sequence[PlannedRun]) -> str:
    """The cost of all runs together, one sentence per thing to know; empty if no run needs a GPU."""
    found = [cost for run in runs if (cost := estimate(run.spec, run.layout)) is not None]
    if not found:
        return ""
    fitting = [cost.time.gpu_hours for cost in found if cost.memory.fits]
    lines = [
        f"Estimated cost: {sum(fitting):.0f} GPU-hours of an H100 80 GB for {len(fitting)} runs, "
        f"good to a factor of {UNCERTAINTY:g} either way."
    ]
    verdicts: dict[tuple[str, str], str] = {}
    for run in runs:
        cost = estimate(run.spec, run.layout)
        if cost is not None:
            verdicts.setdefault((run.spec.model.name, run.layout.name), cost.memory.verdict)
    lines += [f"{model} on {layout}: {verdict}" for (model, layout), verdict in verdicts.items()]
    return "\n".join(lines)


def _hours(cost: Estimate | None) -> str:
    if cost is None:
        return "-"
    return f"{cost.time.gpu_hours:.0f}" if cost.memory.fits else "does not fit"
