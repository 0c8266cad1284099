"""Polls runs until all have ended, and then runs a notification command."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from cppo_lab import schema
from cppo_lab.errors import UserError, say
from cppo_lab.runs.spool import score_text
from cppo_lab.sweep.status import RunStatus, table, totals
from cppo_lab.tracking.notify import counts

_URGENCY = (
    *(schema.RUNNING, schema.FAILED, schema.PARTIAL, schema.QUEUED),
    *(schema.STOPPED, schema.COLLAPSED, schema.DONE, schema.MISSING),
)
_TO_THE_TOP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(
    look: Callable[[], list[RunStatus]], every: float, out: TextIO, coloured: bool = False
) -> list[RunStatus]:
    """Show what `look` finds at an interval in seconds until nothing runs or waits; returns what it saw last.

    On a terminal the table is redrawn; elsewhere each change of a state is one line.
    """
    before: dict[str, str] = {}
    while True:
        runs = look()
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
