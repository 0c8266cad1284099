"""A plan as rows, for people, spreadsheets and programs, with the same columns for all."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.runs.state import RunState
from cppo_lab.sweep.cost import Cost, CostSum, sum_costs
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import Plan


@dataclass(frozen=True)
class ListingRow:
    """One run of a plan. `step` is set for running and partial runs; `hours` and `gpu_hours` if there is a cost."""

    run_id: str
    variants: dict[str, str]
    rule: str
    model: str
    seed: int
    state: str
    reason: str
    step: int | None
    code_version: str
    layout: str
    hours: float | None
    gpu_hours: float | None
    cost_basis: str
    measured_runs: int


@dataclass(frozen=True)
class SweepListing:
    """The selected rows, and totals over all runs of the plan."""

    plan: Plan
    rows: tuple[ListingRow, ...]
    states: dict[str, int]  # state -> number of runs, in the order of schema.STATES
    places: int  # a run shared by two sweeps counts twice
    costs: tuple[CostSum, ...]


def make_listing(
    plan: Plan, states: Mapping[str, RunState], costs: Mapping[str, Cost | None], only: Collection[str] = ()
) -> SweepListing:
    """The runs of `plan` whose state is in `only` (empty: all)."""
    counts = Counter(state.state for state in states.values())
    rows = (_row(run, states[run.run_id], costs.get(run.run_id)) for run in plan.runs)
    return SweepListing(
        plan=plan,
        rows=tuple(row for row in rows if not only or row.state in only),
        states={state: counts[state] for state in schema.STATES if counts[state]},
        places=plan.places,
        costs=tuple(sum_costs(costs, lambda run_id: states[run_id].state in schema.FINISHED)),
    )


def _row(run: PlannedRun, state: RunState, cost: Cost | None) -> ListingRow:
    spec = run.spec
    fits = cost is not None and cost.fits
    return ListingRow(
        run_id=run.run_id,
        variants=run.variants,
        rule=spec.rule.name,
        model=spec.model.name,
        seed=spec.seed,
        state=state.state,
        reason=" ".join(state.reason.split()),
        step=state.step,
        code_version=state.code_version,
        layout=run.layout.name if core_of(spec.core).uses_layout else "",
        hours=round(cost.hours, 4) if cost and fits else None,
        gpu_hours=round(cost.gpu_hours, 4) if cost and fits and cost.gpu_hours is not None else None,
        cost_basis=cost.basis if cost else "",
        measured_runs=cost.measured_runs if cost else 0,
    )


def as_values(listing: SweepListing) -> dict[str, Any]:
    """For JSON: sweep, core, runs, totals."""
    totals: dict[str, Any] = {
        "runs": sum(listing.states.values()),
        "places": listing.places,
        "states": listing.states,
        "costs": [asdict(cost) for cost in listing.costs],
    }
    return {
        "sweep": listing.plan.name,
        "core": listing.plan.core,
        "runs": [asdict(row) for row in listing.rows],
        "totals": totals,
    }


def totals_line(listing: SweepListing) -> str:
    """`37 runs in 49 places: 30 done, 7 missing`."""
    runs = sum(listing.states.values())
    places = f" in {listing.places} places" if listing.plan.is_study else ""
    return f"{runs} run{'s' * (runs != 1)}{places}: " + ", ".join(
        f"{n} {state}" for state, n in listing.states.items()
    )


def shown_line(listing: SweepListing, only: Sequence[str]) -> str:
    """A line on how many of all runs a filter shows; empty without a filter."""
    if not only:
        return ""
    return f"{len(listing.rows)} of {sum(listing.states.values())} runs shown (--state {','.join(only)})"
