"""The state of runs with their numbers and names, from their folders and a look at the launchers' queues; as text, for
JSON and CSV, and watched until all have ended. And what runs print, from the files where each launcher keeps it.
"""

import contextlib
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from cppo_lab import schema
from cppo_lab.errors import UserError, counted, harmless, one_line, printable, say
from cppo_lab.files import RedactedLines, has_database, open_below
from cppo_lab.launch.queues import read_queues
from cppo_lab.launch.slurm import LEDGER
from cppo_lab.runs.folder import (
    COMPLETE_ID,
    CONFIG,
    ID_LENGTH,
    TRACEBACK,
    batches_of,
    holder,
    machine_seconds,
    only_id,
    parse_variants,
    read_config,
    read_status,
    require_beginning,
    seconds_trained,
)
from cppo_lab.runs.spool import RunRows, score_of, score_text
from cppo_lab.runs.state import Queued, RunFolder, RunState, by_state, counts, explained, state_of
from cppo_lab.sweep.columns import RUN_ID, aligned

COLUMNS = (
    *("run_id", "variants", "rule", "model", "seed", "state", "step", "t_stop", "score", "eta_seconds"),
    *("hours", "gpu_hours", "job", "reason", "last", "best", "best_step", "final_mean"),
)
_RIGHT = frozenset({"seed", "step", "last %", "best %", "ETA", "hours", "GPU-hours"})
_LIVE_LAST = (
    *(schema.MISSING, schema.DONE, schema.COLLAPSED, schema.STOPPED, schema.PARTIAL),
    *(schema.FAILED, schema.QUEUED, schema.RUNNING),
)


@dataclass(frozen=True)
class RunStatus:
    """One run with its names in its sweep, or otherwise in its folder, and its state.

    `score` (the last), `best` and `final_mean` are fractions (runs/spool.py), `eta_seconds` the time to its last
    step at the pace of this attempt; `hours` and `gpu_hours` were used by all attempts together, and by runs that
    were trained in the same process: `share` of them counts for this run alone. `job` is the newest Slurm job, or
    host:pid of the training process. Unknown values are None or empty.
    """

    run_id: str
    rule: str
    model: str
    seed: int | None
    state: str
    reason: str = ""
    step: int | None = None
    t_stop: int | None = None
    score: float | None = None
    best: float | None = None
    best_step: int | None = None
    final_mean: float | None = None
    eta_seconds: float | None = None
    hours: float | None = None
    gpu_hours: float | None = None
    job: str = ""
    share: float = 1.0
    variants: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its variant in the first of its sweeps; the rule if it has no sweep."""
        return next(iter(self.variants.values()), self.rule)

    @property
    def title(self) -> str:
        """`cppo/mini_base/seed 0`."""
        return f"{self.name}/{self.model}/seed {self.seed}"


def known_runs(runs: Path, queued: Queued) -> list[str]:
    """Every run with a folder, on the list of a live launcher, or in the record of Slurm jobs."""
    folders = {path.name for path in runs.glob("*") if path.is_dir()}
    # The ledger also has runs that Slurm refused.
    in_queue = [run_id for run_id, place in queued.places.items() if place.job or place.waits is not None]
    return sorted(filter(COMPLETE_ID.fullmatch, folders.union(queued.listed, in_queue)))


def run_statuses(runs: Path, planned: Mapping[str, Mapping[str, Any]] | None = None) -> list[RunStatus]:
    """The state of runs: those that are `planned`, in their order, or every known run, live ones last. `planned` has
    the names of each run (`PlannedRun.names`), or nothing: then they are those in its folder.
    """
    queued = read_queues(runs)
    run_ids = known_runs(runs, queued) if planned is None else planned
    folders = [RunFolder(runs / run_id) for run_id in run_ids]
    states = explained({run.path.name: state_of(run, queued) for run in folders}, queued)
    statuses = [
        _status(run, states[run.path.name], (planned or {}).get(run.path.name), queued) for run in folders
    ]
    if planned is None:
        statuses.sort(key=lambda run: (_LIVE_LAST.index(run.state), run.model, run.name, f"{run.seed!s:>10}"))
    return statuses


def _status(run: RunFolder, state: RunState, names: Mapping[str, Any] | None, queued: Queued) -> RunStatus:
    """A run that is in this state, with the numbers of its status; older versions wrote fewer."""
    status, eta, since, signs = run.status, None, 0.0, ""
    job = queued.place(run.path.name).job
    names = names or status
    if "rule" not in names:  # a folder called like a run may hold another program's configuration
        config = read_config(run.path / CONFIG)
        names = {
            key: value.get("name") if isinstance(value, dict) else value for key, value in config.items()
        } | {"variants": status.get("variants")}
    step, t_stop = status.get("step"), status.get("t_stop")
    if state.step is not None:
        step, t_stop = state.step, state.t_stop
    if state.state == schema.RUNNING:
        signs = schema.early_signs(status.get("score"), status.get("best"))
        if not job and (process := holder(run.path)):
            job = f"{process[0]}:{process[1]}"
        if status.get("status") == schema.RUNNING and "updated" in status:
            since = max(0.0, time.time() - status["updated"])
            first, began = status.get("first_step"), status.get("first_time")
            if step is not None and t_stop and first is not None and began and step > first:
                pace = (status["updated"] - began) / (step - first)
                eta = max(0.0, (t_stop - step) * pace - since)
    trained = seconds_trained(status)
    hours = (trained + since) / 3600 if trained else None
    return RunStatus(
        run.path.name,
        str(names.get("rule") or "?"),
        str(names.get("model") or "?"),
        names.get("seed"),
        state.state,
        one_line(state.reason) or signs,
        step,
        t_stop,
        **{name: status.get(name) for name in ("score", "best", "best_step", "final_mean")},
        variants=parse_variants(names.get("variants")),
        eta_seconds=eta,
        hours=hours,
        gpu_hours=hours * status["gpus"] if hours and status.get("gpus") else None,
        job=job,
        share=machine_seconds(status) / trained if trained else 1.0,
    )


def ordered(runs: Sequence[RunStatus], score: str | None) -> list[RunStatus]:
    """By `last`, `best` or `final_mean`, the highest first, runs without a score last; None: as they are."""
    if score is None:
        return list(runs)
    name = "score" if score == "last" else score
    return sorted(runs, key=lambda run: math.inf if getattr(run, name) is None else -getattr(run, name))


def values(run: RunStatus) -> dict[str, Any]:
    """The values of a run, by the names of COLUMNS."""
    row = {**vars(run), "variants": dict(run.variants), "last": run.score}
    return {name: round(row[name], 6) if isinstance(row[name], float) else row[name] for name in COLUMNS}


def as_values(shown: Sequence[RunStatus], runs: Sequence[RunStatus]) -> dict[str, Any]:
    """For JSON: the runs shown, and the number of runs in each state among all."""
    return {"runs": list(map(values, shown)), "states": by_state(run.state for run in runs)}


def table(runs: Sequence[RunStatus], width: int | None = None, coloured: bool = False) -> str:
    """Aligned columns. If lines are longer than `width` (None: no limit), the least important columns are dropped and
    reasons are cut.
    """
    on_gpus = any(run.gpu_hours is not None for run in runs)
    hours = "GPU-hours" if on_gpus else "hours"
    name = "variant" if any(run.variants for run in runs) else "rule"
    head = [RUN_ID, name, "model", "seed", "state", "step", "last %", "best %", "ETA", hours, "job", "reason"]
    alike = ("model",) if len({run.model for run in runs}) == 1 else ()
    spare = ("job", hours, *alike, "ETA", RUN_ID, "best %", "last %")
    rows = [
        [
            *(run.run_id, run.name, run.model, _or_dash(run.seed), run.state),
            "-" if run.step is None else f"{run.step}/{'?' if run.t_stop is None else run.t_stop}",
            *("-" if score is None else f"{100 * score:.1f}" for score in (run.score, run.best)),
            "-" if run.eta_seconds is None else _duration(run.eta_seconds),
            _or_dash(run.gpu_hours if on_gpus else run.hours, ".2f"),
            *(run.job or "-", run.reason),
        ]
        for run in runs
    ]
    return aligned(head, rows, right=_RIGHT, width=width, spare=spare, coloured=coloured)


def _or_dash(value: float | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def totals(runs: Sequence[RunStatus]) -> str:
    """`6 runs: 4 done, 2 running; 1.20 GPU-hours used; the last of the running ones ends in about 12 min`."""
    states = ", ".join(f"{count} {state}" for state, count in by_state(run.state for run in runs).items())
    parts = [counted(len(runs), "run") + (f": {states}" if states else "")]
    gpu_hours, hours = (
        sum((getattr(run, name) or 0.0) * run.share for run in runs) for name in ("gpu_hours", "hours")
    )
    if gpu_hours or hours:
        parts.append(f"{gpu_hours or hours:.2f} {'GPU-hours' if gpu_hours else 'hours'} used")
    running = [run for run in runs if run.eta_seconds is not None]
    if times := [run.eta_seconds or 0.0 for run in running]:
        which = "the last of the running ones"
        if queued := sum(run.state == schema.QUEUED for run in runs):
            which = "the last of the queued ones"
            # As many at a time as now, each as long as the longest of these.
            whole = max(
                seconds * (run.t_stop or 0) / max((run.t_stop or 0) - (run.step or 0), 1)
                for run, seconds in zip(running, times, strict=True)
            )
            heapify(times)
            for _ in range(queued):
                heapreplace(times, times[0] + whole)
        parts.append(f"{which} ends in about {_duration(max(times))}")
    return "; ".join(parts)


_URGENCY = (
    *(schema.RUNNING, schema.FAILED, schema.PARTIAL, schema.QUEUED),
    *(schema.STOPPED, schema.COLLAPSED, schema.DONE, schema.MISSING),
)
_TO_THE_TOP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(
    read_statuses: Callable[[], list[RunStatus]], every: float, out: TextIO, coloured: bool = False
) -> list[RunStatus]:
    """Show what `read_statuses` gives at an interval in seconds until nothing runs or waits; returns what it saw last.

    On a terminal the table is redrawn; elsewhere each change of a state is a line.
    """
    before: dict[str, str] = {}
    while True:
        runs = read_statuses()
        if out.isatty():
            out.write(_screen(runs, shutil.get_terminal_size(), coloured))
        else:
            out.writelines(f"{line}\n" for line in _changes(runs, before))
        out.flush()
        before = {run.run_id: run.state for run in runs}
        if schema.ALIVE.isdisjoint(before.values()):
            return runs
        time.sleep(every)


def _screen(runs: Sequence[RunStatus], size: os.terminal_size, coloured: bool) -> str:
    """The table from the top of the screen; if it is too long, only the most important rows."""
    room = max(size.lines - 4, 1)
    shown = runs
    if len(runs) > room:
        shown = sorted(runs, key=lambda run: _URGENCY.index(run.state))[: room - 1]
    lines = [totals(runs), "", *table(shown, size.columns, coloured).splitlines()]
    if len(shown) < len(runs):
        lines.append(f"and {len(runs) - len(shown)} more (`cppo status` lists all)")
    return _TO_THE_TOP + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW


def _changes(runs: Sequence[RunStatus], before: Mapping[str, str]) -> list[str]:
    """One line for every run whose state has changed; the first time a single summary line."""
    if not before:
        return [totals(runs)]
    lines = []
    for run in runs:
        if run.state != before.get(run.run_id):
            step = "" if run.step is None else f"step {run.step}/{run.t_stop}"
            parts = (run.state, step, score_text(run.score, run.best, run.best_step))
            reason = f": {run.reason}" if run.reason else ""
            lines.append(f"{run.run_id} {run.title}: {', '.join(filter(None, parts))}{reason}")
    return lines


def parse_command(text: str) -> list[str]:
    """The words of a command; no shell reads it.

    Raises UserError if there are none, quotes do not match, or there is no such program.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--notify {text!r}: {error}: quote it as a shell would want it") from None
    if not words or shutil.which(words[0]) is None:
        raise UserError(f"--notify {text!r}: there is no such program: give a command on PATH, or its path")
    return words


def notify(command: Sequence[str], sweep: str, runs: Sequence[RunStatus]) -> None:
    """Run the command once; its environment has the numbers of done (also collapsed), failed and remaining runs.

    A failing command is reported on standard error.
    """
    numbers = {f"CPPO_{name.upper()}": str(n) for name, n in counts(run.state for run in runs).items()}
    environment = {**os.environ, "CPPO_SWEEP": sweep, **numbers}
    if not sys.flags.safe_path:  # the variable is for our children; this is the user's program
        environment.pop("PYTHONSAFEPATH", None)
    try:
        status = subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        say(f"cppo: the command of --notify could not be run: {error}")
        return
    if status:
        say(f"cppo: the command of --notify ended with status {status}")


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
    if not beginnings:
        return [runs / run_id for run_id in run_ids]
    folders = []
    for beginning in beginnings:
        matches = [run_id for run_id in run_ids if run_id.startswith(beginning)]
        if not matches:
            raise UserError(
                f"run {beginning!r}: {runs} has no run with this prefix: see `cppo status` (an id has {ID_LENGTH} "
                "digits)"
            )
        folders.append(runs / only_id(beginning, matches))
    return folders


def attempt_logs(runs: Path, run_id: str) -> list[list[LogFile]]:
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
    if has_database(runs / LEDGER):
        from cppo_lab.launch.slurm.queue import Ledger

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
    outputs = attempt_logs(runs, run_id)
    files = [file for output in (outputs if every else outputs[-1:]) for file in output]
    return [file for file in files if file.size] or files or _log_files(runs / run_id, [TRACEBACK])


def print_logs(runs: Path, run_id: str, every: bool, out: TextIO) -> None:
    """Print a line for each training step, and the output of the newest attempt, or of all; the traceback if no output
    was printed to a file.

    Raises UserError if there is none of these.
    """
    training = list(_training_news(RunRows(runs / run_id)))
    files = _files(runs, run_id, every)
    if not files and not training:
        why = "was finished elsewhere" if read_status(runs / run_id).get("origin") else "has not started"
        raise UserError(f"run {run_id}: it has no output and no training step: it {why}")
    out.writelines(training)
    files = [file for file in files if file.size or not training]
    for file in files:
        if len(files) > 1 or training:
            out.write(f"==> {printable(str(file.path))} <==\n")
        out.writelines(map(harmless, file.to_the_end()))
    out.flush()


def log_values(runs: Path, run_id: str, every: bool) -> dict[str, Any]:
    """The same for JSON; nothing is an error here."""
    files = _files(runs, run_id, every)
    return {
        "steps": [vars(row) for row in RunRows(runs / run_id).news()],
        "output": [{"path": str(file.path), "text": "".join(file.to_the_end())} for file in files],
    }


def follow_logs(runs: Path, run_id: str, alive: Callable[[], bool], out: TextIO) -> None:
    """Print training steps and the output of the newest and later attempts as they appear, until the run ends."""
    files: dict[Path, LogFile] = {}
    rows = RunRows(runs / run_id)
    looked, lives = time.monotonic(), alive()
    while True:
        for output in attempt_logs(runs, run_id)[-1:]:
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
