"""A run's whole metric history in one file, `history.npz`: what the reader uses instead of querying point by point.

The file is an npz of five arrays, all little-endian and of one dimension: `about`, UTF-8 JSON as bytes,
{"format": 1, "metrics": [name, ...]} with the M names sorted; `ends` [M], where the points of each metric end;
`step`, `value` and `time_ms` [N], metric by metric, by increasing step. Equal histories give equal bytes.
"""

import itertools
import math
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cppo_lab.errors import UserError
from cppo_lab.npz import Column as NpzColumn
from cppo_lab.npz import pack as pack_arrays
from cppo_lab.npz import refused
from cppo_lab.npz import unpack as unpack_arrays

HISTORY = "history.npz"
FORMAT = 1
LARGEST = 256 * 2**20  # bytes, of the file; sixty metrics over a thousand steps need half a million
LARGEST_UNPACKED = 2**30  # bytes; a run of 40 million points
REMEDY = "delete that file, or run that configuration again"
_COLUMNS = {
    "ends": NpzColumn("<i8"),
    "step": NpzColumn("<i8"),
    "value": NpzColumn("<f8"),
    "time_ms": NpzColumn("<i8"),
}
_LARGEST_FLOAT = sys.float_info.max  # MLflow's databases store it for infinity

Column = tuple[
    NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]
]  # steps, values, times of one metric
Row = tuple[int, int, Mapping[str, float]]  # step, time in milliseconds since 1970, metric -> value


@dataclass(frozen=True, eq=False)
class History:
    """All points of a run, sorted by metric and step, with one point for each (metric, step).

    `metrics`: M names, sorted, each with at least one point. `ends` [M] int64: the points of metric i are those
    from ends[i - 1] (0 for the first) up to ends[i]. `step` [N] int64, `value` [N] float64 (NaN and infinities as
    logged), `time_ms` [N] int64, milliseconds since 1970.
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

    def only(self, wanted: Callable[[str], bool]) -> "History":
        """The history of the `wanted` metrics, as a copy."""
        kept = [(name, place) for name, place in self.points() if wanted(name)]

        def column(values: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([values[place] for _, place in kept]) if kept else values[:0].copy()

        lengths = [place.stop - place.start for _, place in kept]
        return History(
            tuple(name for name, _ in kept),
            np.cumsum(lengths, dtype=np.int64),
            column(self.step),
            column(self.value),
            column(self.time_ms),
        )


def from_rows(rows: Iterable[Row]) -> History:
    """The history of `rows`, whose steps may be in any order.

    If several rows have a value of one metric at one step, the first counts, so that a step that is trained again after
    a kill keeps its first record.
    """
    columns: dict[str, tuple[array[int], array[float], array[int]]] = {}
    for step, time_ms, values in rows:
        for name, value in values.items():
            if name not in columns:
                columns[name] = (array("q"), array("d"), array("q"))
            steps, points, times = columns[name]
            steps.append(step)
            points.append(value)
            times.append(time_ms)
    return from_columns(columns)


def from_columns(columns: Mapping[str, tuple[Any, Any, Any]]) -> History:
    """The history from each metric's steps, values and times, three sequences of equal length."""
    names, steps, values, times = [], [], [], []
    for name in sorted(columns):
        step = np.asarray(columns[name][0], dtype=np.int64)
        value = np.asarray(columns[name][1], dtype=np.float64)
        time_ms = np.asarray(columns[name][2], dtype=np.int64)
        if np.any(step[1:] <= step[:-1]):
            step, first = np.unique(step, return_index=True)
            value, time_ms = value[first], time_ms[first]
        if len(step):
            names.append(name)
            steps.append(step)
            values.append(value)
            times.append(time_ms)
    return History(
        tuple(names),
        np.cumsum([len(step) for step in steps], dtype=np.int64),
        np.concatenate([*steps, np.empty(0, np.int64)]),
        np.concatenate([*values, np.empty(0, np.float64)]),
        np.concatenate([*times, np.empty(0, np.int64)]),
    )


def unclipped(value: float) -> float:
    """The logged value of a value in MLflow's database."""
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST_FLOAT else value


def last_of_each_step(points: Iterable[tuple[int, float, int]]) -> Column:
    """The points (step, value, time in ms) of one metric as columns; if several have the same step, the last counts."""
    by_step = {step: (unclipped(value), time_ms) for step, value, time_ms in points}
    return (
        np.fromiter(by_step, np.int64, len(by_step)),
        np.array([value for value, _ in by_step.values()], dtype=np.float64),
        np.array([time_ms for _, time_ms in by_step.values()], dtype=np.int64),
    )


def pack(history: History) -> bytes:
    """The file's bytes."""
    about = {"format": FORMAT, "metrics": history.metrics}
    return pack_arrays(about, {name: getattr(history, name) for name in _COLUMNS}, _COLUMNS)


def unpack(data: bytes, what: str) -> History:
    """The history in a file's bytes; `what` names the file in messages. Everything in it is validated.

    Raises UserError if it is too large, broken, or not such a file.
    """
    if len(data) > LARGEST:
        raise UserError(f"{what} has {len(data)} bytes, more than the {LARGEST} allowed: {REMEDY}")
    with refused(f"{what} is no metric history", REMEDY):
        about, arrays = unpack_arrays(data, _COLUMNS, LARGEST_UNPACKED)
        history = History(_metrics(about), **arrays)
        _check(history)
    return history


def _metrics(about: Mapping[str, Any]) -> tuple[str, ...]:
    if about.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    names = about.get("metrics")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("it names no metrics")
    if any(one >= other for one, other in itertools.pairwise(names)):
        raise ValueError("its metrics are not sorted")
    return tuple(names)


def _check(history: History) -> None:
    """Raises ValueError if the columns do not fit together or are not sorted."""
    ends, step = history.ends, history.step
    if len(ends) != len(history.metrics) or not len(step) == len(history.value) == len(history.time_ms):
        raise ValueError("its columns have different lengths")
    bounds = np.concatenate([[0], ends])
    if bounds[-1] != len(step) or np.any(bounds[1:] <= bounds[:-1]):
        raise ValueError("its metrics do not cover its points")
    rising = step[1:] > step[:-1]
    rising[bounds[1:-1] - 1] = True  # between one metric and the next
    if not rising.all():
        raise ValueError("its steps are not sorted")
