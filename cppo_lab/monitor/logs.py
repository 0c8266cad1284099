"""Shows the training steps and output of runs, from the files where each launcher keeps it, and follows both."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm.ledger import NAME, Ledger
from cppo_lab.monitor.status import known_runs, live_state
from cppo_lab.monitor.training import training_line
from cppo_lab.redaction import RedactedLines
from cppo_lab.runs.batch import batches_of
from cppo_lab.runs.folder import TRACEBACK, read_status
from cppo_lab.runs.following import RunRows
from cppo_lab.sweep.find import LENGTH, require_beginning

POLL_SECONDS = 0.5
LOOK_SECONDS = 3.0  # interval of the check whether the run is still alive
PIECE = 1 << 16


@dataclass(frozen=True)
class LogText:
    """The output of one attempt: standard output, and standard error if it is separate."""

    began: float  # seconds since the epoch
    files: tuple[Path, ...]


def run_by_beginning(runs: Path, beginning: str) -> str:
    """The known run whose id has this prefix.

    Raises UserError for a prefix that is too short or matches no run or several.
    """
    require_beginning(beginning)
    found = [run_id for run_id in known_runs(live_state(runs)) if run_id.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UserError(
            f"run {beginning!r}: {runs} has no run with this prefix: see `cppo status` (an id has {LENGTH} digits)"
        )
    raise UserError(
        f"run {beginning!r} is a prefix of {len(found)} ids: {', '.join(found[:10])}: give more digits"
    )


def run_folders(runs: Path, beginnings: Sequence[str]) -> list[Path]:
    """The folders of the runs with these id prefixes; of every known run if there are none.

    Raises UserError for a prefix that matches no run or several.
    """
    if beginnings:
        return [runs / run_by_beginning(runs, one) for one in beginnings]
    return [runs / run_id for run_id in known_runs(live_state(runs))]


def attempts(runs: Path, run_id: str) -> list[LogText]:
    """The output of each attempt at a run, or of its batch, the newest last.

    An attempt in the launcher's own process prints there.
    """
    found = []
    folders = [runs / run_id, *batches_of(runs, run_id)]
    for path in (path for folder in folders for path in (folder / "attempts").glob("*_log.out")):
        if not path.is_file():  # a link that leads nowhere, a pipe
            continue
        both = (path, path.with_name(path.name.removesuffix("out") + "err"))
        found.append(LogText(path.stat().st_mtime, tuple(one for one in both if one.is_file())))
    if (runs / NAME).is_file():
        with Ledger(runs) as ledger:
            for task in ledger.tasks_of(run_id):
                if task.job:
                    files = sorted(ledger.folder_of(task.token).glob(f"{task.job}_*_log.*"))
                    files = [path for path in files if path.suffix in (".out", ".err")]
                    found.append(LogText(task.created, tuple(files)))
    return sorted((one for one in found if one.files), key=lambda one: one.began)


def show(runs: Path, run_id: str, every: bool, out: TextIO) -> None:
    """Print a line for each training step, and the output of the newest attempt, or of all; the traceback if no output
    was printed to a file.

    Raises UserError if there is none of these.
    """
    training = list(_training_news(RunRows(runs / run_id)))
    files = _files(runs, run_id, every)
    if not files and not training:
        raise UserError(f"run {run_id}: it has no output and no training step: it has not started")
    out.writelines(training)
    files = [path for path in files if path.stat().st_size or not training]
    for path in files:
        if len(files) > 1 or training:
            out.write(f"==> {path} <==\n")
        with path.open("rb") as file:
            lines = RedactedLines()
            while piece := file.read(PIECE):
                out.write(lines.add(piece))
            out.write(lines.rest())
    out.flush()


def _files(runs: Path, run_id: str, every: bool) -> list[Path]:
    """The files with the output of the newest attempt, or of all; only non-empty ones, if there are any."""
    found = attempts(runs, run_id)
    files = [path for one in (found if every else found[-1:]) for path in one.files]
    files = [path for path in files if path.stat().st_size] or files
    trace = runs / run_id / TRACEBACK
    return [trace] if not files and trace.is_file() else files


def as_values(runs: Path, run_id: str, every: bool) -> dict[str, Any]:
    """The same for JSON; nothing is an error here."""
    output = []
    for path in _files(runs, run_id, every):
        lines = RedactedLines()
        output.append({"path": str(path), "text": lines.add(path.read_bytes()) + lines.rest()})
    return {"steps": [vars(row) for row in RunRows(runs / run_id).news()], "output": output}


def follow(runs: Path, run_id: str, alive: Callable[[], bool], out: TextIO) -> None:
    """Print training steps and the output of the newest and later attempts as they appear, until the run ends."""
    read: dict[Path, _Place] = {}
    rows = RunRows(runs / run_id)
    looked, lives = time.monotonic(), alive()
    while True:
        for text in _news(attempts(runs, run_id)[-1:], read):
            out.write(text)
        out.writelines(_training_news(rows))
        out.flush()
        if not lives:
            out.write("".join(place.lines.rest() for place in read.values()))
            out.flush()
            return
        time.sleep(POLL_SECONDS)
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked, lives = time.monotonic(), alive()  # read once more what was written just before it ended


def _training_news(rows: RunRows) -> Iterator[str]:
    """A line for each step that the run has recorded since the last call."""
    t_stop = read_status(rows.folder).get("t_stop")
    for row in rows.news():
        yield training_line(row, t_stop if isinstance(t_stop, int) else None) + "\n"


class _Place:
    """How far a file was read, in bytes, and the unfinished line."""

    def __init__(self) -> None:
        self.bytes = 0
        self.lines = RedactedLines()


def _news(newest: Sequence[LogText], read: dict[Path, _Place]) -> Iterator[str]:
    """The text that was added to the files since the last call; updates `read`."""
    for one in newest:
        for path in one.files:
            place = read.setdefault(path, _Place())
            with path.open("rb") as file:
                file.seek(place.bytes)
                while piece := file.read(PIECE):
                    place.bytes += len(piece)
                    yield place.lines.add(piece)
