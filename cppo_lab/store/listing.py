"""Opens the tracking store for reading, and lists the runs of an experiment."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.errors import StoreAway, UserError
from cppo_lab.redaction import redacted
from cppo_lab.store import address, artifact_hosts, database
from cppo_lab.store.database import PAGE, require_answer, search_runs
from cppo_lab.store.reader import StoredRun

WHOLE_PAGE = 200  # runs per request with all parameters and metrics; a server takes seconds for a page


def open_store(uri: str) -> MlflowClient:
    """A client that reads the store at `uri`. Raises SQLAlchemyError if it is a database server that does not
    answer.
    """
    require_answer(uri)
    artifact_hosts.guard()
    return MlflowClient(uri)


@contextmanager
def reading(uri: str) -> Iterator[MlflowClient]:
    """A client that reads the store at `uri`. Raises UserError if MLflow fails on the store meanwhile."""
    try:
        yield open_store(uri)
    except (MlflowException, SQLAlchemyError) as error:
        raise _unreadable(uri, error) from error


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """The id of the experiment `name`. Raises UserError if there is none, or if it was deleted."""
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "active":
        return found.experiment_id
    if found is not None:
        raise UserError(
            f"experiment {name!r} of {redacted(uri)} was deleted: restore it with "
            f"`mlflow experiments restore --experiment-id {found.experiment_id}`"
        )
    known = sorted(entry.name for entry in client.search_experiments(view_type=ViewType.ACTIVE_ONLY))
    remedy = "cppo reference import" if name == schema.experiment_name(schema.PAPER) else "cppo launch SWEEP"
    raise UserError(
        f"experiment {name!r} does not exist in {redacted(uri)}: it has {', '.join(known) or 'none'}; "
        f"run `{remedy}` first, or set MLFLOW_TRACKING_URI to the store that holds it"
    )


def all_runs(client: MlflowClient, experiment_id: str, tag: str | None = None) -> Iterator[Run]:
    """The runs of an experiment that have the tag `tag` (None: all of them), oldest first."""
    return database.experiment_runs(client, experiment_id, tag, page=WHOLE_PAGE)


def _unreadable(uri: str, error: Exception) -> UserError:
    """The error to raise when MLflow fails on the store at `uri`."""
    if text := address.outdated(uri):
        return UserError(text)
    reason = address.no_answer(error) or redacted(str(error).splitlines()[0])
    return StoreAway(
        f"tracking store {redacted(uri)} cannot be read ({reason}): check that it is an "
        "MLflow store and that its server is up, or set MLFLOW_TRACKING_URI to the right one"
    )


def experiment_runs(
    client: MlflowClient, experiment: str, tag: str | None = None, tags_alone: bool = False
) -> Iterator[Run]:
    """The runs of an experiment, given by name, that have `tag` (None: all of them), newest first, read lazily; empty
    if the experiment does not exist.

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
    """The runs of an experiment, given by name, that meet MLflow's filter `condition`, newest first, read lazily."""
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        yield from search_runs(client, found.experiment_id, condition, newest_first=True, page=page)


def stored_run(run: Run, params: bool = False) -> StoredRun:
    """An MLflow run without its metrics, and with its parameters only if requested."""
    info, data = run.info, run.data
    return StoredRun(
        info.run_id,
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
