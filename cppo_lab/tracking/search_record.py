"""A search in MLflow: one run for the study, with a child run for each trial. Training runs are separate.

Runs of a search have no `cppo.run_id`, so that readers of training runs skip them.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.runs.spool import read_rows
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.client import fault_line
from cppo_lab.tracking.read import attempts_at

_STORE_FAULTS = (MlflowException, SQLAlchemyError, OSError)
_NOTE = "mlflow.note.content"


class Point(NamedTuple):
    """One validation: training step, score as a fraction, and when it was measured."""

    step: int
    score: float
    time_ms: int


def score_metric(spec: RunSpec) -> str:
    """The metric that a search optimises."""
    return schema.validation_metric(schema.MEAN, spec.validation.samples)


def recorded_curve(client: MlflowClient, mlflow_id: str, metric: str) -> list[Point]:
    """The validations of a run in the store, by step."""
    found = client.get_metric_history(mlflow_id, metric)  # ordered by time: the last value of a step counts
    latest = {point.step: Point(point.step, point.value, point.timestamp) for point in found}
    return [latest[step] for step in sorted(latest)]


def live_curve(folder: Path, metric: str) -> list[Point]:
    """The validations that a run has written so far, which another process may be training."""
    latest = {
        row.step: Point(row.step, row.metrics[metric], row.time_ms)
        for row in read_rows(folder)
        if metric in row.metrics
    }
    return [latest[step] for step in sorted(latest)]


def finished_id(client: MlflowClient, spec: RunSpec) -> str | None:
    """The MLflow id of the finished attempt at a training run; None if there is none."""
    past = attempts_at(client, schema.experiment_name(spec.core), spec.run_id)
    return next((one.mlflow_id for one in past if one.is_result), None)


def missing_tags(client: MlflowClient, spec: RunSpec, wanted: Mapping[str, str]) -> dict[str, str]:
    """The `wanted` tags that the newest attempt at a run lacks; tags that it has keep their values."""
    past = attempts_at(client, schema.experiment_name(spec.core), spec.run_id)
    has = client.get_run(past[0].mlflow_id).data.tags if past else {}
    return {key: value for key, value in wanted.items() if key not in has}


def tag_finished(client: MlflowClient, mlflow_id: str, wanted: Mapping[str, str]) -> None:
    """Give a finished run the `wanted` tags that it lacks."""
    has = client.get_run(mlflow_id).data.tags
    for key, value in wanted.items():
        if key not in has:
            client.set_tag(mlflow_id, key, value)


def give_reason(client: MlflowClient, spec: RunSpec, reason: str) -> None:
    """Record on the newest attempt at a run why it was ended."""
    past = attempts_at(client, schema.experiment_name(spec.core), spec.run_id)
    if past and not past[0].is_result:
        client.set_tag(past[0].mlflow_id, schema.TAG_REASON, reason[:500])


def _existing(client: MlflowClient, mlflow_id: str | None) -> Run | None:
    """The run of that id, unless somebody deleted it or the store is another one."""
    if mlflow_id is None:
        return None
    try:
        run = client.get_run(mlflow_id)
    except MlflowException:
        return None
    return run if run.info.lifecycle_stage == "active" else None


def open_search(client: MlflowClient, experiment: str, study: str, note: str, known: str | None) -> str:
    """The id of the MLflow run of a study, created if it does not exist. `known`: the id that the study has stored."""
    if _existing(client, known) is not None:
        assert known is not None
        return known
    tags = {schema.TAG_SEARCH: study, schema.TAG_STATUS: schema.RUNNING, _NOTE: note}
    created: str = client.create_run(experiment, tags=tags, run_name=f"search {study}").info.run_id
    return created


def update_search(client: MlflowClient, mlflow_id: str, note: str, file: Path, ended: bool) -> None:
    """Send the state of a search: its description, its file, and whether all trials are done."""
    client.log_artifact(mlflow_id, str(file))
    client.set_tag(mlflow_id, _NOTE, note)
    client.set_tag(mlflow_id, schema.TAG_STATUS, schema.DONE if ended else schema.RUNNING)
    client.update_run(mlflow_id, status="FINISHED" if ended else "RUNNING")


@dataclass(frozen=True)
class TrialRecord:
    """The MLflow run of one trial."""

    client: MlflowClient
    mlflow_id: str

    @classmethod
    def open(
        cls,
        client: MlflowClient,
        experiment: str,
        search: tuple[str, str],
        number: int,
        known: str | None,
    ) -> "TrialRecord":
        """Begin the record of trial `number`, or continue in the run `known`. `search`: its study and MLflow run."""
        study, parent = search
        if known is None:  # its worker may have been killed before it stored the id
            asked = f"tags.`{schema.TAG_PARENT}` = '{parent}' and tags.`{schema.TAG_TRIAL}` = '{number}'"
            known = next((run.info.run_id for run in client.search_runs([experiment], asked)), None)
        if _existing(client, known) is not None:
            assert known is not None
            client.update_run(known, status="RUNNING")
            client.set_tag(known, schema.TAG_STATUS, schema.RUNNING)
            return cls(client, known)
        tags = {
            schema.TAG_SEARCH: study,
            schema.TAG_TRIAL: str(number),
            schema.TAG_PARENT: parent,
            schema.TAG_STATUS: schema.RUNNING,
        }
        run = client.create_run(experiment, tags=tags, run_name=f"{study} trial {number}")
        return cls(client, run.info.run_id)

    def describe(self, params: Mapping[str, Any], run_ids: Sequence[str]) -> None:
        """The trial's point and the ids of its training runs."""
        pairs = [Param(key, str(value)) for key, value in params.items()]
        self.client.log_batch(self.mlflow_id, params=pairs)
        self.client.set_tag(self.mlflow_id, schema.TAG_TRIAL_RUNS, ",".join(run_ids))

    def scores(self, points: Iterable[Point]) -> None:
        """Log points of the running mean. If the store does not answer, the chart only lacks some points."""
        metrics = [Metric("search/score", one.score, one.time_ms, one.step) for one in points]
        try:
            self.client.log_batch(self.mlflow_id, metrics=metrics)
        except _STORE_FAULTS as error:
            print(
                f"tracking store did not accept search/score: {fault_line(error)}",
                file=sys.stderr,
                flush=True,
            )

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
        try:
            self.client.set_terminated(self.mlflow_id, "KILLED")
        except _STORE_FAULTS as error:
            said = f"tracking store did not accept the end of a trial: {fault_line(error)}"
            print(said, file=sys.stderr, flush=True)
