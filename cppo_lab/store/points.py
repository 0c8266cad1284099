"""Points of metrics straight into a SQLite store: MLflow makes an object of each, and takes fifty times the time."""

import contextlib
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from mlflow.entities import Metric

BUSY_SECONDS = 20.0  # how long to wait for a writer, as MLflow does
LARGEST = 1.7976931348623157e308  # what MLflow stores for infinity
_COLUMNS = frozenset({"key", "value", "timestamp", "step", "is_nan", "run_uuid"})
_POINT = "(key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)"
_LATEST = (
    f"INSERT INTO latest_metrics {_POINT} ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value, "
    "timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan "
    "WHERE (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)"
)


def add_points(database: Path, mlflow_id: str, points: Sequence[Metric]) -> bool:
    """Add what the store has not got of `points` to a run, all or nothing; False if this is left to MLflow.

    That is so for a run that is deleted or not there, which MLflow refuses in its own words, for tables of another
    form, and where the file cannot be written. The caller has the store for itself.
    """
    rows = [(*_value(point), mlflow_id) for point in points]
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as connection:
            if not _fits(connection, mlflow_id):
                return False
            with connection:
                connection.executemany(f"INSERT OR IGNORE INTO metrics {_POINT}", rows)
                connection.executemany(_LATEST, rows)
    except sqlite3.Error:
        return False
    return True


def _fits(connection: sqlite3.Connection, mlflow_id: str) -> bool:
    """Whether the run is active, and the tables are those that are known here."""
    for table in ("metrics", "latest_metrics"):
        if {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} != _COLUMNS:
            return False
    found = connection.execute("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", (mlflow_id,))
    return bool(found.fetchone() == ("active",))


def _value(point: Metric) -> tuple[str, float, int, int, bool]:
    """A point as MLflow's tables have it: NaN is 0 and marked, infinity the largest number."""
    is_nan = math.isnan(point.value)
    value = 0.0 if is_nan else max(-LARGEST, min(LARGEST, float(point.value)))
    return point.key, value, point.timestamp, point.step, is_nan
