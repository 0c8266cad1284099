"""The local record of a run: append-only lines in files of the run's folder, a new file for each attempt.

A file begins with a `begin` line that describes the attempt. Its `record` is a random name shared by all attempts that
continue the same MLflow run; the run is found by it even if a response of the server was lost. Then follow a line per
training step, the artifacts, and how the attempt ended. A kill can cut off the last line, which then does not count,
and leaves a file without an `end` line; the next attempt writes a new file.

A metric that is infinite or not a number is written and read as it is. `tracking/upload` brings MLflow to the same
state; `shipped.json` beside the files says how much of them a store has.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeGuard

from cppo_lab.errors import UserError, say
from cppo_lab.files import NOWHERE, ignoring, open_lock, open_plain, read_object, redacted, replace_file
from cppo_lab.schema import (
    BEST,
    BEST_STEP,
    FINAL_MEAN,
    FINISHED,
    MEAN,
    TAG_NOTE,
    is_evaluation,
    late_after,
    parse_validation_metric,
)

SPOOL_FOLDER = "spool"  # in a run's folder
NOTES = "notes.jsonl"  # beside the attempts' files: Tags that somebody gave the run
LONGEST = 16 * 2**20  # bytes of a line; a `begin` line has some ten thousand
_FILE = re.compile(r"(?:[0-9]{4}|[1-9][0-9]{4,})\.jsonl")


@dataclass(frozen=True)
class StepEvent:
    """The metrics of a training step, and when they were measured."""

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
        """Its content if the line holds it; else nothing."""
        return self.text.encode(errors="replace") or b64decode(self.base64)


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
_KINDS = {kind.__name__.lower(): kind for kind in (Begin, Artifact, Tags, End)}


# Writing


class Spool:
    """The file of an attempt. A full disk raises no error: lines stay in `unwritten` until the next write."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises FileExistsError if it exists, OSError if it cannot be created."""
        self.path, self.unwritten = path, list[Line]()
        self._file = path.open("xb", buffering=0)
        self._end = 0  # where the last whole line ends

    def add(self, line: Line) -> None:
        """Append a line; once this returns, a kill cannot lose it, unless the disk is full (`unwritten`)."""
        waited = bool(self.unwritten)
        self.unwritten.append(line)
        try:
            while self.unwritten:
                self._write(encoded(self.unwritten[0]))
                del self.unwritten[0]
        except OSError as error:
            if not waited:
                why = f"{self.path} cannot be written ({error.strerror}): metrics are held in memory"
                say(why)

    def _write(self, text: bytes) -> None:
        done = 0
        try:
            while done < len(text):
                done += os.write(self._file.fileno(), text[done:])
        except OSError:
            if done:
                self._file.truncate(self._end)
                self._file.seek(self._end)
            raise
        self._end += done

    def keep(self, name: str, content: str | bytes) -> None:
        """Write a file of the run, and record it. Raises OSError if it cannot be written."""
        path = self.path.parent.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
        self.add(Artifact(name))

    def close(self) -> None:
        """Flush the file to disk, so that a crash of the machine cannot lose it, and close it."""
        with self._file:
            os.fsync(self._file)


def open_spool(folder: Path) -> Spool:
    """Create the next file in the run's folder, whose lock the caller holds."""
    (folder / SPOOL_FOLDER).mkdir(parents=True, exist_ok=True)
    return Spool(_next_file(folder))


def _next_file(folder: Path) -> Path:
    number = max((int(path.stem) for path in files(folder)), default=0) + 1
    return folder / SPOOL_FOLDER / f"{number:04d}.jsonl"


def add_evaluation(folder: Path, step: int, metrics: Mapping[str, float]) -> "Record":
    """Add scores of the checkpoint of `step` to the record of a finished run, whose lock the caller holds; gives that.

    The file appears as a whole, with the record's end: at no time is the run without an end.

    Raises UserError if the run is not finished or its record lacks steps, OSError if the disk is full.
    """
    record = newest_record(folder)
    end = record.end if record else None
    if record is None or end is None or end.status not in FINISHED or len(record.rows) <= (end.step or 0):
        raise UserError(
            f"run {folder.name} is not finished, or its record here is not whole: it has no evaluation"
        )
    event = StepEvent(step, int(time.time() * 1000), metrics)
    replace_file(_next_file(folder), encoded(record.begin) + encoded(event) + encoded(end))
    record.evaluations |= dict.fromkeys(metrics, event)
    return record


def notes(folder: Path) -> dict[str, str]:
    """The tags that somebody gave the run, the newest of each key."""
    tags: dict[str, str] = {}
    for line, _ in read_lines(folder / SPOOL_FOLDER / NOTES):
        tags |= line.tags if isinstance(line, Tags) else {}
    return tags


LONGEST_NOTE = 5000  # characters of a tag, as MLflow has them


def add_notes(folder: Path, tags: Mapping[str, str], text: str = "") -> None:
    """Give a run tags, which may be training, and add `text` to its note. Raises OSError if the disk is full, UserError
    for more than LONGEST_NOTE characters.
    """
    with open_lock(folder / SPOOL_FOLDER / "notes.lock") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)  # who notes something at the same time waits
        added = dict(tags)
        if text:
            added[TAG_NOTE] = "\n\n".join(filter(None, (notes(folder).get(TAG_NOTE), text)))
        if any(len(value) > LONGEST_NOTE for value in added.values()):
            raise UserError(
                f"run {folder.name}: its note, or a tag, has more than {LONGEST_NOTE} characters: shorten it"
            )
        lines = [line for line, _ in read_lines(folder / SPOOL_FOLDER / NOTES)]
        replace_file(folder / SPOOL_FOLDER / NOTES, b"".join(map(encoded, [*lines, Tags(added)])))


def encoded(line: Line) -> bytes:
    """A line as text for a file."""
    values = dict(vars(line))
    if not isinstance(line, StepEvent):
        values = {"kind": type(line).__name__.lower(), **values}
    if not values.get("base64", True):  # absent in lines of earlier versions
        del values["base64"]
    return json.dumps(values).encode() + b"\n"


# Reading


def files(folder: Path) -> list[Path]:
    """The spool's files in the order of the attempts."""
    names: list[str] = []
    with ignoring(NOWHERE):
        names = os.listdir(folder / SPOOL_FOLDER)  # noqa: PTH208  names alone, of thousands of runs
    attempts = sorted(filter(_FILE.fullmatch, names), key=lambda name: (len(name), name))
    return [folder / SPOOL_FOLDER / name for name in attempts]


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[Line, int]]:
    """The whole lines of a file from byte `offset` on, each with the offset after it; all of them if no line ends at
    `offset`, since that is wrong.

    Reading stops at a line cut off by a kill, or of another format: nothing after it is known to be complete.
    """
    file = open_plain(path)
    if file is None:
        return
    with file:
        descriptor = file.fileno()
        is_end = 0 < offset <= os.fstat(descriptor).st_size and os.pread(descriptor, 1, offset - 1) == b"\n"
        offset = file.seek(offset if is_end else 0)
        while text := file.readline(LONGEST):
            line = decoded(text) if text.endswith(b"\n") else None
            if line is None:
                return
            offset += len(text)
            yield line, offset


def lines(folder: Path) -> Iterator[Line]:
    """All lines of a run's folder, which another process may be writing."""
    for path in files(folder):
        for line, _ in read_lines(path):
            yield line


def decoded(text: bytes) -> Line | None:
    """A line parsed from a file; None for anything else."""
    try:
        values = json.loads(text)
        if kind := values.pop("kind", None):
            return _KINDS[kind](**values)
        metrics = {name: float(value) for name, value in values["metrics"].items()}
        return StepEvent(int(values["step"]), int(values["time_ms"]), metrics)
    except (ValueError, OverflowError, LookupError, TypeError, AttributeError, RecursionError):
        return None


# The newest record


@dataclass
class Record:
    """The local record of an MLflow run: of all attempts that continued it."""

    begin: Begin
    rows: dict[int, StepEvent] = field(default_factory=dict)  # by step; the first record of a step is kept
    end: End | None = None  # None: an attempt is running, or died without recording its end
    evaluations: dict[str, StepEvent] = field(default_factory=dict)  # of its checkpoint, by metric


def has_finished(record: Record | None) -> TypeGuard[Record]:
    """Whether there is a record, and it has ended with a result."""
    return record is not None and record.end is not None and record.end.status in FINISHED


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
            if record.rows.setdefault(line.step, line) is not line:
                record.evaluations |= {name: line for name in line.metrics if is_evaluation(name)}
        elif record is not None and isinstance(line, End) and line.record == record.begin.record:
            record.end = line
    return record


def read_rows(folder: Path) -> list[StepEvent]:
    """The steps that the newest record of a run's folder has, by step. Changes nothing."""
    record = newest_record(folder)
    return [record.rows[step] for step in sorted(record.rows)] if record else []


class RunRows:
    """The steps of the newest record in a run's folder, read while they are written.

    `scores` are those of its validations by step, `times` are (step, when it was recorded) of the first and the last
    step since `since`; both in seconds since the epoch.
    """

    def __init__(self, folder: Path, since: float = 0.0) -> None:
        self.folder, self.since = folder, since
        self.scores: dict[int, float] = {}
        self.times: list[tuple[int, float]] = []
        self._record = ""
        self._steps: set[int] = set()
        self._offsets: dict[Path, int] = {}

    def news(self) -> Iterator[StepEvent]:
        """The rows since the last call, oldest first; a step counts once, as the tracking store has it."""
        for path in files(self.folder):
            # The files of a result that is replaced are moved aside: those of the new record have their names.
            for line, offset in read_lines(path, self._offsets.get(path, 0)):
                self._offsets[path] = offset
                if isinstance(line, Begin) and line.record != self._record:
                    self._record, self._steps, self.scores, self.times = line.record, set(), {}, []
                elif isinstance(line, StepEvent) and line.step not in self._steps:
                    self._steps.add(line.step)
                    if (score := score_of(line)) is not None:
                        self.scores[line.step] = score
                    if (seconds := line.time_ms / 1000) >= self.since:
                        self.times = [*self.times[:1], (line.step, seconds)]
                    yield line

    @property
    def step(self) -> int | None:
        """The last step; None before the first."""
        return max(self._steps, default=None)


# Scores


class Scores(NamedTuple):
    """As a run's status has them. `score`: of the newest validation. `best`: the highest, first reached at `best_step`.
    `final_mean`: the mean over the validations in the last LATE_SHARE of [0, T_stop]. None before the first of these.
    """

    score: float | None = None
    best: float | None = None
    best_step: int | None = None
    final_mean: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of the validation's step (schema.py)."""
        named = zip((BEST, BEST_STEP, FINAL_MEAN), self[1:], strict=True)
        return {name: float(value) for name, value in named if value is not None}


def score_of(row: StepEvent) -> float | None:
    """The score of a row that has a validation: the mean over the benchmarks. One that is not a finite number is none,
    since nothing can be compared with it.
    """
    for name, value in row.metrics.items():
        parsed = parse_validation_metric(name)
        if parsed is not None and parsed[0] == MEAN and isfinite(value):
            return value
    return None


def summarise(scores: Mapping[int, float], t_stop: int) -> Scores:
    """The scores of a run from those of its validations, by training step."""
    if not scores:
        return Scores()
    best_step = max(sorted(scores), key=scores.__getitem__)  # the first of equal ones
    late = [score for step, score in scores.items() if late_after(t_stop) < step <= t_stop]
    return Scores(scores[max(scores)], scores[best_step], best_step, fmean(late) if late else None)


def score_text(
    last: float | None, best: float | None = None, step: int | None = None, final_mean: float | None = None
) -> str:
    """`last 43.2 %, best 44.1 % (step 8), final mean 43.5 %`, without what is None."""
    at = "" if step is None else f" (step {step})"
    scores = (("last", last, ""), ("best", best, at), ("final mean", final_mean, ""))
    return ", ".join(f"{name} {100 * score:.1f} %{at}" for name, score, at in scores if score is not None)


# Sending: how much of a run's folder a store has. It only saves work and may be lost. Queries no store, since ten
# thousand folders are checked for unsent lines at once.

SHIPPED = "shipped.json"  # beside the attempts' files
_LARGEST_SHIPPED = 16 * 2**20  # bytes; ours have some hundred for each attempt and store
_unsaved: dict[tuple[Path, str], "Shipped"] = {}  # what a full disk did not take, by folder and store


@dataclass
class ShippedRecord:
    """The part of a record that a store has."""

    mlflow_id: str = ""
    pending: list[str] = field(default_factory=list)  # artifacts that it does not have yet
    ended: bool = False  # its end was uploaded, and its history, a file, is still to be


@dataclass
class Shipped:
    """The part of a run's folder that a store has."""

    offsets: dict[str, int] = field(default_factory=dict)  # by the name of a spool's file
    records: dict[str, ShippedRecord] = field(default_factory=dict)

    def rest(self, path: Path) -> Iterator[tuple[Line, int]]:
        """The lines of a file that the store does not have, each with the offset after it."""
        offset = self.offsets.get(path.name, 0)
        is_whole = not path.is_file() or path.stat().st_size == offset
        return iter(()) if is_whole else read_lines(path, offset)


def unsent(folder: Path, uri: str) -> bool:
    """Whether a run's folder has anything that the store at `uri` does not have. Queries no store."""
    paths = files(folder)
    if not paths:
        return False
    state = load_shipped(folder, uri)
    # A line that a kill has cut off is never sent.
    rests = (state.rest(path) for path in (*paths, folder / SPOOL_FOLDER / NOTES))
    waiting = (record.mlflow_id and (record.pending or record.ended) for record in state.records.values())
    return any(waiting) or any(next(rest, None) for rest in rests)


def _store_key(uri: str) -> str:
    """A key of a store for files that others may read, without the password, which could be guessed from a hash."""
    return hashlib.sha256(redacted(uri).encode()).hexdigest()[:16]


def _all_states(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        return read_object(folder / SPOOL_FOLDER / SHIPPED, _LARGEST_SHIPPED)
    return {}


def load_shipped(folder: Path, uri: str) -> Shipped:
    """The stored progress; no progress if the file was not written by us."""
    if (state := _unsaved.get((folder, uri))) is not None:
        return deepcopy(state)
    try:
        values = _all_states(folder)[_store_key(uri)]
        records = {
            str(token): ShippedRecord(
                str(record["mlflow_id"]),
                [str(name) for name in record["pending"]],
                bool(record.get("ended")),
            )
            for token, record in values["records"].items()
        }
        return Shipped({str(name): int(offset) for name, offset in values["offsets"].items()}, records)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        return Shipped()


def save_shipped(folder: Path, uri: str, state: Shipped) -> None:
    """Store the progress. If the disk is full, this process remembers it, and others upload the lines again."""
    values = {
        "offsets": state.offsets,
        "records": {token: vars(record) for token, record in state.records.items()},
    }
    beside = folder / SPOOL_FOLDER / f"{SHIPPED}.{secrets.token_hex(4)}"
    try:
        beside.write_text(json.dumps({**_all_states(folder), _store_key(uri): values}), encoding="utf-8")
        beside.replace(folder / SPOOL_FOLDER / SHIPPED)
        _unsaved.pop((folder, uri), None)
    except OSError:
        _unsaved[folder, uri] = deepcopy(state)
        with contextlib.suppress(OSError):
            beside.unlink()


@contextlib.contextmanager
def shipping(folder: Path) -> Iterator[None]:
    """Let one process at a time send a run's folder, and note its progress."""
    try:
        file = open_lock(folder / SPOOL_FOLDER / "shipping.lock")
    except OSError:  # a full disk: better to send twice than not at all
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
