"""Nests the runs of a plan under a parent run per sweep in MLflow, whose description has the plan's state.

All of this is for display only: if the store is unreachable, the launch continues with a warning.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.rules.strokes import colours
from cppo_lab.runs.state import RunState
from cppo_lab.sweep.declare import Sweep
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.client import STORE_FAULTS, open_client
from cppo_lab.tracking.parents import SweepText, ensure_parent, living, nest, register, update_parent
from cppo_lab.tracking.records import AttemptRecord
from cppo_lab.tracking.ui import save_view

# If several launchers add the same missing tag, the store accepts only one; the others then find the tag.
TRIES = 3


@dataclass(frozen=True)
class Parents:
    """The parents of a plan's sweeps: MLflow ids by sweep. `alive` are these and other parents that have runs of the
    plan. `colours`: by sweep, the colours of its variants.
    """

    colours: Mapping[str, Mapping[str, str]]
    by_sweep: Mapping[str, str] = field(default_factory=dict)
    alive: frozenset[str] = frozenset()

    def of(self, run: PlannedRun, past: Sequence[AttemptRecord]) -> str:
        """The parent of a run: its existing one, or else that of the first of its sweeps; empty if there is none."""
        has = next((one.parent for one in past if one.parent in self.alive), "")
        return has or next((self.by_sweep[sweep] for sweep in run.variants if sweep in self.by_sweep), "")

    def tags(self, run: PlannedRun, past: Sequence[AttemptRecord]) -> dict[str, str]:
        """The tags that nest a run about to be trained, and give its curves their colour."""
        sweep, variant = next(iter(run.variants.items()))
        parent, look = self.of(run, past), {schema.TAG_COLOUR: self.colours[sweep][variant]}
        return {**look, schema.TAG_PARENT: parent} if parent else look


@contextlib.contextmanager
def _warn_on_store_fault(what: str) -> Iterator[None]:
    """Warn that the store did not accept `what`, and continue."""
    try:
        yield
    except (*STORE_FAULTS, UserError) as error:
        line = " ".join(str(error).split())[:300]
        print(f"tracking store did not accept {what}: {line}", file=sys.stderr, flush=True)


def sweep_colours(plan: Plan, sweep: Sweep) -> dict[str, str]:
    """The colour of each variant of a sweep, as its report has it.

    A launch of some variants gives them the colours that they have among all. Settings of an axis are variants as far
    as they are planned.
    """
    planned = dict.fromkeys(run.variants[sweep.name] for run in plan.runs if sweep.name in run.variants)
    return colours(tuple(sweep.variants) if planned.keys() <= sweep.variants.keys() else tuple(planned))


def ensure_parents(
    plan: Plan, uri: str, experiment_id: str, past: Mapping[str, Sequence[AttemptRecord]]
) -> Parents:
    """Create a parent for each sweep of the plan, and nest finished runs without a parent under it."""
    drawn = {sweep.name: sweep_colours(plan, sweep) for sweep in plan.sweeps}
    parents = Parents(drawn)
    with _warn_on_store_fault("the parents of the sweeps"):
        client = open_client(uri)
        by_sweep = {
            sweep.name: ensure_parent(client, uri, experiment_id, sweep.name) for sweep in plan.sweeps
        }
        others = {one.parent for known in past.values() for one in known}
        parents = Parents(drawn, by_sweep, frozenset({*by_sweep.values(), *living(client, others)}))
        orphans = {
            one.mlflow_id: parents.of(run, [])
            for run in plan.runs
            for one in past[run.run_id]
            if one.is_result and one.parent not in parents.alive
        }
        nest(client, orphans)
    return parents


def register_hypotheses(plan: Plan, uri: str, parents: Parents) -> None:
    """Register the hypotheses of the plan's sweeps, before any run that tests them begins.

    Raises UserError if the store does not accept them: without a registration the runs would test nothing.
    """
    for sweep in plan.sweeps:
        if not sweep.hypotheses:
            continue
        try:
            register(
                open_client(uri),
                uri,
                parents.by_sweep[sweep.name],
                plan.statement(sweep),
                plan.declared[sweep.name].settings,
                "seed" if plan.is_paired(sweep.name) else "none",
            )
        except (*STORE_FAULTS, KeyError) as error:
            raise UserError(
                f"sweep {sweep.source}: its hypotheses could not be registered ({type(error).__name__}), and nothing "
                "was started: launch again when the tracking store takes them"
            ) from error


def describe_sweeps(
    plan: Plan, uri: str, experiment_id: str, parents: Parents, states: Mapping[str, RunState]
) -> None:
    """Update the descriptions of the plan's sweeps, and the view that MLflow's page opens on."""
    with _warn_on_store_fault("the descriptions"):
        for left in reversed(range(TRIES)):
            try:
                _describe(plan, uri, experiment_id, parents, states)
                return
            except STORE_FAULTS:
                if not left:
                    raise


def _describe(
    plan: Plan, uri: str, experiment_id: str, parents: Parents, states: Mapping[str, RunState]
) -> None:
    client = open_client(uri)
    for sweep in plan.sweeps:
        if sweep.name in parents.by_sweep:
            text = SweepText(sweep.name, sweep.title, sweep.question, sweep.feeds)
            planned = {
                run.run_id: states[run.run_id].state for run in plan.runs if sweep.name in run.variants
            }
            update_parent(client, parents.by_sweep[sweep.name], text, planned)
    save_view(client, experiment_id)
