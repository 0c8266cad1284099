"""Reads the runs of a store for read-only commands.

A SQLite file is read with the standard library, since MLflow and SQLAlchemy take five seconds to import. MLflow's
client reads every other store, and a file that needs recovery because a writer was killed.
"""

import contextlib
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cppo_lab.errors import StoreAway
from cppo_lab.store import address
from cppo_lab.store.reader import Reader, StoredRun

if TYPE_CHECKING:
    from cppo_lab.store.history import Column

PAGE = 500  # runs whose tags and parameters are read at once
_MEASURED = "INTERSECT SELECT run_uuid FROM latest_metrics WHERE key = ? AND value > 0"
BUSY_SECONDS = 20.0  # how long to wait for a writer, as MLflow does


@contextlib.contextmanager
def open_reader(uri: str) -> Iterator[Reader | None]:
    """A reader of the store at `uri`; None if it is a SQLite file that does not exist.

    Raises UserError if the store cannot be reached, or is not MLflow's.
    """
    database = address.sqlite_file(uri)
    if database is not None and not database.is_file():
        yield None
        return
    address.require_mlflow_database(uri)
    connection = _connection(uri, database) if database is not None else None
    if connection is not None:
        with contextlib.closing(connection):
            try:
                yield SqliteReader(connection)
            except sqlite3.Error as error:
                raise _unreadable(uri, error) from None
        return
    from cppo_lab.store.client import open_client
    from cppo_lab.store.listing import ClientReader

    yield ClientReader(open_client(uri))


def _unreadable(uri: str, error: sqlite3.Error) -> StoreAway:
    return StoreAway(
        f"tracking store {uri} cannot be read: {error}: wait for the program that writes to it, or put back a copy"
    )


def _connection(uri: str, database: Path) -> sqlite3.Connection | None:
    """A connection that cannot write; None if the tables cannot be read through one.

    Raises UserError for a store that another program keeps locked.
    """
    connection = None
    try:
        connection = sqlite3.connect(
            f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS
        )
        for table in ("experiments", "runs", "tags", "params", "metrics", "latest_metrics"):
            connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchall()  # noqa: S608  the names above
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        if error.sqlite_errorname == "SQLITE_BUSY":
            raise _unreadable(uri, error) from None
        return None
    return connection


class SqliteReader:
    """Implements `Reader` on MLflow's tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

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
        chosen, values = "SELECT run_uuid FROM tags WHERE key = ?", [tag]
        if value:
            chosen, values = f"{chosen} AND value = ?", [*values, value]
        if beginning:
            chosen, values = f"{chosen} AND substr(value, 1, length(?)) = ?", [*values, beginning, beginning]
        if measured:
            chosen, values = f"{chosen} {_MEASURED}", [*values, measured]
        heads = self._connection.execute(
            "SELECT run_uuid, runs.artifact_uri, runs.name, start_time, end_time FROM runs "  # noqa: S608  `chosen` is of literals
            "JOIN experiments USING (experiment_id) WHERE experiments.name = ? "
            f"AND runs.lifecycle_stage = 'active' AND run_uuid IN ({chosen}) ORDER BY start_time DESC, run_uuid",
            [experiment, *values],
        ).fetchall()
        for start in range(0, len(heads), PAGE):
            page = heads[start : start + PAGE]
            ids = [head[0] for head in page]
            tags = self._texts("tags", ids)
            found = self._texts("params", ids) if params else {}
            for mlflow_id, artifact_uri, name, start_ms, end_ms in page:
                own, set_to = tags.get(mlflow_id, {}), found.get(mlflow_id, {})
                yield StoredRun(mlflow_id, artifact_uri or "", own, set_to, name or "", start_ms, end_ms)

    def history(self, mlflow_id: str, metric: str) -> list[float]:
        rows = self._connection.execute(
            "SELECT value FROM metrics WHERE run_uuid = ? AND key = ? AND NOT is_nan "
            "ORDER BY timestamp, step, value",
            (mlflow_id, metric),
        )
        return [float(value) for (value,) in rows]

    def metric_names(self, mlflow_ids: Sequence[str]) -> dict[str, list[str]]:
        """The metrics with points of each run, sorted; runs without any are left out."""
        found: dict[str, list[str]] = defaultdict(list)
        for start in range(0, len(mlflow_ids), PAGE):
            page = mlflow_ids[start : start + PAGE]
            query = (
                f"SELECT run_uuid, key FROM latest_metrics WHERE run_uuid IN ({_marks(page)}) ORDER BY key"  # noqa: S608  marks alone
            )
            for mlflow_id, key in self._connection.execute(query, page):
                found[mlflow_id].append(key)
        return found

    def columns(self, mlflow_id: str, metrics: Sequence[str]) -> "dict[str, Column]":
        """Steps, values and times of some metrics of a run; if a step was logged twice, the last value counts."""
        from cppo_lab.store.history import last_of_each_step  # imports numpy, which `cppo plan` does without

        points: dict[str, list[tuple[int, float, int]]] = defaultdict(list)
        for start in range(0, len(metrics), PAGE):
            page = metrics[start : start + PAGE]
            query = (
                "SELECT key, step, CASE WHEN is_nan THEN NULL ELSE value END, timestamp FROM metrics "  # noqa: S608  marks alone
                f"WHERE run_uuid = ? AND key IN ({_marks(page)}) ORDER BY timestamp, step, value"
            )
            for key, step, value, time_ms in self._connection.execute(query, (mlflow_id, *page)):
                points[key].append((step, math.nan if value is None else value, time_ms))
        return {name: last_of_each_step(own) for name, own in points.items()}

    def _texts(self, table: str, ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Tags or parameters by run."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        query = f"SELECT run_uuid, key, value FROM {table} WHERE run_uuid IN ({_marks(ids)})"  # noqa: S608  `table` is one of two literals
        for mlflow_id, key, value in self._connection.execute(query, ids):
            found[mlflow_id][key] = value
        return found


def _marks(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))
