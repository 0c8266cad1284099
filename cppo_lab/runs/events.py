"""The lines of a spool: what an attempt at a run records about itself, one JSON object each.

Files may have been written by others: a line with values that a recorder does not write is ignored.
"""

import json
import posixpath
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from cppo_lab import schema

_MOST = 2**63 - 1  # the largest integer that every store can hold
_METRIC = re.compile(r"[A-Za-z0-9_./ :-]{1,250}")
_DATASET = frozenset(field.name for field in fields(schema.Dataset))


@dataclass(frozen=True)
class StepEvent:
    """The metrics of one training step, and when they were measured."""

    step: int
    time_ms: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Begin:
    """The start of an attempt. Each of `datasets` has the fields of schema.Dataset."""

    record: str
    experiment: str
    name: str  # of the MLflow run
    time_ms: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    datasets: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Artifact:
    """A file of the run's folder, by its relative path; recorded again whenever its content has changed.

    `text` is its content if a full disk kept the file from being written, with `base64` set for binary content.
    """

    path: str
    text: str = ""
    base64: str = ""

    def content(self) -> bytes:
        """Its content if the line holds it; else None."""
        try:
            return self.text.encode() or b64decode(self.base64, validate=True)
        except ValueError:  # not a line of the recorder
            return b""


@dataclass(frozen=True)
class Tags:
    """Tags of the run that are known only once training has begun."""

    tags: Mapping[str, str]


@dataclass(frozen=True)
class End:
    """How an attempt ended: `status` as in schema.STATUSES, after training step `step`."""

    record: str
    status: str
    step: int | None
    time_ms: int
    reason: str = ""


Line = StepEvent | Begin | Artifact | Tags | End
_KINDS: dict[str, type[Begin] | type[Artifact] | type[Tags] | type[End]] = {
    "begin": Begin,
    "artifact": Artifact,
    "tags": Tags,
    "end": End,
}


def encoded(line: Line) -> bytes:
    """A line as text for a file."""
    if isinstance(line, StepEvent):
        values: dict[str, Any] = {"step": line.step, "time_ms": line.time_ms, "metrics": dict(line.metrics)}
    else:
        kind = next(name for name, one in _KINDS.items() if isinstance(line, one))
        values = {"kind": kind, **vars(line)}
        if not values.get("base64"):  # absent in lines of earlier versions
            values.pop("base64", None)
    return json.dumps(values).encode() + b"\n"


def decoded(text: bytes) -> Line | None:
    """A line parsed from a file; None for anything else."""
    try:
        values = json.loads(text)
        kind = values.pop("kind", None)
        if kind is None:
            metrics = {str(name): float(value) for name, value in values["metrics"].items()}
            step, time_ms = int(values["step"]), int(values["time_ms"])
            good = _fits(step) and _fits(time_ms) and all(map(_names_a_metric, metrics))
            return StepEvent(step, time_ms, metrics) if good else None
        if kind == "begin":
            values["datasets"] = tuple(values["datasets"])
        return _checked(_KINDS[kind](**values))
    except (ValueError, OverflowError, LookupError, TypeError, AttributeError, RecursionError):
        return None


@lru_cache(maxsize=10_000)
def _names_a_metric(name: str) -> bool:
    """Whether a store accepts it as a metric's name: a relative path of plain characters."""
    return (
        _METRIC.fullmatch(name) is not None
        and posixpath.normpath(name) == name
        and not name.startswith((".", "/"))
    )


def _fits(number: int) -> bool:
    return -_MOST <= number <= _MOST


def _checked(line: Begin | Artifact | Tags | End) -> Line | None:
    """`line` if its values have the declared types and are values that a recorder writes; otherwise None."""
    if isinstance(line, End) and line.status not in schema.STATUSES:
        return None
    if isinstance(line, Tags) and not set(line.tags) <= schema.TAGS_OF_CORES:
        return None
    for name, value in vars(line).items():
        if name in ("tags", "params"):
            good = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        elif name == "datasets":
            good = isinstance(value, list | tuple) and all(map(_is_dataset, value))
        elif name in ("time_ms", "step"):
            good = (isinstance(value, int) and _fits(value)) or (name == "step" and value is None)
        else:
            good = isinstance(value, str)
        if not good:
            return None
    return line


def _is_dataset(value: object) -> bool:
    """Whether it has the fields of schema.Dataset."""
    if not isinstance(value, dict) or set(value) != _DATASET:
        return False
    profile = value["profile"]
    return isinstance(profile, dict) and all(isinstance(value[name], str) for name in _DATASET - {"profile"})
