"""The status of runs as text and for JSON; polls runs until all have ended, and then runs a notification command."""

import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.monitor.status import RunStatus
from cppo_lab.runs.spool import score_text
from cppo_lab.sweep.columns import RUN_ID, aligned

COLUMNS = (
    *("run_id", "variants", "rule", "model", "seed", "state", "step", "t_stop", "score", "eta_seconds"),
    *("hours", "gpu_hours", "job", "reason", "last", "best", "best_step", "final_mean"),
)
_RIGHT = frozenset({"seed", "step", "last", "best", "ETA", "hours", "GPU-hours"})
_URGENCY = (
    *(schema.RUNNING, schema.FAILED, schema.PARTIAL, schema.QUEUED),
    *(schema.COLLAPSED, schema.DONE, schema.MISSING),
)
_TO_THE_TOP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def values(run: RunStatus) -> dict[str, Any]:
    """The values of one run, by the names of COLUMNS."""
    label = vars(run.label)
    row = {**vars(run), **label, "variants": dict(label["variants"]), "last": run.score}
    return {name: round(row[name], 6) if isinstance(row[name], float) else row[name] for name in COLUMNS}


def ordered(runs: Sequence[RunStatus], score: str | None) -> list[RunStatus]:
    """By `last`, `best` or `final_mean`, the highest first, runs without one last; None: as they are."""
    if score is None:
        return list(runs)
    scores = {run.run_id: vars(run)["score" if score == "last" else score] for run in runs}
    return sorted(runs, key=lambda run: math.inf if scores[run.run_id] is None else -scores[run.run_id])


def as_values(shown: Sequence[RunStatus], runs: Sequence[RunStatus]) -> dict[str, Any]:
    """For JSON: the runs shown, and the number of runs in each state among all."""
    return {"runs": list(map(values, shown)), "states": _counts(runs)}


def table(runs: Sequence[RunStatus], width: int | None = None, coloured: bool = False) -> str:
    """Aligned columns. If lines are longer than `width` (None: no limit), the least important columns are dropped and
    reasons are cut.
    """
    on_gpus = any(run.gpu_hours is not None for run in runs)
    named = any(run.label.variants for run in runs)
    hours = "GPU-hours" if on_gpus else "hours"
    head = [RUN_ID, "variant" if named else "rule", "model", "seed", "state", "step", "last", "best", "ETA"]
    head += [hours, "job", "reason"]
    alike = ("model",) if len({run.label.model for run in runs}) == 1 else ()
    spare = ("job", hours, *alike, "ETA", RUN_ID, "best", "last")
    rows = [_cells(run, run.gpu_hours if on_gpus else run.hours) for run in runs]
    return aligned(head, rows, right=_RIGHT, width=width, spare=spare, coloured=coloured)


def _cells(run: RunStatus, hours: float | None) -> list[str]:
    return [
        *(run.run_id, run.label.name, run.label.model),
        "-" if run.label.seed is None else str(run.label.seed),
        run.state,
        "-" if run.step is None else f"{run.step}/{'?' if run.t_stop is None else run.t_stop}",
        *("-" if score is None else f"{100 * score:.1f}" for score in (run.score, run.best)),
        "-" if run.eta_seconds is None else _duration(run.eta_seconds),
        "-" if hours is None else f"{hours:.2f}",
        *(run.job or "-", run.reason),
    ]


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def totals(runs: Sequence[RunStatus]) -> str:
    """`6 runs: 4 done, 2 running; 1.20 GPU-hours used; the last of the running ones ends in about 12 min`."""
    states = ", ".join(f"{count} {state}" for state, count in _counts(runs).items())
    parts = [f"{len(runs)} run{'' if len(runs) == 1 else 's'}" + (f": {states}" if states else "")]
    gpu_hours, hours = (sum(getattr(run, name) or 0.0 for run in runs) for name in ("gpu_hours", "hours"))
    if gpu_hours or hours:
        parts.append(f"{gpu_hours or hours:.2f} {'GPU-hours' if gpu_hours else 'hours'} used")
    times = [run.eta_seconds for run in runs if run.eta_seconds is not None]
    if times:
        parts.append(f"the last of the running ones ends in about {_duration(max(times))}")
    return "; ".join(parts)


def _counts(runs: Sequence[RunStatus]) -> dict[str, int]:
    """The number of runs in each state that one of them has."""
    counts = Counter(run.state for run in runs)
    return {state: counts[state] for state in schema.STATES if counts[state]}


def watch(
    look: Callable[[], list[RunStatus]], every: float, out: TextIO, coloured: bool = False
) -> list[RunStatus]:
    """Show what `look` finds at an interval in seconds until nothing runs or waits; returns what it found last.

    On a terminal the table is redrawn; elsewhere each change of a state is one line.
    """
    before: dict[str, str] = {}
    screen = out.isatty()
    while True:
        runs = look()
        if screen:
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
            reached = "" if run.step is None else f"step {run.step}/{run.t_stop}"
            parts = (run.state, reached, score_text(run.score, run.best, run.best_step))
            reason = f": {run.reason}" if run.reason else ""
            lines.append(f"{run.run_id} {title(run)}: {', '.join(filter(None, parts))}{reason}")
    return lines


def title(run: RunStatus) -> str:
    """`cppo/mini_base/seed 0`."""
    return f"{run.label.name}/{run.label.model}/seed {run.label.seed}"


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
    done = sum(run.state in schema.FINISHED for run in runs)
    failed = sum(run.state == schema.FAILED for run in runs)
    numbers = {"CPPO_DONE": done, "CPPO_FAILED": failed, "CPPO_LEFT": len(runs) - done - failed}
    environment = {**os.environ, "CPPO_SWEEP": sweep, **{name: str(n) for name, n in numbers.items()}}
    if not sys.flags.safe_path:  # the variable is for our own children; this is the user's program
        environment.pop("PYTHONSAFEPATH", None)
    try:
        status = subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        print(f"cppo: the command of --notify could not be run: {error}", file=sys.stderr)
        return
    if status:
        print(f"cppo: the command of --notify ended with status {status}", file=sys.stderr)
