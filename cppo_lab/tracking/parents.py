"""The parent of a sweep's training runs in MLflow: one run per sweep and experiment, which holds the description.

It has no `cppo.run_id`, so that readers of training runs skip it, and its status is finished from the start.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.store.exclusive import exclusive
from cppo_lab.store.listing import experiment_runs
from cppo_lab.tracking.markdown import escaped
from cppo_lab.tracking.naming import name_part
from cppo_lab.tracking.sweep_note import NotedRun, SweepText, sweep_note, verdict_of

VARIANT_MEAN = "variant_mean"  # metrics of a parent only
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. ]")  # MLflow allows few characters, and no empty or dotted parts
_LONGEST_PART = 100
REPORT = "report"  # the folder of a parent's artifacts that a report fills


def ensure_parent(client: MlflowClient, uri: str, experiment_id: str, sweep: str) -> str:
    """The MLflow id of a sweep's parent, created if it does not exist.

    Launchers that create it at the same time agree on one: the oldest stays and takes over the others' runs.
    """
    with exclusive(uri):
        return _ensure_parent(client, experiment_id, sweep)


def _ensure_parent(client: MlflowClient, experiment_id: str, sweep: str) -> str:
    found = _parents(client, experiment_id, sweep)
    if not found:
        tags = {schema.TAG_SWEEP_PARENT: sweep}
        made = client.create_run(experiment_id, tags=tags, run_name=f"sweep {sweep}").info.run_id
        try:
            client.set_terminated(made, "FINISHED")
        except MlflowException:
            if client.get_run(made).info.lifecycle_stage == "active":
                raise
            # else another launcher, whose own parent is older, has removed it
        found = _parents(client, experiment_id, sweep)
    kept, *others = (run.info.run_id for run in found)
    for other in others:
        _move_runs(client, experiment_id, other, kept)
        client.delete_run(other)
    return str(kept)


def _parents(client: MlflowClient, experiment_id: str, sweep: str) -> list[Run]:
    """All existing parents of a sweep, the oldest first."""
    condition = f"tags.`{schema.TAG_SWEEP_PARENT}` = '{sweep}'"
    found = client.search_runs([experiment_id], condition)
    return sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))


def _move_runs(client: MlflowClient, experiment_id: str, old: str, new: str) -> None:
    for run in client.search_runs([experiment_id], f"tags.`{schema.TAG_PARENT}` = '{old}'"):
        client.set_tag(run.info.run_id, schema.TAG_PARENT, new)


def living(client: MlflowClient, parents: Iterable[str]) -> set[str]:
    """Those of the MLflow ids whose runs exist and are not deleted."""
    there = set()
    for parent in set(parents) - {""}:
        try:
            run = client.get_run(parent)
        except MlflowException:
            continue
        if run.info.lifecycle_stage == "active":
            there.add(parent)
    return there


def update_parent(
    client: MlflowClient, parent: str, sweep: SweepText, planned: Sequence[NotedRun] = ()
) -> None:
    """Write the description of a sweep's parent from the runs of the store and from those that are `planned`, and log
    the means of its variants.

    The states of planned runs come from the planner, those of other runs of the sweep, from earlier launches, from the
    store. The verdict stays.
    """
    run = client.get_run(parent)
    experiment = client.get_experiment(run.info.experiment_id)
    runs = noted_runs(client, experiment.name, sweep.name, planned)
    old = run.data.tags.get(schema.TAG_NOTE, "")
    note = sweep_note(sweep, runs, experiment.experiment_id, verdict_of(old))
    if note != old:
        client.set_tag(parent, schema.TAG_NOTE, note)
    now = variant_means(runs)
    new = {name: value for name, value in now.items() if run.data.metrics.get(name) != value}
    if new:
        time_ms = int(time.time() * 1000)
        client.log_batch(parent, metrics=[Metric(name, value, time_ms, 0) for name, value in new.items()])


def variant_means(runs: Iterable[NotedRun]) -> dict[str, float]:
    """`variant_mean/MODEL/VARIANT` -> the mean of the last validations of its finished runs, a fraction."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        if run.score is not None and run.state in schema.FINISHED:
            parts = (name_part(text, _NOT_IN_NAMES, _LONGEST_PART) for text in (run.model, run.variant))
            scores.setdefault("/".join((VARIANT_MEAN, *parts)), []).append(run.score)
    return {name: math.fsum(values) / len(values) for name, values in scores.items()}


def noted_runs(
    client: MlflowClient, experiment: str, sweep: str, planned: Sequence[NotedRun] = ()
) -> list[NotedRun]:
    """The runs of a sweep: first the planned ones in order, then all others in the store."""
    tag = schema.sweep_tag(sweep)
    stored: dict[str, NotedRun] = {}
    for run in experiment_runs(client, experiment, tag):
        one = _noted(run, run.data.tags[tag])
        known = stored.get(one.run_id)
        if known is None or (known.state not in schema.FINISHED and one.state in schema.FINISHED):
            stored[one.run_id] = one
    runs = []
    for plan in planned:
        there = stored.pop(plan.run_id, None)
        runs.append(plan if there is None else replace(plan, mlflow_id=there.mlflow_id, score=there.score))
    return runs + sorted(stored.values(), key=lambda one: (one.variant, one.model, one.seed))


def _noted(run: Run, variant: str) -> NotedRun:
    tags = run.data.tags
    scores = [value for name, value in run.data.metrics.items() if _is_mean(name)]
    return NotedRun(
        run_id=tags.get(schema.TAG_RUN_ID, ""),
        variant=variant,
        state=tags.get(schema.TAG_STATUS, schema.RUNNING),
        rule=tags.get(schema.TAG_RULE, ""),
        model=tags.get(schema.TAG_MODEL, ""),
        seed=tags.get(schema.TAG_SEED, ""),
        t_stop=tags.get(schema.TAG_T_STOP, ""),
        mlflow_id=run.info.run_id,
        score=scores[0] if scores else None,
        params=dict(run.data.params),
    )


def _is_mean(metric: str) -> bool:
    parsed = schema.parse_validation_metric(metric)
    return parsed is not None and parsed[0] == schema.MEAN


def log_report(client: MlflowClient, parent: str, files: Iterable[Path]) -> None:
    """Store the pages and figures of a report with the parent, as artifacts `report/<file name>`."""
    for path in files:
        client.log_artifact(parent, str(path), REPORT)


def figure(parent: str, name: str, text: str) -> str:
    """Markdown that shows the figure `name` which `log_report` has kept; `text` describes it."""
    return f"![{escaped(text)}](get-artifact?{urlencode({'path': f'{REPORT}/{name}', 'run_uuid': parent})})"


def nest(client: MlflowClient, runs: Mapping[str, str]) -> None:
    """Put runs that have ended under parents: `runs` maps the MLflow id of each to that of its parent."""
    for mlflow_id, parent in runs.items():
        client.set_tag(mlflow_id, schema.TAG_PARENT, parent)
