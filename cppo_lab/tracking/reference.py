"""The paper's curves (`reference_curves.py`) as MLflow runs, so that one report serves the paper and our own
sweeps: each becomes a run of the experiment `paper`, under one parent for each sweep as our runs are.
"""

from collections.abc import Callable, Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric, Run, RunTag

from cppo_lab import schema
from cppo_lab.tracking import address
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.history import recorded_status
from cppo_lab.tracking.parents import SweepText, ensure_parent, nest, update_parent
from cppo_lab.tracking.read import newest_runs
from cppo_lab.tracking.reference_curves import ARTICLE, MAIN, ReferenceRun, reference_runs
from cppo_lab.tracking.ui import save_view

BATCH = 1000  # MLflow's limit on the metrics of one log_batch call
_EXPERIMENT = schema.experiment_name(schema.PAPER)
_EXPERIMENT_NOTE = f"""\
# The paper's own curves

These runs were **not trained here**. They hold the values that the paper plots
("Beyond Uniform Token-Level Trust Region in LLM Reinforcement Learning", [arXiv 2606.10968]({ARTICLE})),
read off the vector figures of its public PDF: the validation curves of the main grid and of the ablations,
and the training and warm-up diagnostics. Accuracies and rewards are fractions, response lengths are tokens
(the paper plots thousands). The paper does not give seeds, hence `{schema.TAG_SEED} = unknown`.

Written by `cppo reference import`; importing again adds nothing.
"""


def import_reference(uri: str, progress: Callable[[str], None] = lambda line: None) -> int:
    """Writes the paper's curves into the store at `uri`, and returns how many runs it added.

    A run counts as present only if its status tag says so: what an interrupted import left is deleted and
    redone, and a second import adds nothing (one import at a time: it cannot tell a leftover from another
    import's run). `progress` gets one line per run added and one at the end. Raises UserError if the
    experiment `paper` of that store was deleted.
    """
    curves = reference_runs()  # before anything is written
    if (path := address.sqlite_file(uri)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    client = open_client(uri)
    experiment_id = ensure_experiment(client, uri, _EXPERIMENT, _EXPERIMENT_NOTE)
    present = set()
    for run in _imported(client):
        if recorded_status(run.data.tags) == schema.DONE:
            present.add(run.data.tags[schema.TAG_RUN_ID])
        else:
            client.delete_run(run.info.run_id)
    missing = [curve for curve in curves if curve.run_id not in present]
    for number, curve in enumerate(missing, start=1):
        points = _write(client, experiment_id, curve)
        progress(f"reference {number}/{len(missing)}: {curve.variant} on {curve.model}, {points} points")
    progress(f"reference: {len(missing)} runs added, {len(curves) - len(missing)} were there already")
    return len(missing)


def _imported(client: MlflowClient) -> list[Run]:
    """The runs of an import; all pages at once, since deleting would shift the later ones."""
    return list(newest_runs(client, _EXPERIMENT, f"tags.`{schema.TAG_RUN_ID}` LIKE 'paper-%'"))


def _write(client: MlflowClient, experiment_id: str, run: ReferenceRun) -> int:
    """Creates one run with all its points, whose times the paper does not give; the status tag comes last."""
    tags = run.tags() | {schema.TAG_STATUS: schema.RUNNING}
    created = client.create_run(experiment_id, tags=tags, run_name=f"{run.variant} on {run.model} (paper)")
    mlflow_id = created.info.run_id
    metrics = [
        Metric(name, value, 0, step) for name, curve in run.points.items() for step, value in curve.items()
    ]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(mlflow_id, metrics=metrics[start : start + BATCH])
    client.set_terminated(mlflow_id, "FINISHED")
    client.log_batch(mlflow_id, tags=[RunTag(schema.TAG_STATUS, schema.DONE)])
    return len(metrics)


def nest_reference(uri: str, texts: Mapping[str, SweepText]) -> None:
    """Give the sweeps of the experiment `paper` their parents, descriptions and view. Idempotent.

    `texts` are the descriptions of sweeps, by name; a sweep without one is shown by its name. A run of several sweeps
    is put under the main grid first.
    """
    client = open_client(uri)
    experiment_id = ensure_experiment(client, uri, _EXPERIMENT, _EXPERIMENT_NOTE)
    orphans: dict[str, list[str]] = {}  # by sweep
    for run in _imported(client):
        prefix, tags = schema.TAG_SWEEP_PREFIX, run.data.tags
        sweeps = [tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)]
        for sweep in sweeps:
            orphans.setdefault(sweep, [])
        if sweeps and schema.TAG_PARENT not in tags:
            orphans[min(sweeps, key=lambda sweep: (sweep != MAIN, sweep))].append(run.info.run_id)
    for sweep, runs in sorted(orphans.items()):
        parent = ensure_parent(client, uri, experiment_id, sweep)
        nest(client, dict.fromkeys(runs, parent))
        update_parent(client, parent, texts.get(sweep, SweepText(sweep, sweep, "")))
    save_view(client, experiment_id)
