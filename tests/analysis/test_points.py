"""The points of many runs as one small tidy frame."""

import numpy as np

from cppo_lab.analysis.points import METRIC_COLUMNS, points_frame
from cppo_lab.tracking.history import from_rows


def test_the_frame_is_small_and_typed() -> None:
    history = from_rows([(step, 0, {f"m{number}": 0.5 for number in range(60)}) for step in range(10)])
    for runs in (300, 0):
        frame = points_frame((f"{number:032x}", history) for number in range(runs))
        assert tuple(frame.columns) == METRIC_COLUMNS and len(frame) == runs * 600
        assert [str(kind) for kind in frame.dtypes] == ["category", "category", "int32", "float64"]
        assert list(frame["mlflow_id"].unique()) == [f"{number:032x}" for number in range(runs)]
        parts = [frame["mlflow_id"].cat.codes, frame["metric"].cat.codes, frame["step"], frame["value"]]
        assert not runs or [part.dtype.itemsize for part in parts] == [2, 1, 4, 8]


def test_steps_beyond_32_bits() -> None:
    far = from_rows([(2**40, 0, {"a": 0.5})])
    frame = points_frame([("x", from_rows([(1, 0, {"a": 0.25})])), ("y", far)])
    assert frame["step"].dtype == np.int64
    assert list(frame["step"]) == [1, 2**40]


def test_metrics_are_sorted_whatever_run_has_them() -> None:
    runs = [("x", from_rows([(1, 0, {"b": 1.0})])), ("y", from_rows([(1, 0, {"a": 2.0, "b": 3.0})]))]
    rows = points_frame(runs)[["mlflow_id", "metric", "value"]].itertuples(index=False)
    assert [tuple(row) for row in rows] == [("x", "b", 1.0), ("y", "a", 2.0), ("y", "b", 3.0)]
