"""Nests the runs of a plan under a parent run per sweep in MLflow, whose description has the plan's state.

All of this is for display only: if the store is unreachable, the launch continues with a warning.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cppo_lab import schema
from cppo_lab.core_records import core_of
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import (
    AlreadyRunning,
    held,
    parse_variants,
    read_status,
    variants_text,
    write_status,
)
from cppo_lab.runs.spool import load_shipped
from cppo_lab.runs.state import RunFolder, RunState
from cppo_lab.runs.tags import figure_tag, merged, variants_in
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.client import STORE_FAULTS, ensure_experiment, fault_line, may_fail, open_client
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.page import SweepText, ensure_parent, register, save_view, update_parent
from cppo_lab.tracking.read import is_active

# If several launchers add the same missing tag, the store accepts a single request; the others then find the tag.
TRIES = 3


@dataclass(frozen=True)
class Parents:
    """The parents of a plan's sweeps: MLflow ids by sweep; `new` are the sweeps whose parent has no description yet.

    `colours`: see `Plan`.
    """

    colours: Mapping[str, Mapping[str, str]]
    experiment_id: str = ""
    by_sweep: Mapping[str, str] = field(default_factory=dict)
    new: frozenset[str] = frozenset()

    def of(self, run: PlannedRun) -> str:
        """The parent of the first of a run's sweeps; empty if there is none."""
        return next((self.by_sweep[sweep] for sweep in run.variants if sweep in self.by_sweep), "")

    def tags(self, run: PlannedRun, folder: RunFolder) -> dict[str, str]:
        """The tags that nest a run about to be trained, where it is already or else here, and colour its curves."""
        sweep, variant = next(iter(run.variants.items()))
        earlier = folder.record.begin.tags.get(schema.TAG_PARENT) if folder.record else ""
        parent, colour = earlier or self.of(run), {schema.TAG_COLOUR: self.colours[sweep][variant]}
        return {**colour, schema.TAG_PARENT: parent} if parent else colour


def sweep_tags(plan: Plan, run: PlannedRun) -> dict[str, str]:
    """One tag per sweep of the run, with its variant's name there; and a tag with the tables and figures of the paper
    that they feed.
    """
    tags = {schema.sweep_tag(sweep): variant for sweep, variant in run.variants.items()}
    feeds = [feed for sweep in plan.sweeps if sweep.name in run.variants for feed in sweep.feeds]
    return tags | figure_tag(feeds)


def ensure_parents(plan: Plan, uri: str, parents: Parents) -> Parents:
    """`parents` with a parent for each sweep of the plan, created if it does not exist, as their experiment is.

    Raises UserError if somebody has deleted the experiment.
    """
    name, note, experiment_id = schema.experiment_name(plan.core), core_of(plan.core).note, ""
    with contextlib.suppress(*STORE_FAULTS):  # which the parents meet, too
        experiment_id = ensure_experiment(open_client(uri), uri, name, note)
    with may_fail("the parents of the sweeps"):
        client = open_client(uri)
        by_sweep = {
            sweep.name: ensure_parent(client, uri, experiment_id, sweep.name) for sweep in plan.sweeps
        }
        new = {i for i, parent in by_sweep.items() if schema.TAG_NOTE not in client.get_run(parent).data.tags}
        return replace(parents, experiment_id=experiment_id, by_sweep=by_sweep, new=frozenset(new))
    return parents


def adopt(
    plan: Plan,
    uri: str,
    parents: Parents,
    folders: Mapping[str, RunFolder],
    elsewhere: Mapping[str, StoredRun],
) -> None:
    """Add the tags of their sweeps to finished runs that another sweep has trained, and nest those without a parent.

    The store is not asked which runs these are: their status lacks a sweep, or the parent of a sweep is new. What a run
    has of other sweeps stays.
    """
    with may_fail("the tags of finished runs"):
        client, alive = open_client(uri), set(parents.by_sweep.values())
        for run in plan.runs:
            folder, stored = folders[run.run_id], elsewhere.get(run.run_id)
            path, status = folder.path, folder.status
            if stored is None and (status.get("status") not in schema.FINISHED or "origin" in status):
                continue
            variants = variants_in(stored.tags) if stored else parse_variants(status.get("variants"))
            if run.variants.keys() <= variants.keys() and not parents.new & run.variants.keys():
                continue
            shipped = stored or load_shipped(path, uri).records.get(str(status.get("record")))
            if shipped is None or not shipped.mlflow_id:
                continue
            had = client.get_run(shipped.mlflow_id).data.tags
            sweeps = {key: value for key, value in had.items() if key.startswith(schema.TAG_SWEEP_PREFIX)}
            tags = {**merged(had, sweep_tags(plan, run)), **sweeps}
            parent = had.get(schema.TAG_PARENT, "")
            if parent and parent not in alive and is_active(client, parent):
                alive.add(parent)
            if parent not in alive:
                tags[schema.TAG_PARENT] = parents.of(run)
            for key, value in tags.items():
                if had.get(key) != value:
                    client.set_tag(shipped.mlflow_id, key, value)
            with contextlib.suppress(AlreadyRunning, OSError), held(path):
                write_status(path, {**read_status(path), "variants": variants_text(variants_in(tags))})


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
            why = "the sweep has no run there" if isinstance(error, KeyError) else fault_line(error)
            raise UserError(
                f"sweep {sweep.source}: its hypotheses could not be registered ({why}), and nothing "
                "was started: launch again when the tracking store takes them"
            ) from error


def describe_sweeps(plan: Plan, uri: str, parents: Parents, states: Mapping[str, RunState]) -> None:
    """Update the descriptions of the plan's sweeps, and the view that MLflow's page opens on."""
    if not parents.experiment_id:
        return
    with may_fail("the descriptions"):
        for tries_left in reversed(range(TRIES)):
            try:
                client = open_client(uri)
                for sweep in plan.sweeps:
                    text = SweepText(sweep.name, sweep.title, sweep.question, sweep.feeds)
                    planned = {
                        run.run_id: states[run.run_id].state
                        for run in plan.runs
                        if sweep.name in run.variants
                    }
                    update_parent(client, parents.by_sweep[sweep.name], text, planned)
                save_view(client, parents.experiment_id)
                return
            except STORE_FAULTS:
                if not tries_left:
                    raise
