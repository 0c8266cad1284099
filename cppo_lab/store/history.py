"""A run's whole metric history in one file, `history.npz`: what the reader takes instead of asking point by point.

The file is an npz of five arrays, all little-endian and of one dimension: `about`, UTF-8 JSON as bytes,
{"format": 1, "metrics": [name, ...]} with the M names sorted; `ends` [M], where the points of each metric end;
`step`, `value` and `time_ms` [N], metric after metric, by rising step. Equal histories give equal bytes.
"""

import io
import itertools
import json
import struct
import tokenize
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cppo_lab.errors import UserError

HISTORY = "history.npz"
FORMAT = 1
LARGEST = 256 * 2**20  # bytes, of the file; sixty metrics over a thousand steps need half a million
LARGEST_UNPACKED = 2**30  # bytes; a run of 40 million points
REMEDY = "delete that file, or run that configuration again"
_TYPES = {"about": "|u1", "ends": "<i8", "step": "<i8", "value": "<f8", "time_ms": "<i8"}
_MOST_ABOUT = 16 * 2**20  # bytes of names
_END = struct.Struct(
    "<4s4H2LH"
)  # a zip's last record: the number of files and the size of their list are in it
_LARGEST_LIST = 4096  # bytes of that list; five files need some hundred

Row = tuple[int, int, Mapping[str, float]]  # step, time in milliseconds since 1970, metric -> value


@dataclass(frozen=True, eq=False)
class History:
    """Every point of a run, sorted by metric and step, one for each (metric, step).

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
        """Each metric with the place of its points in the columns."""
        start = 0
        for name, end in zip(self.metrics, self.ends.tolist(), strict=True):
            yield name, slice(start, end)
            start = end

    def only(self, wanted: Callable[[str], bool]) -> "History":
        """The history of the metrics whose names are `wanted`, in memory of its own."""
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
    """The history that `rows` make, in whatever order of steps.

    Of several rows with a value of one metric at one step the first counts: a step that is trained again after a
    kill keeps its first record.
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
    """The same from each metric's steps, values and times, three sequences of one length."""
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


def pack(history: History) -> bytes:
    """The file's bytes."""
    about = json.dumps({"format": FORMAT, "metrics": history.metrics}).encode()
    arrays: dict[str, NDArray[Any]] = {
        "about": np.frombuffer(about, dtype=np.uint8),
        "ends": history.ends,
        "step": history.step,
        "value": history.value,
        "time_ms": history.time_ms,
    }
    buffer = io.BytesIO()
    typed: dict[str, Any] = {name: arrays[name].astype(kind) for name, kind in _TYPES.items()}
    np.savez_compressed(buffer, **typed)
    return buffer.getvalue()


def unpack(data: bytes, what: str) -> History:
    """The history in a file's bytes; `what` names the file in messages. Nothing in it is taken on trust.

    Raises UserError if it is too large, broken, or not such a file.
    """
    if len(data) > LARGEST:
        raise UserError(f"{what} has {len(data)} bytes, more than the {LARGEST} it may have: {REMEDY}")
    try:
        arrays = _arrays(data)
        history = History(
            _metrics(arrays["about"]), arrays["ends"], arrays["step"], arrays["value"], arrays["time_ms"]
        )
        _check(history)
    except (
        ValueError,  # also: text that is no UTF-8 or no JSON, a header that numpy refuses
        EOFError,
        RecursionError,
        MemoryError,  # a header nested too deep for Python's parser
        TypeError,  # headers that numpy does not expect
        IndexError,
        tokenize.TokenError,
        NotImplementedError,  # a compression that Python does not know
        RuntimeError,  # an encrypted member
        OSError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise UserError(f"{what} is no metric history ({reason}): {REMEDY}") from None
    return history


def _arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """The five arrays, each of its one type. Sizes are looked at before anything is unpacked."""
    if len(data) < _END.size:
        raise ValueError("it is cut off")
    signature, *_, size, _, comment = _END.unpack(data[-_END.size :])
    zip64 = data[-_END.size - 20 :][:4] == b"PK\x06\x07"
    if signature != b"PK\x05\x06" or comment or zip64 or size > _LARGEST_LIST:
        raise ValueError("it is cut off, or no npz of five arrays")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if sorted(members) != sorted(f"{name}.npy" for name in _TYPES):
            raise ValueError(f"it holds {', '.join(sorted(members))[:100] or 'nothing'}")
        total = sum(info.file_size for info in members.values())
        if total > LARGEST_UNPACKED or members["about.npy"].file_size > _MOST_ABOUT:
            raise ValueError(f"unpacked it has {total} bytes")
        return {
            name: _array(name, archive.read(members[f"{name}.npy"]), np.dtype(kind))
            for name, kind in _TYPES.items()
        }


def _array(name: str, content: bytes, kind: np.dtype[Any]) -> NDArray[Any]:
    """One array; a view of `content`, so that a header cannot ask for more memory than the file has bytes."""
    file = io.BytesIO(content)
    if npy.read_magic(file) != (1, 0):
        raise ValueError(f"array {name!r} has another version")
    shape, fortran, found = npy.read_array_header_1_0(file)
    if found != kind or fortran or len(shape) != 1:
        raise ValueError(f"array {name!r} has type {found} and shape {shape}")
    if len(content) - file.tell() != shape[0] * kind.itemsize:
        raise ValueError(f"array {name!r} does not have the {shape[0]} entries it says")
    return np.frombuffer(content, dtype=kind, offset=file.tell())


def _metrics(about: NDArray[Any]) -> tuple[str, ...]:
    content = json.loads(about.tobytes())
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    names = content.get("metrics")
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
