"""A plan, a planned run and the differences between two runs, as text and as data.

A plan as rows has the same columns for people, spreadsheets and programs.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.errors import counted
from cppo_lab.runs.state import RunState, by_state
from cppo_lab.runs.tags import as_yaml, dotted
from cppo_lab.spec import LayoutSpec, PathsSpec
from cppo_lab.spec.job import UNCERTAINTY, CostEstimate, estimate, estimate_disk
from cppo_lab.sweep.columns import REASON, RUN_ID, aligned
from cppo_lab.sweep.cost import ESTIMATE, PREFLIGHT, Cost, CostSum, sum_costs
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import FoundRun, Plan

LEFT_OUT = "without validations, warm start and start-up"


def run_table(
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
    head = ["run id", "variant", "model", "seed"]
    head += [*(["layout", "GPU-hours"] if placed else []), "state", REASON]
    rows = []
    for run in runs:
        cost = [run.layout.name, _hours(costs.get(run.run_id))] if placed else []
        state = states[run.run_id]
        name = [run.run_id, run.variant, run.spec.model.name, str(run.spec.seed)]
        rows.append([*name, *cost, state.state, state.note])
    return aligned(
        head,
        rows,
        right={"GPU-hours"},
        width=width,
        spare=("GPU-hours", "layout", RUN_ID, "model", "seed"),
        coloured=coloured,
    )


def score_table(
    runs: Sequence[PlannedRun], statuses: Mapping[str, Mapping[str, Any]], width: int | None = None
) -> str:
    """The scores of finished runs by variant and model, from the `statuses` in their folders; empty without any.

    The interval is that of the mean over seeds in reports; of fewer than three runs, and without scipy, the range.
    Collapsed runs are counted and not averaged.
    """
    cells: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in runs:
        cells.setdefault((run.variant, run.spec.model.name), []).append(run)
    rows = []
    for (variant, model), of_cell in cells.items():
        states = [statuses[run.run_id] for run in of_cell]
        done = [status for status in states if status.get("status") == schema.DONE]
        collapsed = sum(status.get("status") == schema.COLLAPSED for status in states)
        counts = f"{len(done)} of {len(of_cell)}" + (f", {collapsed} collapsed" if collapsed else "")
        final, best = (
            [value for status in done if isinstance(value := status.get(name), float)]
            for name in ("final_mean", "best")
        )
        if done or collapsed:
            means = [
                f"{100 * sum(scores) / len(scores):.1f} %" if scores else "-" for scores in (final, best)
            ]
            rows.append([variant, model, counts, means[0], _interval(final), means[1]])
    if not rows:
        return ""
    head = ["variant", "model", "runs done", "final mean", "95 % interval", "best"]
    text = aligned(head, rows, right={"final mean", "best"}, width=width, spare=("best", "model"))
    ranges = " Without brackets: the range." if any(" to " in row[4] for row in rows) else ""
    return f"{text}\nMeans over seeds, see `cppo status` for each run.{ranges}"


def _interval(scores: Sequence[float]) -> str:
    """`[41.0, 45.2]`; the range, `41.0 to 45.2`, of two scores or without SciPy; empty for fewer."""
    if len(scores) < 2:
        return ""
    if len(scores) > 2 and find_spec("scipy") is not None:
        from cppo_lab.analysis.statistics.estimate import mean_estimate, score_limits

        mean = mean_estimate(scores)
        low, high = (None, None) if mean is None else score_limits(mean, 100)
        if low is not None:
            return f"[{low:.1f}, {high:.1f}]"
    return f"{100 * min(scores):.1f} to {100 * max(scores):.1f}"


def cost_summary(
    runs: Sequence[PlannedRun],
    costs: Mapping[str, Cost | None],
    states: Mapping[str, RunState] | None = None,
) -> str:
    """The total cost of the runs that `states` has in sentences, and whether runs fit; empty if it is unknown."""
    sums = sum_costs(costs, states) if states else []
    lines = [_sentence(part) for part in sums]
    if len(sums) > 1 and all(part.gpu_hours is not None for part in sums):
        total = interval((part.gpu_hours or 0.0, part.basis) for part in sums)
        remaining = interval((part.gpu_hours_left or 0.0, part.basis) for part in sums)
        lines.append(f"Together: {total} GPU-hours; {remaining} remaining.")
    verdicts: dict[tuple[str, str], tuple[str, float]] = {}
    for run in runs:
        cost = costs.get(run.run_id)
        if cost is not None and cost.verdict:
            name = (run.spec.model.name, run.layout.name)
            verdict, host = verdicts.get(name, (cost.verdict, 0.0))
            verdicts[name] = verdict, max(host, cost.host)
    for (model, layout), (verdict, host) in verdicts.items():
        more = f"; earlier policies take up to {host / 1e9:.0f} GB of each node's memory" if host else ""
        lines.append(f"{model} on {layout}: {verdict}{more}")
    if disks := [disk for run in runs if (disk := estimate_disk(run.spec, run.layout))]:
        stays, most = sum(disk.recorded for disk in disks), max(disk.training for disk in disks)
        lines.append(
            f"Disk: {stays / 1e9:.0f} GB of best weights stay of {counted(len(disks), 'run')}; while it trains a run "
            f"takes up to {most / 1e9:.0f} GB."
        )
        lines.append("`cppo launch --max-gpu-hours H --max-disk GB` starts only what fits.")
    return "\n".join(lines)


def _sentence(cost: CostSum) -> str:
    hours, left, unit, without = cost.hours, cost.hours_left, "hours of one process", f"; {LEFT_OUT}"
    if cost.gpu_hours is not None:
        hours, left, unit, without = cost.gpu_hours, cost.gpu_hours_left or 0.0, "GPU-hours", ""
    runs, to_come = counted(cost.runs, "run"), f"remaining ({cost.runs_left} of them)"
    if cost.basis == ESTIMATE:
        total, to_do = (interval([(part, ESTIMATE)]) for part in (hours, left))
        return f"Estimated cost: {total} {unit} for {runs}; {to_do} {to_come}."
    if cost.basis == PREFLIGHT:
        return (
            f"Cost by preflight: {_short(hours)} {unit} for {runs}; {_short(left)} {to_come}. "
            "`cppo preflight --show` has the interval."
        )
    past = "the newest past run" if cost.measured_runs == 1 else f"up to {cost.measured_runs} past runs"
    return (
        f"Measured cost: {_short(hours)} {unit} for {runs}, by the step times of {past} of each kind; {_short(left)} "
        f"{to_come}{without}."
    )


def interval(parts: Iterable[tuple[float, str]]) -> str:
    """`230 to 940`, between which the sum of hours lies, each with its basis; a number if none is an estimate."""
    low = high = 0.0
    for hours, basis in parts:
        factor = UNCERTAINTY if basis == ESTIMATE else 1.0
        low, high = low + hours / factor, high + hours * factor
    # An estimate has two digits.
    ends = (high,) if low == high else (float(f"{low:.2g}"), float(f"{high:.2g}"))
    return " to ".join(dict.fromkeys(map(_short, ends)))


def _short(hours: float) -> str:
    if 0 < hours < 0.01:
        return "below 0.01"
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def _hours(cost: Cost | None) -> str:
    if cost is None or cost.gpu_hours is None:
        return "-"
    return interval([(cost.gpu_hours, cost.basis)]) if cost.fits else "does not fit"


LISTED = (
    *("run_id", "variants", "rule", "model", "seed", "state", "reason", "step", "code_version", "layout"),
    *("hours", "gpu_hours", "cost_basis", "measured_runs"),
)


def listing(
    plan: Plan, states: Mapping[str, RunState], costs: Mapping[str, Cost | None], only: Collection[str] = ()
) -> dict[str, Any]:
    """For JSON: the runs of `plan` whose state is in `only` (empty: all), and totals over all of its runs."""
    rows = (_row(run, states[run.run_id], costs.get(run.run_id)) for run in plan.runs)
    return {
        "sweep": plan.name,
        "core": plan.core,
        "runs": [row for row in rows if not only or row["state"] in only],
        "totals": {
            "runs": len(states),
            "places": plan.places,
            "states": by_state(state.state for state in states.values()),
            "costs": [asdict(cost) for cost in sum_costs(costs, states)],
        },
    }


def _row(run: PlannedRun, state: RunState, cost: Cost | None) -> dict[str, Any]:
    """A run by the names LISTED. `step` is set for running and partial runs, `hours` and `gpu_hours` if there is a
    cost.
    """
    spec, hours = run.spec, cost if cost and cost.fits else None
    return {
        "run_id": run.run_id,
        "variants": run.variants,
        "rule": spec.rule.name,
        "model": spec.model.name,
        "seed": spec.seed,
        "state": state.state,
        "reason": " ".join(state.reason.split()),
        "step": state.step,
        "code_version": state.code_version,
        "layout": run.layout.name if core_of(spec.core).uses_layout else "",
        "hours": round(hours.hours, 4) if hours else None,
        "gpu_hours": round(hours.gpu_hours, 4) if hours and hours.gpu_hours is not None else None,
        "cost_basis": cost.basis if cost else "",
        "measured_runs": cost.measured_runs if cost else 0,
    }


def totals_line(plan: Plan, totals: Mapping[str, Any]) -> str:
    """`37 runs in 49 places: 30 done, 7 missing`, from the totals of a listing."""
    states = ", ".join(f"{n} {state}" for state, n in totals["states"].items())
    places = f" in {totals['places']} places" if plan.is_study else ""
    return f"{counted(totals['runs'], 'run')}{places}: {states}"


def describe(run: PlannedRun, paths: PathsSpec) -> dict[str, Any]:
    """The composed configuration of a run, in the order of the configs, without constants that do not apply.

    `run` alone determines `run_id`. Layout and paths are included for cores that use them, the estimate for GPUs.
    """
    sections: dict[str, Any] = {
        "run_id": run.run_id,
        "sweeps": dict(run.variants),
        "run": run.spec.model_dump(mode="json", exclude_none=True),
    }
    if core_of(run.spec.core).uses_layout:
        sections["layout"] = run.layout.model_dump(mode="json")
        sections["paths"] = paths.model_dump(mode="json")
        if (cost := estimate(run.spec, run.layout)) is not None:
            sections["estimate"] = _cost(cost, run.layout)
    return sections


def run_yaml(run: PlannedRun | None, sections: dict[str, Any]) -> str:
    """One YAML document, headed by a comment that names the run if a sweep declares it."""
    heading = f"# {run.variant} / {run.spec.model.name} / seed {run.spec.seed}\n" if run else ""
    return heading + as_yaml(sections)


def sections_of(run: FoundRun) -> dict[str, Any]:
    """The description of a run named by its id: in full if a sweep declares it, else only its configuration."""

    def given(values: dict[str, Any]) -> dict[str, Any]:
        return {
            key: given(value) if isinstance(value, dict) else value
            for key, value in values.items()
            if value is not None
        }

    if run.planned is not None and run.paths is not None:
        return describe(run.planned, run.paths)
    return {"run_id": run.run_id, "run": given(run.config)}


def _cost(cost: CostEstimate, layout: LayoutSpec) -> dict[str, Any]:
    """Hours, seconds and gigabytes (10^9 bytes), rounded to their accuracy."""
    time, memory = cost.time, cost.memory
    return {
        "gpu": f"{layout.name if layout.device_tflops else 'H100'} {layout.device_memory_gb:g} GB",
        "good_to_a_factor_of": UNCERTAINTY,
        "gpu_hours": round(time.gpu_hours, 2),
        "hours": round(time.hours, 1),
        "seconds_per_step": {
            "rollout": round(time.rollout),
            "update": round(time.update),
            "overhead": round(time.overhead),
        },
        "seconds_per_validation": round(time.validation),
        "memory": memory.verdict,
        "gigabytes_per_gpu": {
            "state": round(memory.state / 1e9, 1),
            "activations": round(memory.activations / 1e9, 1),
            "logits": round(memory.logits / 1e9, 1),
            "peak_in_training": round(memory.training / 1e9, 1),
            "peak_in_rollout": round(memory.rollout / 1e9, 1),
        },
        "earlier_policies_gigabytes_per_node": round(memory.host / 1e9, 1),
    }


ABSENT = "-"


def differences(left: FoundRun, right: FoundRun) -> dict[str, tuple[Any, Any]]:
    """Dotted keys with different values; None if a run does not have the key."""
    first, second = dotted(left.config), dotted(right.config)
    keys = [*first, *(key for key in second if key not in first)]
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def difference_text(left: FoundRun, right: FoundRun) -> str:
    """The differences side by side, or a line if there are none."""
    differing = differences(left, right)
    if not differing:
        same = "is the same run" if left.run_id == right.run_id else "has the same configuration"
        return f"{left.run_id} ({left.source}) {same} as {right.run_id} ({right.source}): no key differs"
    rows = [[key, *map(_text, values)] for key, values in differing.items()]
    sources = [f"{run.run_id}: from {run.source}" for run in (left, right)]
    return "\n".join([aligned(("", left.run_id, right.run_id), rows), "", *sources])


def difference_values(left: FoundRun, right: FoundRun) -> dict[str, Any]:
    """For JSON: the two runs, and the values of each differing key (None if a run lacks it)."""
    differing = differences(left, right)
    return {
        "runs": [{"run_id": run.run_id, "source": run.source} for run in (left, right)],
        "identical": not differing,
        "differences": differing,
    }


def _text(value: Any) -> str:
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value)
