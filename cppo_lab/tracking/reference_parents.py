"""The paper's runs under one parent for each sweep, as our own runs are, so that both look alike in MLflow's page."""

from collections.abc import Mapping

from cppo_lab import schema
from cppo_lab.store.client import open_client
from cppo_lab.store.listing import newest_runs
from cppo_lab.tracking.parents import SweepText, ensure_parent, nest, update_parent
from cppo_lab.tracking.reference_curves import MAIN
from cppo_lab.tracking.ui import save_view


def nest_reference(uri: str, texts: Mapping[str, SweepText]) -> None:
    """Give the sweeps of the experiment `paper` their parents, descriptions and view. Idempotent.

    `texts` are the descriptions of sweeps, by name; a sweep without one is shown by its name. A run of several sweeps
    is put under the main grid first.
    """
    client = open_client(uri)
    name = schema.experiment_name(schema.PAPER)
    sweeps: dict[str, list[str]] = {}  # of each run, by MLflow id
    experiment_id, nested = "", set()
    for run in newest_runs(client, name, f"tags.`{schema.TAG_RUN_ID}` LIKE 'paper-%'"):
        experiment_id = run.info.experiment_id
        prefix = schema.TAG_SWEEP_PREFIX
        found = [tag.removeprefix(prefix) for tag in run.data.tags if tag.startswith(prefix)]
        sweeps[run.info.run_id] = sorted(found, key=lambda sweep: (sweep != MAIN, sweep))
        if schema.TAG_PARENT in run.data.tags:
            nested.add(run.info.run_id)
    every = sorted({sweep for found in sweeps.values() for sweep in found})
    parents = {sweep: ensure_parent(client, uri, experiment_id, sweep) for sweep in every}
    nest(client, {run: parents[found[0]] for run, found in sweeps.items() if found and run not in nested})
    for sweep, parent in parents.items():
        update_parent(client, parent, texts.get(sweep, SweepText(sweep, sweep, "")))
    if experiment_id:
        save_view(client, experiment_id)
