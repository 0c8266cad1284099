"""The local record of a run: append-only lines in the run's folder, one file per attempt.

A file starts with a `begin` line that describes the attempt. Its `record` is a random name shared by all attempts that
continue the same MLflow run; the run is found by it even if a response of the server was lost. Then follow one line
per training step, the artifacts, and how the attempt ended. `tracking/upload` brings MLflow to the same state.
"""

import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from cppo_lab.runs.events import Begin, End, Line, StepEvent, decoded, encoded
from cppo_lab.safe_open import leads_nowhere, open_plain

FOLDER = "spool"  # in a run's folder
_SUFFIX = ".jsonl"
LONGEST = 16 * 2**20  # bytes of a line; a `begin` line has some ten thousand


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
