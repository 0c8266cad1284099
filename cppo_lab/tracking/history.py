"""A run as the store has it, and its metric history in the file `history.npz`, which saves a query for each metric.

The file is an npz of five little-endian vectors: `about`, UTF-8 JSON as bytes, {"format": 1, "metrics": [name, ...]}
with the M names sorted; `ends` [M], where the points of each metric end; `step`, `value` and `time_ms` [N], metric by
metric, by increasing step. Equal histories give equal bytes.
"""

import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cppo_lab import schema
from cppo_lab.answers import pack_arrays, unpacked_arrays

HISTORY = "history.npz"
FORMAT = 1
LARGEST = 256 * 2**20  # bytes, of the file; sixty metrics over a thousand steps need half a million
LARGEST_UNPACKED = 2**30  # bytes; a run of 40 million points
REMEDY = "delete that file, or run that configuration again"
_COLUMNS = {
    "ends": "<i8",
    "step": "<i8",
    "value": "<f8",
    "time_ms": "<i8",
}

Column = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]  # steps, values, times of a metric
Row = tuple[int, int, Mapping[str, float]]  # step, time in milliseconds since 1970, metric -> value
# All points of a run: metric -> its points by increasing step, one for each step (values are NaN and infinite as they
# were logged). The metrics are sorted, and none is without points.
History = Mapping[str, Column]


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
    history: dict[str, Column] = {}
    for name in sorted(columns):
        steps, values, times = columns[name]
        step, time_ms = (np.asarray(column, np.int64) for column in (steps, times))
        value = np.asarray(values, np.float64)
        if np.any(step[1:] <= step[:-1]):
            step, first = np.unique(step, return_index=True)
            value, time_ms = value[first], time_ms[first]
        if len(step):
            history[name] = step, value, time_ms
    return history


def unclipped(value: float) -> float:
    """The logged value of a value in MLflow's database, which stores the largest number for infinity."""
    return math.copysign(math.inf, value) if abs(value) >= sys.float_info.max else value


def pack(history: History) -> bytes:
    """The file's bytes."""
    ends = np.cumsum([len(step) for step, _, _ in history.values()], dtype=np.int64)
    columns = zip([np.empty(0, np.int64)] * 3, *history.values(), strict=True)
    arrays = dict(zip(_COLUMNS, (ends, *map(np.concatenate, columns)), strict=True))
    return pack_arrays({"format": FORMAT, "metrics": [*history]}, arrays, _COLUMNS)


def unpack(data: bytes, what: str) -> History:
    """The history in a file's bytes; `what` names the file in messages.

    Raises UserError if it is broken, not such a file, or has more than LARGEST_UNPACKED bytes unpacked.
    """
    kind = f"{what} is no metric history"
    with unpacked_arrays(data, _COLUMNS, FORMAT, LARGEST_UNPACKED, kind, REMEDY) as (about, arrays):
        names, (ends, step, value, time_ms) = about["metrics"], (arrays[name] for name in _COLUMNS)
        if names != sorted({str(name) for name in names}):
            raise ValueError("its metrics are not different names in order")
        if len(ends) != len(names) or {len(value), len(time_ms)} != {len(step)}:
            raise ValueError("its columns have different lengths")
        bounds = np.concatenate([[0], ends])
        if bounds[-1] != len(step) or np.any(bounds[1:] <= bounds[:-1]):
            raise ValueError("its metrics do not cover its points")
        falls = np.flatnonzero(step[1:] <= step[:-1]) + 1
        if not np.isin(falls, bounds).all():  # but where the next metric begins
            raise ValueError("its steps are not sorted")
        places = map(slice, bounds[:-1].tolist(), ends.tolist())
        return {name: (step[at], value[at], time_ms[at]) for name, at in zip(names, places, strict=True)}


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
    def run_id(self) -> str:
        """The id of its configuration, or MLflow's if it has none."""
        return self.tags.get(schema.TAG_RUN_ID) or self.mlflow_id

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
