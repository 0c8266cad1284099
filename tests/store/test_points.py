"""Points that go straight into a SQLite store: the tables are those that MLflow's own client leaves."""

import math
import sqlite3
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from cppo_lab.store.client import ensure_experiment, open_client
from cppo_lab.store.points import add_points

FIRST = [
    Metric("loss", 0.5, 1000, 1),
    Metric("loss", 0.25, 2000, 3),
    Metric("loss", math.nan, 3000, 4),
    Metric("up", math.inf, 1000, 1),
    Metric("down", -math.inf, 1000, 1),
    Metric("again", 1.0, 1000, 1),
    Metric("again", 1.0, 1000, 1),
]
THEN = [
    Metric("loss", 9.0, 4000, 2),  # an older step does not become the last value
    Metric("loss", 0.25, 2000, 3),  # sent again
    Metric("again", 2.0, 1000, 1),
    Metric("up", 3.0, 2000, 2),
]


def rows(database: Path, mlflow_id: str) -> list[list[tuple[object, ...]]]:
    with sqlite3.connect(database) as connection:
        columns = "key, value, timestamp, step, is_nan"
        return [
            sorted(connection.execute(f"SELECT {columns} FROM {table} WHERE run_uuid = ?", (mlflow_id,)))
            for table in ("metrics", "latest_metrics")
        ]


def test_the_tables_are_mlflows(workspace: Path) -> None:
    uri, database = "sqlite:///mlflow.db", workspace / "mlflow.db"
    client = open_client(uri)
    experiment = ensure_experiment(client, uri, "e")
    ours, theirs, deleted = (client.create_run(experiment).info.run_id for _ in range(3))
    for points in (FIRST, THEN):
        assert add_points(database, ours, points)
        MlflowClient.log_batch(client, theirs, metrics=points)
    assert rows(database, ours) == rows(database, theirs)
    assert len(rows(database, ours)[0]) == 9
    client.log_batch(ours, metrics=[Metric("loss", 7.0, 5000, 9)])
    assert client.get_run(ours).data.metrics["loss"] == 7.0
    client.delete_run(deleted)
    for other in (deleted, "0" * 32):
        assert not add_points(database, other, FIRST)
        with pytest.raises(MlflowException):
            client.log_batch(other, metrics=FIRST)
    with sqlite3.connect(database) as connection:
        connection.execute("ALTER TABLE metrics ADD COLUMN another INTEGER")
    assert not add_points(database, ours, FIRST)
    assert not add_points(workspace / "none" / "mlflow.db", ours, FIRST)
