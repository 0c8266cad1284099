"""A run as the store has it, and its metric history in the file `history.npz`, which saves a query for each metric.

The file is an npz of five little-endian vectors: `about`, UTF-8 JSON as bytes, {"format": 1, "metrics": [name, ...]}
with the M names sorted; `ends` [M], where the points of each metric end; `step`, `value` and `time_ms` [N], metric by
metric, by increasing step. Equal histories give equal bytes.
"""

import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cppo_lab import schema
from cppo_lab.answers import ArrayColumn, pack_arrays, unpacked_arrays

HISTORY = "history.npz"
FORMAT = 1
LARGEST = 256 * 2**20  # bytes, of the file; sixty metrics over a thousand steps need half a million
LARGEST_UNPACKED = 2**30  # bytes; a run of 40 million points
REMEDY = "delete that file, or run that configuration again"
_COLUMNS = {
    "ends": ArrayColumn("<i8"),
    "step": ArrayColumn("<i8"),
    "value": ArrayColumn("<f8"),
    "time_ms": ArrayColumn("<i8"),
}

Column = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]  # steps, values, times of a metric
Row = tuple[int, int, Mapping[str, float]]  # step, time in milliseconds since 1970, metric -> value


@dataclass(frozen=True, eq=False)
class History:
    """All points of a run, sorted by metric and step, with one point for each (metric, step).

    `metrics`: M names, sorted, none without points. `ends` [M] int64: the points of metric i are those from ends[i - 1]
    (0 for the first) up to ends[i]. `step` [N] int64, `value` [N] float64 (NaN and infinities as logged), `time_ms` [N]
    int64, milliseconds since 1970.
    """

    metrics: tuple[str, ...]
    ends: NDArray[np.int64]
    step: NDArray[np.int64]
    value: NDArray[np.float64]
    time_ms: NDArray[np.int64]

    def points(self) -> Iterator[tuple[str, slice]]:
        """Each metric with the slice of its points in the columns."""
        start = 0
        for name, end in zip(self.metrics, self.ends.tolist(), strict=True):
            yield name, slice(start, end)
            start = end


def from_rows(rows: Iterable[Row]) -> History:
    """The history of `rows`, whose steps may be in any order.

    If several rows have a value of the same metric at the same step, the first counts, so that a step that is trained
    again after a kill keeps its first record.
    """
    columns: dict[str, tuple[array[int], array[float], array[int]]] = defaultdict(
        lambda: (array("q"), array("d"), array("q"))
    )
    for step, time_ms, values in rows:
        for name, value in values.items():
            steps, points, times = columns[name]
            steps.append(step)
            points.append(value)
            times.append(time_ms)
    return from_columns(columns)


def from_columns(columns: Mapping[str, tuple[Any, Any, Any]]) -> History:
    """The history from each metric's steps, values and times, three sequences of equal length."""
    kinds = (np.int64, np.float64, np.int64)
    names: list[str] = []
    parts: list[Any] = [tuple(np.empty(0, kind) for kind in kinds)]
    for name in sorted(columns):
        step, value, time_ms = (np.asarray(*column) for column in zip(columns[name], kinds, strict=True))
        if np.any(step[1:] <= step[:-1]):
            step, first = np.unique(step, return_index=True)
            value, time_ms = value[first], time_ms[first]
        if len(step):
            names.append(name)
            parts.append((step, value, time_ms))
    ends = np.cumsum([len(part[0]) for part in parts[1:]], dtype=np.int64)
    return History(tuple(names), ends, *map(np.concatenate, zip(*parts, strict=True)))


def columns_of(history: History) -> dict[str, Column]:
    """Each metric's steps, values and times."""
    return {
        name: (history.step[place], history.value[place], history.time_ms[place])
        for name, place in history.points()
    }


def unclipped(value: float) -> float:
    """The logged value of a value in MLflow's database, which stores the largest number for infinity."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def last_of_each_step(points: Iterable[tuple[int, float, int]]) -> Column:
    """The points (step, value, time in ms) of a metric, as MLflow has them, as columns by step; if several have the
    same step, the last counts.
    """
    by_step = {step: (unclipped(value), time_ms) for step, value, time_ms in points}
    values, times = zip(*(by_step[step] for step in sorted(by_step)), strict=True) if by_step else ((), ())
    return np.array(sorted(by_step), np.int64), np.array(values, np.float64), np.array(times, np.int64)


def pack(history: History) -> bytes:
    """The file's bytes."""
    return pack_arrays({"format": FORMAT, "metrics": history.metrics}, vars(history), _COLUMNS)


def unpack(data: bytes, what: str) -> History:
    """The history in a file's bytes; `what` names the file in messages.

    Raises UserError if it is broken, not such a file, or has more than LARGEST_UNPACKED bytes unpacked.
    """
    kind = f"{what} is no metric history"
    with unpacked_arrays(data, _COLUMNS, FORMAT, LARGEST_UNPACKED, kind, REMEDY) as (about, arrays):
        history = History(tuple(about["metrics"]), **arrays)
        if about["metrics"] != sorted({str(name) for name in history.metrics}):
            raise ValueError("its metrics are not different names in order")
        bounds, step = np.concatenate([[0], history.ends]), history.step
        if len(history.ends) != len(history.metrics) or {len(history.value), len(history.time_ms)} != {
            len(step)
        }:
            raise ValueError("its columns have different lengths")
        if bounds[-1] != len(step) or np.any(bounds[1:] <= bounds[:-1]):
            raise ValueError("its metrics do not cover its points")
        falls = np.flatnonzero(step[1:] <= step[:-1]) + 1
        if not np.isin(falls, bounds).all():  # but where the next metric begins
            raise ValueError("its steps are not sorted")
    return history


@dataclass(frozen=True)
class StoredRun:
    """A run in the store.

    `name` is the run name in MLflow; start and end are in ms since 1970 (None: not begun, not ended). `latest`:
    metric -> step, time in ms and value of its last point, as MLflow's database has it (infinity as the largest
    number).
    """

    mlflow_id: str
    artifact_uri: str
    tags: dict[str, str]
    name: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    experiment_id: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    latest: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """One of schema.STATUSES."""
        return recorded_status(self.tags)

    @property
    def is_result(self) -> bool:
        """Whether nothing is left to train."""
        return self.status in schema.FINISHED


def recorded_status(tags: Mapping[str, str]) -> str:
    """How a run of ours has ended, as in schema.STATUSES; RUNNING if no end is recorded.

    MLflow's status says nothing about training: `mlflow.start_run(run_id=...)` sets it to FINISHED when somebody
    adds a note to a run.
    """
    tag = tags.get(schema.TAG_STATUS, "")
    return tag if tag in schema.STATUSES else schema.RUNNING
