"""Histories in bulk from a real SQLite store: by the file that a run left, or point by point, the result is
what the store would say of each metric.
"""

import logging
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from cppo_lab import schema
from cppo_lab.analysis import histories
from cppo_lab.analysis.histories import read_points
from cppo_lab.analysis.points import METRIC_COLUMNS, points_frame
from cppo_lab.tracking.history import HISTORY, Row, from_rows, pack

ROWS: list[Row] = [
    (1, 1001, {"train/loss": 0.5, "train/reward": math.nan, "val/a/avg_at_16": 0.1}),
    (2, 1002, {"train/loss": math.inf, "train/reward": 0.25}),
    (3, 1003, {"train/loss": -math.inf, "train/reward": math.nan, "val/a/avg_at_16": 0.2}),
]
Writer = Callable[..., str]


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def client(uri: str) -> MlflowClient:
    return MlflowClient(uri)


def log(client: MlflowClient, mlflow_id: str, rows: list[Row]) -> None:
    """Log the points of `rows`."""
    points = [
        Metric(name, value, time_ms, step) for step, time_ms, values in rows for name, value in values.items()
    ]
    client.log_batch(mlflow_id, metrics=points)


@pytest.fixture
def write(client: MlflowClient, tmp_path: Path) -> Writer:
    """Writes a run with ROWS in the store and `artifact` beside it."""
    number = client.create_experiment("cppo-mini", artifact_location=(tmp_path / "artifacts").as_uri())

    def write_run(artifact: bytes | None = None, ended: str | None = "FINISHED") -> str:
        status = schema.RUNNING if ended is None else schema.DONE
        mlflow_id = client.create_run(number, tags={schema.TAG_STATUS: status}).info.run_id
        log(client, mlflow_id, ROWS)
        if artifact is not None:
            (tmp_path / HISTORY).write_bytes(artifact)
            client.log_artifact(mlflow_id, str(tmp_path / HISTORY))
        if ended is not None:
            client.set_terminated(mlflow_id, ended)
        return str(mlflow_id)

    return write_run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often the store was asked for the history of each metric."""
    count: Counter[str] = Counter()
    real = MlflowClient.get_metric_history

    def counted(self: MlflowClient, run_id: str, key: str) -> list[Metric]:
        count[key] += 1
        return list(real(self, run_id, key))

    monkeypatch.setattr(MlflowClient, "get_metric_history", counted)
    return count


def read(
    client: MlflowClient, uri: str, *ids: str, wanted: Callable[[str], bool] | None = None
) -> pd.DataFrame:
    """What the reader makes of the runs as the store knows them now."""
    return read_points(client, uri, [client.get_run(one) for one in ids], wanted)


def as_points(frame: pd.DataFrame) -> list[tuple[str, str, int, str]]:
    """Every row; the value as text, so that NaN equals itself."""
    return [
        (row.mlflow_id, row.metric, row.step, repr(float(row.value))) for row in frame.itertuples(index=False)
    ]


def expected(*ids: str, rows: list[Row] = ROWS) -> list[tuple[str, str, int, str]]:
    """The points of `rows` for each of the runs, in the frame's order."""
    return [
        (one, name, step, repr(values[name]))
        for one in ids
        for name in sorted({name for _, _, values in rows for name in values})
        for step, _, values in rows
        if name in values
    ]


def test_a_run_that_has_ended_is_one_file(
    client: MlflowClient, uri: str, write: Writer, asked: Counter[str]
) -> None:
    ids = [write(pack(from_rows(ROWS))), write(pack(from_rows(ROWS)), "FAILED")]
    frame = read(client, uri, *ids)
    assert as_points(frame) == expected(*ids)
    assert not asked
    assert as_points(read(client, uri, *ids, wanted="train/reward".__eq__)) == [
        point for point in expected(*ids) if point[1] == "train/reward"
    ]


def test_without_the_file_it_is_the_same(
    client: MlflowClient, uri: str, write: Writer, asked: Counter[str]
) -> None:
    mlflow_id = write()
    assert as_points(read(client, uri, mlflow_id)) == expected(mlflow_id)
    assert asked == dict.fromkeys(["train/loss", "train/reward", "val/a/avg_at_16"], 1)


def test_the_frame_is_small_and_typed(client: MlflowClient, uri: str, write: Writer) -> None:
    frame = read(client, uri, write(), write())
    assert tuple(frame.columns) == METRIC_COLUMNS
    assert [str(kind) for kind in frame.dtypes] == ["category", "category", "int32", "float64"]
    empty = read(client, uri, wanted=None)
    assert tuple(empty.columns) == METRIC_COLUMNS and len(empty) == 0
    assert [str(kind) for kind in empty.dtypes] == ["category", "category", "int32", "float64"]


def test_bytes_for_each_point() -> None:
    one = from_rows([(step, 0, {f"m{number}": 0.5 for number in range(60)}) for step in range(10)])
    frame = points_frame((f"{number:032x}", one) for number in range(300))
    assert len(frame) == 300 * 600
    parts = [frame["mlflow_id"].cat.codes, frame["metric"].cat.codes, frame["step"], frame["value"]]
    assert [part.dtype.itemsize for part in parts] == [2, 1, 4, 8]
    assert list(frame["mlflow_id"].unique()) == [f"{number:032x}" for number in range(300)]


def test_steps_beyond_32_bits() -> None:
    far = from_rows([(2**40, 0, {"a": 0.5})])
    frame = points_frame([("x", from_rows([(1, 0, {"a": 0.25})])), ("y", far)])
    assert frame["step"].dtype == np.int64
    assert list(frame["step"]) == [1, 2**40]


def test_metrics_are_sorted_whatever_run_has_them() -> None:
    runs = [("x", from_rows([(1, 0, {"b": 1.0})])), ("y", from_rows([(1, 0, {"a": 2.0, "b": 3.0})]))]
    frame = points_frame(runs)
    assert as_points(frame) == [("x", "b", 1, "1.0"), ("y", "a", 1, "2.0"), ("y", "b", 1, "3.0")]


def test_metrics_that_the_file_lacks_or_ends_elsewhere_come_from_the_store(
    client: MlflowClient, uri: str, write: Writer, asked: Counter[str]
) -> None:
    stale = [
        (step, time, {k: v for k, v in values.items() if k != "val/a/avg_at_16"})
        for step, time, values in ROWS
    ]
    mlflow_id = write(pack(from_rows(stale)))
    more: Row = (4, 1004, {"train/reward": 0.75})
    log(client, mlflow_id, [more])
    assert as_points(read(client, uri, mlflow_id)) == expected(mlflow_id, rows=[*ROWS, more])
    assert set(asked) == {"train/reward", "val/a/avg_at_16"}


def test_a_file_that_says_otherwise_at_the_same_step_does_not_count(
    client: MlflowClient, uri: str, write: Writer, asked: Counter[str]
) -> None:
    other = [(step, time, values | {"train/reward": 0.125}) for step, time, values in ROWS]
    mlflow_id = write(pack(from_rows(other)))
    assert as_points(read(client, uri, mlflow_id)) == expected(mlflow_id)
    assert set(asked) == {"train/reward"}


def test_a_file_with_metrics_that_the_store_does_not_know(
    client: MlflowClient, uri: str, write: Writer
) -> None:
    more = [(step, time, values | {"train/entropy": 1.0}) for step, time, values in ROWS]
    mlflow_id = write(pack(from_rows(more)))
    assert as_points(read(client, uri, mlflow_id)) == expected(mlflow_id)


def test_broken_files_cost_time_alone_and_are_named_once(
    client: MlflowClient, uri: str, write: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [write(b"PK and then nothing"), write(pack(from_rows(ROWS))[:-40])]
    with caplog.at_level(logging.WARNING):
        assert as_points(read(client, uri, *ids)) == expected(*ids)
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("cppo_lab")]
    assert message.startswith("asked the store point by point for 2 runs: history.npz of MLflow run ")
    assert min(ids) in message and "\n" not in message


def test_a_file_that_is_too_large_is_not_read(
    client: MlflowClient, uri: str, write: Writer, monkeypatch: pytest.MonkeyPatch, asked: Counter[str]
) -> None:
    mlflow_id = write(pack(from_rows(ROWS)))
    monkeypatch.setattr(histories, "LARGEST", 100)
    assert as_points(read(client, uri, mlflow_id)) == expected(mlflow_id)
    assert len(asked) == 3


def test_a_run_that_goes_on_is_asked_of_the_store_whatever_lies_beside_it(
    client: MlflowClient, uri: str, write: Writer, asked: Counter[str]
) -> None:
    longer = [*ROWS, (4, 1004, {"train/loss": 0.0})]
    mlflow_id = write(pack(from_rows(longer)), None)
    assert as_points(read(client, uri, mlflow_id)) == expected(mlflow_id)
    assert len(asked) == 3


def test_what_has_come_since_is_read(client: MlflowClient, uri: str, write: Writer) -> None:
    mlflow_id, more = write(None, None), list[Row]()
    # Of a step that was logged twice the last counts; the same value at a later step is a point, too.
    for row in [
        (4, 1004, {"train/loss": 0.75}),
        (4, 1005, {"train/loss": 0.875}),
        (5, 1005, {"train/loss": 0.875}),
    ]:
        log(client, mlflow_id, [row])
        more = [*(old for old in more if old[0] != row[0]), row]
        assert as_points(read(client, uri, mlflow_id)) == expected(mlflow_id, rows=[*ROWS, *more])


def test_only_what_is_wanted_is_asked_for(
    client: MlflowClient, uri: str, write: Writer, asked: Counter[str]
) -> None:
    mlflow_id = write()
    frame = read(client, uri, mlflow_id, wanted="train/loss".__eq__)
    assert as_points(frame) == [point for point in expected(mlflow_id) if point[1] == "train/loss"]
    assert asked == {"train/loss": 1}
