"""The local record of a run: append-only lines in the run's folder, one file per attempt.

A file starts with a `begin` line that describes the attempt. Its `record` is a random name shared by all attempts that
continue the same MLflow run; the run is found by it even if a response of the server was lost. Then follow one line
per training step, the artifacts, and how the attempt ended. `tracking/upload` brings MLflow to the same state.
"""

import json
import os
import posixpath
import re
import secrets
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from cppo_lab import schema
from cppo_lab.files import leads_nowhere, open_plain
from cppo_lab.schema import BEST, BEST_STEP, FINAL_MEAN, MEAN, late_after, parse_validation_metric

FOLDER = "spool"  # in a run's folder
_SUFFIX = ".jsonl"
LONGEST = 16 * 2**20  # bytes of a line; a `begin` line has some ten thousand


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


@dataclass
class Spool:
    """The file of one attempt. A full disk raises no error: lines stay in `unwritten` until the next write."""

    path: Path
    unwritten: list[Line] = field(default_factory=list)
    _file: int = -1
    _end: int = 0  # where the last whole line ends

    def __post_init__(self) -> None:
        """Create the file. Raises FileExistsError if it exists, OSError if it cannot be created."""
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def add(self, line: Line) -> None:
        """Append a line; once this returns, a kill of this process cannot lose it."""
        waited = bool(self.unwritten)
        self.unwritten.append(line)
        try:
            while self.unwritten:
                self._write(encoded(self.unwritten[0]))
                del self.unwritten[0]
        except OSError as error:
            if not waited:
                print(
                    f"{self.path} cannot be written ({error.strerror}): metrics are held in memory",
                    file=sys.stderr,
                    flush=True,
                )

    def _write(self, text: bytes) -> None:
        done = 0
        try:
            while done < len(text):
                done += os.write(self._file, text[done:])
        except OSError:
            if done:
                os.ftruncate(self._file, self._end)
                os.lseek(self._file, self._end, os.SEEK_SET)
            raise
        self._end += done

    def sync(self) -> None:
        """Flush the file to disk, so that a crash of the machine cannot lose it."""
        if self._file >= 0:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def new_record() -> str:
    """A name for a new record."""
    return secrets.token_hex(16)


def open_spool(folder: Path) -> Spool:
    """Create the next file in the run's folder."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    taken = [int(path.stem) for path in files(folder)]
    while True:
        number = max(taken, default=0) + 1
        try:
            return Spool(folder / FOLDER / f"{number:04d}{_SUFFIX}")
        except FileExistsError:  # another process created it at this moment
            taken.append(number)


def files(folder: Path) -> list[Path]:
    """The spool's files in the order of the attempts."""
    try:
        names = [path.name for path in (folder / FOLDER).iterdir()]
    except OSError as error:
        if leads_nowhere(error):
            return []
        raise
    stems = sorted(int(name.removesuffix(_SUFFIX)) for name in names if _is_ours(name))
    return [folder / FOLDER / f"{stem:04d}{_SUFFIX}" for stem in stems]


def _is_ours(name: str) -> bool:
    stem = name.removesuffix(_SUFFIX)
    return (
        name.endswith(_SUFFIX) and stem.isascii() and stem.isdecimal() and name == f"{int(stem):04d}{_SUFFIX}"
    )


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[Line, int]]:
    """The whole lines of a file from byte `offset` on, each with the offset after it.

    Reading stops at a line cut off by a kill, or of another format: nothing after it is known to be complete.
    """
    file = open_plain(path)
    if file is None:
        return
    with file:
        file.seek(offset)
        while text := file.readline(LONGEST):
            line = decoded(text) if text.endswith(b"\n") else None
            if line is None:
                return
            offset += len(text)
            yield line, offset


def place_in(path: Path, offset: int) -> int:
    """`offset` if it is the start of a line or the end of the file; otherwise 0, since the stored offset is wrong."""
    file = open_plain(path) if offset > 0 else None
    if file is None:
        return 0
    with file:
        if offset > os.fstat(file.fileno()).st_size:
            return 0
        file.seek(offset - 1)
        return offset if file.read(1) == b"\n" else 0


def lines(folder: Path) -> Iterator[Line]:
    """All lines of a run's folder, which another process may be writing."""
    for path in files(folder):
        for line, _ in read_lines(path):
            yield line


@dataclass
class Record:
    """The local record of one MLflow run: of all attempts that continued it."""

    begin: Begin
    rows: dict[int, StepEvent] = field(default_factory=dict)  # by step; the first record of a step is kept
    end: End | None = None  # None: an attempt is running, or died without recording its end


def newest_record(folder: Path) -> Record | None:
    """The last record started in a run's folder; None if there is none."""
    record: Record | None = None
    for line in lines(folder):
        if isinstance(line, Begin):
            if record is None or record.begin.record != line.record:
                record = Record(line)
            else:  # the description of the last attempt, the start time of the first
                tags = {**record.begin.tags, **line.tags}
                record.begin = replace(line, time_ms=record.begin.time_ms, tags=tags)
            record.end = None
        elif record is not None and isinstance(line, StepEvent):
            record.rows.setdefault(line.step, line)
        elif record is not None and isinstance(line, End) and line.record == record.begin.record:
            record.end = line
    return record


def read_rows(folder: Path) -> list[StepEvent]:
    """The steps that the newest record of a run's folder has, by step. Changes nothing."""
    record = newest_record(folder)
    return [] if record is None else [record.rows[step] for step in sorted(record.rows)]


@dataclass(frozen=True)
class Scores:
    """`last`: of the newest validation. `best`: the highest one, first reached at `best_step`. `final_mean`: the mean
    over the validations in the last LATE_SHARE of [0, T_stop]; None before the first of them.
    """

    last: float
    best: float
    best_step: int
    final_mean: float | None

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of the validation's step (schema.py)."""
        late = {} if self.final_mean is None else {FINAL_MEAN: self.final_mean}
        return {BEST: self.best, BEST_STEP: float(self.best_step), **late}


def summarise(scores: Mapping[int, float], t_stop: int) -> Scores | None:
    """The scores of a run from those of its validations, by training step; None without a validation."""
    if not scores:
        return None
    best = max(scores.values())
    late = [score for step, score in scores.items() if late_after(t_stop) < step <= t_stop]
    return Scores(
        last=scores[max(scores)],
        best=best,
        best_step=min(step for step, score in scores.items() if score == best),
        final_mean=fmean(late) if late else None,
    )


def score_text(
    last: float | None, best: float | None = None, step: int | None = None, final_mean: float | None = None
) -> str:
    """`last 43.2 %, best 44.1 % (step 8), final mean 43.5 %`, without what is None."""
    parts = [] if last is None else [f"last {100 * last:.1f} %"]
    if best is not None:
        parts.append(f"best {100 * best:.1f} %" + ("" if step is None else f" (step {step})"))
    if final_mean is not None:
        parts.append(f"final mean {100 * final_mean:.1f} %")
    return ", ".join(parts)


def score_of(row: StepEvent) -> float | None:
    """The score of a row that has a validation: the mean over the benchmarks."""
    for name, value in row.metrics.items():
        parsed = parse_validation_metric(name)
        if parsed is not None and parsed[0] == MEAN:
            return value
    return None


class RunRows:
    """The steps of the newest record in a run's folder.

    `scores` are those of its validations by step, `times` are (step, when it was recorded) of the first and the last
    step since `since`; both in seconds since the epoch.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder, self.since = folder, since
        self.scores: dict[int, float] = {}
        self.times: list[tuple[int, float]] = []
        self.step: int | None = None
        self._record = ""
        self._places: dict[Path, int] = {}
        self._steps: set[int] = set()

    def news(self) -> Iterator[StepEvent]:
        """The rows since the last call, oldest first; a step counts once, as the tracking store has it."""
        for path in files(self.folder):
            for line, place in read_lines(path, self._places.get(path, 0)):
                self._places[path] = place
                if isinstance(line, Begin) and line.record != self._record:
                    self._record, self.scores, self.times, self.step = line.record, {}, [], None
                    self._steps = set()
                elif isinstance(line, StepEvent) and line.step not in self._steps:
                    self._take(line)
                    yield line

    def _take(self, row: StepEvent) -> None:
        self._steps.add(row.step)
        self.step = max(row.step, self.step or 0)
        score = score_of(row)
        if score is not None:
            self.scores[row.step] = score
        seconds = row.time_ms / 1000
        if seconds >= self.since:
            self.times = [*self.times[:1], (row.step, seconds)]

    @property
    def pace(self) -> float | None:
        """Wall seconds per step between the first and the last step since `since`, validations included; None before
        the second step."""
        if len(self.times) < 2:
            return None
        (first, began), (last, seen) = self.times
        return (seen - began) / (last - first) if last > first else None

    def summary(self, t_stop: int) -> Scores | None:
        """The scores so far."""
        return summarise(self.scores, t_stop)
