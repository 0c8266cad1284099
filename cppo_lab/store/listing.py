"""Opens the tracking store for reading, and lists the runs of an experiment, page by page."""

import gc
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.exceptions import MlflowException
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from cppo_lab import schema
from cppo_lab.errors import StoreAway, UserError
from cppo_lab.redaction import redacted
from cppo_lab.store import address, artifact_hosts
from cppo_lab.store.records import AttemptRecord, StoredRun, attempt_record

PAGE = 1000  # runs per request
SERVER_PAGE = 200  # to a server, which takes seconds for a page
FEW = 10  # runs that are asked for one by one
_PLAIN = re.compile(r"[\w.\-]+")


def require_answer(uri: str) -> None:
    """Raises SQLAlchemyError if a database server does not answer immediately; MLflow would retry for a minute and a
    half.
    """
    if not uri.startswith(("http://", "https://")) and address.sqlite_file(uri) is None:
        create_engine(uri, poolclass=NullPool).connect().close()


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


def _unreadable(uri: str, error: Exception) -> UserError:
    """The error to raise when MLflow fails on the store at `uri`."""
    if text := address.outdated(uri):
        return UserError(text)
    reason = address.no_answer(error) or redacted(str(error).splitlines()[0])
    return StoreAway(
        f"tracking store {redacted(uri)} cannot be read ({reason}): check that it is an "
        "MLflow store and that its server is up, or set MLFLOW_TRACKING_URI to the right one"
    )


def search_runs(
    client: MlflowClient,
    experiment_id: str,
    condition: str = "",
    newest_first: bool = False,
    view: int = ViewType.ACTIVE_ONLY,
) -> Iterator[Run]:
    """The runs of an experiment that meet MLflow's filter `condition`, read lazily. `view`: also or only deleted ones.

    Oldest first by default, so that a run that starts meanwhile does not shift others to another page.
    """
    served = str(client.tracking_uri).startswith(("http://", "https://"))
    token = None
    while True:
        with _no_collection():
            page = client.search_runs(
                [experiment_id],
                filter_string=condition,
                run_view_type=view,
                max_results=SERVER_PAGE if served else PAGE,
                order_by=[f"attributes.start_time {'DESC' if newest_first else 'ASC'}"],
                page_token=token,
            )
        yield from page
        token = page.token
        if not token:
            return


@contextmanager
def _no_collection() -> Iterator[None]:
    """Suspend garbage collection, which takes two thirds of the time in which MLflow makes the objects of a page."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def all_runs(
    client: MlflowClient, experiment_id: str, tag: str | None = None, newest_first: bool = False
) -> Iterator[Run]:
    """The runs of an experiment that have the tag `tag` (None: all of them); see `search_runs`."""
    plain = tag is not None and _PLAIN.fullmatch(tag)  # MLflow's filters cannot quote other names
    condition = f"tags.`{tag}` LIKE '%'" if plain else ""
    runs = search_runs(client, experiment_id, condition, newest_first)
    yield from (run for run in runs if tag is None or tag in run.data.tags)


def experiment_runs(client: MlflowClient, experiment: str, tag: str | None = None) -> Iterator[Run]:
    """The runs of an experiment, given by name, that have `tag` (None: all of them), newest first, read lazily; empty
    if the experiment does not exist.
    """
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        yield from all_runs(client, found.experiment_id, tag, newest_first=True)


def newest_runs(client: MlflowClient, experiment: str, condition: str = "") -> Iterator[Run]:
    """The runs of an experiment, given by name, that meet MLflow's filter `condition`, newest first, read lazily."""
    found = client.get_experiment_by_name(experiment)
    if found is not None:
        yield from search_runs(client, found.experiment_id, condition, newest_first=True)


def stored_run(run: Run) -> StoredRun:
    """An MLflow run without its metrics and parameters."""
    info = run.info
    return StoredRun(
        info.run_id, info.artifact_uri, run.data.tags, info.run_name or "", info.start_time, info.end_time
    )


def attempts(
    client: MlflowClient, experiment: str, run_ids: Collection[str]
) -> dict[str, list[AttemptRecord]]:
    """All attempts at the runs `run_ids`, newest first. Few runs are asked for one by one; for more of them, every run
    of the experiment is read once.
    """
    if len(run_ids) <= FEW:
        return {run_id: attempts_at(client, experiment, run_id) for run_id in run_ids}
    by_run: dict[str, list[AttemptRecord]] = {run_id: [] for run_id in run_ids}
    for run in experiment_runs(client, experiment, schema.TAG_RUN_ID):
        attempt = attempt_record(run.info.run_id, run.data.tags)
        if attempt.run_id in by_run:
            by_run[attempt.run_id].append(attempt)
    return by_run


def attempts_at(client: MlflowClient, experiment: str, run_id: str) -> list[AttemptRecord]:
    """All attempts at one run, newest first."""
    runs = newest_runs(client, experiment, f"tags.`{schema.TAG_RUN_ID}` = '{run_id}'")
    return [attempt_record(run.info.run_id, run.data.tags) for run in runs]
