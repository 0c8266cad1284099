"""Shows the training steps and output of runs, from the files where each launcher keeps it, and follows both."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from cppo_lab.errors import UserError, harmless, printable
from cppo_lab.files import RedactedLines, open_below
from cppo_lab.launch.queues import read_queues
from cppo_lab.launch.slurm import LEDGER
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs.folder import TRACEBACK, batches_of, read_status
from cppo_lab.runs.spool import RunRows, score_of
from cppo_lab.sweep.plan import LENGTH, only, require_beginning
from cppo_lab.sweep.status import known_runs

POLL_SECONDS = 0.5
LOOK_SECONDS = 3.0  # interval of the check whether the run is still alive
PIECE = 1 << 16
_METRICS = {  # metric -> its label and format here, and a factor
    "train/reward": ("reward {:6.3f}", 1),
    "rule/masked_fraction": ("masked {:6.2f} %", 100),
    "perf/step_seconds": ("seconds {:8.2f} s", 1),
}


@dataclass
class LogFile:
    """A file of output, read as it grows, with secrets masked."""

    folder: Path  # of a run, a batch or a submission
    name: str  # below `folder`
    size: int
    changed: float  # seconds since the epoch
    _bytes: int = 0  # that were read
    _lines: RedactedLines = field(default_factory=RedactedLines)

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def news(self) -> Iterator[str]:
        """The whole lines that were added since the last call."""
        if (file := open_below(self.folder, *self.name.split("/"))) is None:
            return
        with file:
            file.seek(self._bytes)
            while piece := file.read(PIECE):
                self._bytes += len(piece)
                yield self._lines.add(piece)

    def to_the_end(self) -> Iterator[str]:
        """The same, then the last, unfinished line."""
        yield from self.news()
        yield self._lines.rest()


def _log_files(folder: Path, names: Sequence[str]) -> list[LogFile]:
    """Those that are plain files; a link is not followed, since a folder's files may be of another account."""
    files = []
    for name in names:
        with contextlib.suppress(UserError):
            if (file := open_below(folder, *name.split("/"))) is not None:
                with file:
                    stat = os.fstat(file.fileno())
                files.append(LogFile(folder, name, stat.st_size, stat.st_mtime))
    return files


def run_by_beginning(runs: Path, beginning: str) -> str:
    """The known run whose id has this prefix. Raises UserError as `run_folders`."""
    return run_folders(runs, [beginning])[0].name


def run_folders(runs: Path, beginnings: Sequence[str]) -> list[Path]:
    """The folders of the runs with these id prefixes; of every known run if there are none.

    Raises UserError for a prefix that is too short or matches no run or several.
    """
    for beginning in beginnings:
        require_beginning(beginning)
    run_ids = known_runs(runs, read_queues(runs))
    folders = [] if beginnings else [runs / run_id for run_id in run_ids]
    for beginning in beginnings:
        matches = [run_id for run_id in run_ids if run_id.startswith(beginning)]
        if not matches:
            raise UserError(
                f"run {beginning!r}: {runs} has no run with this prefix: see `cppo status` (an id has {LENGTH} digits)"
            )
        folders.append(runs / only(beginning, matches))
    return folders


def attempts(runs: Path, run_id: str) -> list[list[LogFile]]:
    """The output of each attempt at a run, or of its batch, the newest last: standard output, and standard error if it
    is separate.

    An attempt in the launcher's process prints there.
    """
    outputs: list[tuple[float, list[LogFile]]] = []
    for folder in (runs / run_id, *batches_of(runs, run_id)):
        for path in (folder / "attempts").glob("*_log.out"):
            names = [f"attempts/{path.stem}.{kind}" for kind in ("out", "err")]
            if files := _log_files(folder, names):
                outputs.append((files[0].changed, files))
    if (runs / LEDGER).is_file():
        with Ledger(runs) as ledger:
            for task in ledger.tasks_of(run_id):
                folder = ledger.folder_of(task.token)
                paths = sorted(folder.glob(f"{task.job}_*_log.*")) if task.job else []
                names = [path.name for path in paths if path.suffix in (".out", ".err")]
                if files := _log_files(folder, names):
                    outputs.append((task.created, files))
    return [files for _, files in sorted(outputs, key=itemgetter(0))]


def _files(runs: Path, run_id: str, every: bool) -> list[LogFile]:
    """The files with the output of the newest attempt, or of all; only non-empty ones, if there are any; otherwise the
    traceback.
    """
    outputs = attempts(runs, run_id)
    files = [file for output in (outputs if every else outputs[-1:]) for file in output]
    return [file for file in files if file.size] or files or _log_files(runs / run_id, [TRACEBACK])


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
    files = [file for file in files if file.size or not training]
    for file in files:
        if len(files) > 1 or training:
            out.write(f"==> {printable(str(file.path))} <==\n")
        out.writelines(map(harmless, file.to_the_end()))
    out.flush()


def as_values(runs: Path, run_id: str, every: bool) -> dict[str, Any]:
    """The same for JSON; nothing is an error here."""
    files = _files(runs, run_id, every)
    return {
        "steps": [vars(row) for row in RunRows(runs / run_id).news()],
        "output": [{"path": str(file.path), "text": "".join(file.to_the_end())} for file in files],
    }


def follow(runs: Path, run_id: str, alive: Callable[[], bool], out: TextIO) -> None:
    """Print training steps and the output of the newest and later attempts as they appear, until the run ends."""
    files: dict[Path, LogFile] = {}
    rows = RunRows(runs / run_id)
    looked, lives = time.monotonic(), alive()
    while True:
        for output in attempts(runs, run_id)[-1:]:
            for file in output:
                out.writelines(map(harmless, files.setdefault(file.path, file).news()))
        out.writelines(_training_news(rows))
        if not lives:
            for file in files.values():
                out.writelines(map(harmless, file.to_the_end()))
        out.flush()
        if not lives:
            return
        time.sleep(POLL_SECONDS)
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked, lives = time.monotonic(), alive()  # read once more what was written just before it ended


def _training_news(rows: RunRows) -> Iterator[str]:
    """A line for each step that the run has recorded since the last call:
    `step 10/50  score  43.2 %  reward  0.412  masked   2.10 %  seconds     1.32 s`.

    `score` is the mean over the benchmarks, present only if the step was validated. Metrics that were not logged are
    omitted.
    """
    t_stop = read_status(rows.folder).get("t_stop", "?")
    for row in rows.news():
        score = score_of(row)
        parts = [f"step {row.step:>{len(str(t_stop))}}/{t_stop}"]
        parts.append(" " * 14 if score is None else f"score {100 * score:5.1f} %")
        parts += [
            form.format(row.metrics[name] * factor)
            for name, (form, factor) in _METRICS.items()
            if name in row.metrics
        ]
        yield "  ".join(parts).rstrip() + "\n"
