"""Lists the runs of an experiment (given by name) of the tracking store, newest first."""

import math
from collections.abc import Iterator

from mlflow import MlflowClient
from mlflow.entities import Run

from cppo_lab.store import database
from cppo_lab.store.database import PAGE, search_runs
from cppo_lab.store.reader import StoredRun


def experiment_runs(
    client: MlflowClient, experiment: str, tag: str | None = None, tags_alone: bool = False
) -> Iterator[Run]:
    """The runs of an experiment that have `tag` (None: all of them), read lazily; empty if the experiment does not
    exist.

    `tags_alone`: parameters and metrics are not needed and may be missing.
    """
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return iter(())
    return database.experiment_runs(
        client, found.experiment_id, tag, newest_first=True, tags_alone=tags_alone
    )


def newest_runs(
    client: MlflowClient, experiment: str, condition: str = "", page: int = PAGE
) -> Iterator[Run]:
    """The runs of an experiment that meet MLflow's filter `condition`, read lazily."""
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        yield from search_runs(client, found.experiment_id, condition, newest_first=True, page=page)


def stored_run(run: Run, params: bool = False) -> StoredRun:
    """An MLflow run without its metrics, and with its parameters only if requested."""
    info, data = run.info, run.data
    return StoredRun(
        info.run_id,
        info.status,
        info.artifact_uri,
        data.tags,
        data.params if params else {},
        info.run_name or "",
        info.start_time,
        info.end_time,
    )


class ClientReader:
    """Implements `reader.Reader` with MLflow's client."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    def runs(
        self,
        experiment: str,
        tag: str,
        value: str = "",
        *,
        beginning: str = "",
        params: bool = False,
        measured: str = "",
    ) -> Iterator[StoredRun]:
        if value or beginning or measured:
            wanted = f"= '{value}'" if value else f"LIKE '{beginning}%'"
            condition = f"tags.`{tag}` {wanted}" + (f" and metrics.`{measured}` > 0" if measured else "")
            found = newest_runs(self._client, experiment, condition)
        else:
            found = experiment_runs(self._client, experiment, tag, tags_alone=not params)
        yield from (stored_run(run, params) for run in found)

    def history(self, mlflow_id: str, metric: str) -> list[float]:
        points = self._client.get_metric_history(mlflow_id, metric)
        return [point.value for point in points if not math.isnan(point.value)]
