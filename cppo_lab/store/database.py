"""The runs of an experiment: page by page from a server, or directly from the tables of a database store.

MLflow's search of a database creates a SQLAlchemy object for every tag, parameter and metric, which takes a millisecond
and 160 KB per run. Here they are read as rows. The resulting runs are equal (tests/store/test_database.py), except for
their datasets and models, which we do not use.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunData, RunInfo, RunTag, ViewType
from sqlalchemy import Connection, TableClause, column, create_engine, select, table
from sqlalchemy.pool import NullPool

from cppo_lab.store.address import no_collection, sqlite_file
from cppo_lab.store.exclusive import deferred_for

PAGE = 500  # runs per query, and per request to a server
_PLAIN = re.compile(r"[\w.\-]+")
_HEAD = ("run_uuid", "name", "user_id", "status", "start_time", "end_time", "lifecycle_stage", "artifact_uri")
_LAST = ("value", "timestamp", "step", "is_nan")
_RUNS = table("runs", *map(column, (*_HEAD, "experiment_id")))
_TAGS = table("tags", *map(column, ("run_uuid", "key", "value")))
_PARAMS = table("params", *map(column, ("run_uuid", "key", "value")))
_METRICS = table("latest_metrics", *map(column, ("run_uuid", "key", *_LAST)))


def is_database(uri: str) -> bool:
    """Whether the store at `uri` is a database that this process opens itself."""
    return not uri.startswith(("http://", "https://"))


def require_answer(uri: str) -> None:
    """Raises SQLAlchemyError if a database server does not answer immediately; MLflow would retry for a minute and a
    half.
    """
    if not is_database(uri) or sqlite_file(uri) is not None:
        return
    create_engine(uri, poolclass=NullPool).connect().close()


def experiment_runs(
    client: MlflowClient,
    experiment_id: str,
    tag: str | None = None,
    newest_first: bool = False,
    tags_alone: bool = False,
    page: int = PAGE,
) -> Iterator[Run]:
    """The runs of an experiment that have the tag `tag` (None: all of them), read lazily.

    Oldest first by default, so that a run that starts meanwhile does not shift others to another page. `tags_alone`:
    parameters and metrics are not needed and may be missing. `page`: runs per request.
    """
    uri = str(client.tracking_uri)
    if is_database(uri):
        yield from database_runs(uri, experiment_id, tag, newest_first, tags_alone)
        return
    named = tag is not None and _PLAIN.fullmatch(tag)  # MLflow's filters cannot quote other names
    condition = f"tags.`{tag}` LIKE '%'" if named else ""
    found = search_runs(client, experiment_id, condition, newest_first, page)
    yield from (run for run in found if tag is None or tag in run.data.tags)


def search_runs(
    client: MlflowClient,
    experiment_id: str,
    condition: str,
    newest_first: bool,
    page: int,
    view: int = ViewType.ACTIVE_ONLY,
) -> Iterator[Run]:
    """The runs of an experiment that meet MLflow's filter `condition`, by MLflow's own search. `view`: also or only
    deleted ones.
    """
    token = None
    while True:
        with no_collection():
            runs = client.search_runs(
                [experiment_id],
                filter_string=condition,
                run_view_type=view,
                max_results=page,
                order_by=[f"attributes.start_time {'DESC' if newest_first else 'ASC'}"],
                page_token=token,
            )
        yield from runs
        token = runs.token
        if not token:
            return


def database_runs(
    uri: str, experiment_id: str, tag: str | None = None, newest_first: bool = False, tags_alone: bool = False
) -> Iterator[Run]:
    """The runs of an experiment that are not deleted, ordered by start time; only those with `tag` if it is given.

    `tags_alone`: without parameters and metrics. The store must have been opened by MLflow's client before, which
    creates missing tables and refuses other schema versions. Raises SQLAlchemyError if the database fails.
    """
    asked = select(*(_RUNS.c[name] for name in _HEAD)).where(
        _RUNS.c.experiment_id == int(experiment_id), _RUNS.c.lifecycle_stage == "active"
    )
    if tag is not None:
        asked = asked.where(_RUNS.c.run_uuid.in_(select(_TAGS.c.run_uuid).where(_TAGS.c.key == tag)))
    begun = _RUNS.c.start_time.desc() if newest_first else _RUNS.c.start_time.asc()
    engine = create_engine(uri, poolclass=NullPool)
    known: dict[str, str] = {}  # shared values, since most runs have the same ones
    with engine.connect() as connection:
        with deferred_for(uri):
            heads = connection.execute(asked.order_by(begun, _RUNS.c.run_uuid)).all()
        for start in range(0, len(heads), PAGE):
            page = heads[start : start + PAGE]
            with no_collection(), deferred_for(uri):
                runs = _runs(connection, experiment_id, page, tags_alone, known)
            yield from runs


def _runs(
    connection: Connection, experiment_id: str, heads: Sequence[Any], tags_alone: bool, known: dict[str, str]
) -> list[Run]:
    ids = [head.run_uuid for head in heads]
    tags = _texts(connection, _TAGS, RunTag, ids, known)
    params: dict[str, list[Param]] = {}
    metrics: dict[str, list[Metric]] = {}
    if not tags_alone:
        params, metrics = _texts(connection, _PARAMS, Param, ids, known), _last_points(connection, ids)
    return [
        Run(
            RunInfo(
                run_id=head.run_uuid,
                run_name=head.name,
                experiment_id=experiment_id,
                user_id=head.user_id,
                status=head.status,
                start_time=head.start_time,
                end_time=head.end_time,
                lifecycle_stage=head.lifecycle_stage,
                artifact_uri=head.artifact_uri,
            ),
            RunData(metrics.get(head.run_uuid), params.get(head.run_uuid), tags.get(head.run_uuid)),
        )
        for head in heads
    ]


def _texts(
    connection: Connection, source: TableClause, kind: Any, ids: Sequence[str], known: dict[str, str]
) -> dict[str, list[Any]]:
    """Tags or parameters by run."""
    found = defaultdict(list)
    for run, key, value in _rows(connection, source, ids):
        found[run].append(kind(sys.intern(key), known.setdefault(value, value)))
    return found


def _last_points(connection: Connection, ids: Sequence[str]) -> dict[str, list[Metric]]:
    """The last point of each metric by run."""
    found = defaultdict(list)
    for run, key, value, time_ms, step, is_nan in _rows(connection, _METRICS, ids):
        found[run].append(Metric(sys.intern(key), float("nan") if is_nan else value, time_ms, step))
    return found


def _rows(connection: Connection, source: TableClause, ids: Sequence[str]) -> Sequence[Any]:
    """All columns of the rows of these runs."""
    return connection.execute(select(*source.c).where(source.c.run_uuid.in_(ids))).all()
