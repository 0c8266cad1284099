"""The paper's own curves (`reference_curves.py`) as MLflow runs, so that one report serves the paper and our own
sweeps: each becomes a run of the experiment `paper`.
"""

from collections.abc import Callable, Iterator

from mlflow.entities import Metric, Run, RunStatus, RunTag
from mlflow.tracking import MlflowClient

from cppo_lab import schema
from cppo_lab.store import address
from cppo_lab.store.client import ensure_experiment, open_client
from cppo_lab.store.reader import recorded_status
from cppo_lab.tracking.reference_curves import ARTICLE, ReferenceRun, reference_runs

BATCH = 1000  # MLflow's limit on the metrics of one log_batch call

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
    wanted = reference_runs()  # before anything is written
    path = address.sqlite_file(uri)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    client = open_client(uri)
    experiment_id = ensure_experiment(client, uri, schema.experiment_name(schema.PAPER), _EXPERIMENT_NOTE)
    present = set()
    for found in list(
        _all_runs(client, experiment_id)
    ):  # all pages first: deleting would shift the later ones
        run_id = found.data.tags.get(schema.TAG_RUN_ID, "")
        if not run_id.startswith("paper-"):
            continue  # not written by this import
        if recorded_status(found.data.tags) == schema.DONE:
            present.add(run_id)
        else:
            client.delete_run(found.info.run_id)
    missing = [run for run in wanted if run.run_id not in present]
    for number, run in enumerate(missing, start=1):
        points = _write(client, experiment_id, run)
        progress(f"reference {number}/{len(missing)}: {run.variant} on {run.model}, {points} points")
    progress(f"reference: {len(missing)} runs added, {len(wanted) - len(missing)} were there already")
    return len(missing)


def _all_runs(client: MlflowClient, experiment_id: str) -> Iterator[Run]:
    token = None
    while True:
        page = client.search_runs([experiment_id], max_results=BATCH, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _write(client: MlflowClient, experiment_id: str, run: ReferenceRun) -> int:
    """Creates one run with all its points; the status tag comes last, when everything else is there."""
    tags = run.tags() | {schema.TAG_STATUS: schema.RUNNING}
    created = client.create_run(experiment_id, tags=tags, run_name=f"{run.variant} on {run.model} (paper)")
    mlflow_id = created.info.run_id
    metrics = list(_metrics(run))
    for start in range(0, len(metrics), BATCH):
        client.log_batch(mlflow_id, metrics=metrics[start : start + BATCH])
    client.set_terminated(mlflow_id, RunStatus.to_string(RunStatus.FINISHED))
    client.log_batch(mlflow_id, tags=[RunTag(schema.TAG_STATUS, schema.DONE)])
    return len(metrics)


def _metrics(run: ReferenceRun) -> Iterator[Metric]:
    """Every point, as MLflow wants it. The paper gives no times, so all of them are 0."""
    for name, curve in run.points.items():
        for step, value in curve.items():
            yield Metric(name, value, 0, step)
