"""A search in MLflow: one run for the study, with a child run for each trial. Training runs are separate.

Runs of a search have no `cppo.run_id`, so that readers of training runs skip them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cppo_lab import schema
from cppo_lab.runs.spool import read_rows
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.client import may_fail
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.read import attempts_at, is_active, metric_history

LAST = 3  # validations in the final score


class Point(NamedTuple):
    """One validation: training step, score as a fraction, and when it was measured."""

    step: int
    score: float
    time_ms: int


OBJECTIVES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "final_score": lambda scores: fmean(scores[-LAST:]),
    "best_score": max,
    "mean_score": fmean,  # the area under the curve per step
    # 1 minus the largest drop of the score below its best so far
    "stability": lambda scores: 1.0 - max(map(sub, accumulate(scores, max), scores)),
}


def filled(curve: Sequence[tuple[Any, ...]], t_stop: int, every: int) -> list[float]:
    """The scores of a curve up to `t_stop`, validated every `every` steps; the last score fills in for missing ones.

    A point has a step and a score. A collapsed run is a result: an early collapse is no advantage.
    """
    scores = [float(point[1]) for point in curve]
    return scores + scores[-1:] * ((t_stop - int(curve[-1][0])) // every)


def score_metric(spec: RunSpec) -> str:
    """The metric that a search optimises."""
    return schema.validation_metric(schema.MEAN, spec.validation.samples)


def live_curve(folder: Path, spec: RunSpec) -> list[Point]:
    """The validations that a run has written so far, which another process may be training, by step."""
    metric = score_metric(spec)
    rows = read_rows(folder)  # one of each step, in order
    return [Point(row.step, row.metrics[metric], row.time_ms) for row in rows if metric in row.metrics]


def _past(client: MlflowClient, spec: RunSpec) -> list[StoredRun]:
    return attempts_at(client, schema.experiment_name(spec.core), spec.run_id)


def finished_curve(client: MlflowClient, spec: RunSpec, tags: Mapping[str, str]) -> list[Point] | None:
    """The validations of a training run, whose finished attempt gets the `tags` that it lacks; None if none is."""
    for attempt in _past(client, spec):
        if attempt.is_result:
            for key, value in tags.items():
                if key not in attempt.tags:
                    client.set_tag(attempt.mlflow_id, key, value)
            columns = metric_history(client, attempt.mlflow_id, score_metric(spec))
            return [Point(*point) for point in zip(*(column.tolist() for column in columns), strict=True)]
    return None


def missing_tags(client: MlflowClient, spec: RunSpec, tags: Mapping[str, str]) -> dict[str, str]:
    """Those of the `tags` that the newest attempt at a run lacks; tags that it has keep their values."""
    past = _past(client, spec)
    return {key: value for key, value in tags.items() if not past or key not in past[0].tags}


def give_reason(client: MlflowClient, spec: RunSpec, reason: str) -> None:
    """Record on the newest attempt at a run why it was ended."""
    past = _past(client, spec)
    if past and not past[0].is_result:
        client.set_tag(past[0].mlflow_id, schema.TAG_REASON, reason[:500])


def open_search(client: MlflowClient, experiment: str, study: str, note: str, before: str | None) -> str:
    """The id of the MLflow run of a study, created if it does not exist. `before`: the id that the study has stored."""
    if before is not None and is_active(client, before):
        return before
    tags = {schema.TAG_SEARCH: study, schema.TAG_STATUS: schema.RUNNING, schema.TAG_NOTE: note}
    return str(client.create_run(experiment, tags=tags, run_name=f"search {study}").info.run_id)


def update_search(client: MlflowClient, mlflow_id: str, note: str, file: Path, ended: bool) -> None:
    """Send the state of a search: its description, its file, and whether all trials are done."""
    client.log_artifact(mlflow_id, str(file))
    client.set_tag(mlflow_id, schema.TAG_NOTE, note)
    client.set_tag(mlflow_id, schema.TAG_STATUS, schema.DONE if ended else schema.RUNNING)
    client.update_run(mlflow_id, status="FINISHED" if ended else "RUNNING")


@dataclass(frozen=True)
class TrialRecord:
    """The MLflow run of one trial."""

    client: MlflowClient
    mlflow_id: str

    @classmethod
    def open(
        cls, client: MlflowClient, experiment: str, search: tuple[str, str], number: int
    ) -> "TrialRecord":
        """Begin the record of trial `number`, or continue in it. `search`: its study and MLflow run."""
        study, parent = search
        condition = f"tags.`{schema.TAG_PARENT}` = '{parent}' and tags.`{schema.TAG_TRIAL}` = '{number}'"
        tags = {
            schema.TAG_SEARCH: study,
            schema.TAG_TRIAL: str(number),
            schema.TAG_PARENT: parent,
            schema.TAG_STATUS: schema.RUNNING,
        }
        for run in client.search_runs([experiment], condition):
            client.update_run(run.info.run_id, status="RUNNING")
            client.set_tag(run.info.run_id, schema.TAG_STATUS, schema.RUNNING)
            return cls(client, run.info.run_id)
        run = client.create_run(experiment, tags=tags, run_name=f"{study} trial {number}")
        return cls(client, run.info.run_id)

    def describe(self, params: Mapping[str, Any], run_ids: Sequence[str]) -> None:
        """The trial's point and the ids of its training runs."""
        pairs = [Param(key, str(value)) for key, value in params.items()]
        self.client.log_batch(self.mlflow_id, params=pairs)
        self.client.set_tag(self.mlflow_id, schema.TAG_TRIAL_RUNS, ",".join(run_ids))

    def scores(self, points: Iterable[Point]) -> None:
        """Log points of the running mean. If the store does not answer, the chart only lacks some points."""
        metrics = [Metric("search/score", point.score, point.time_ms, point.step) for point in points]
        with may_fail("search/score"):
            self.client.log_batch(self.mlflow_id, metrics=metrics)

    def finish(self, status: str, values: Mapping[str, float], reason: str = "") -> None:
        """Record that the trial ended with `status`, and with the `values` of its objectives if it is complete."""
        for objective, value in values.items():
            self.client.log_metric(self.mlflow_id, schema.search_metric(objective), value)
        if reason:
            self.client.set_tag(self.mlflow_id, schema.TAG_REASON, reason[:500])
        self.client.set_tag(self.mlflow_id, schema.TAG_STATUS, status)
        self.client.set_terminated(self.mlflow_id, "FAILED" if status == schema.FAILED else "FINISHED")

    def pause(self) -> None:
        """Mark the trial as paused, since its worker is ending; another worker may resume it."""
        with may_fail("the end of a trial"):
            self.client.set_terminated(self.mlflow_id, "KILLED")
