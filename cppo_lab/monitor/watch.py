"""Polls runs until all have ended, and then runs a notification command."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.monitor.status import RunStatus
from cppo_lab.monitor.table import all_ended, table, totals
from cppo_lab.runs.scores import score_text

_URGENCY = (
    *(schema.RUNNING, schema.FAILED, schema.PARTIAL, schema.QUEUED),
    *(schema.COLLAPSED, schema.DONE, schema.MISSING),
)
_TO_THE_TOP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(
    look: Callable[[], list[RunStatus]], every: float, out: TextIO, coloured: bool = False
) -> list[RunStatus]:
    """Show what `look` finds at an interval in seconds until nothing runs or waits; returns what it found last.

    On a terminal the table is redrawn; elsewhere each change of a state is one line.
    """
    before: dict[str, str] = {}
    screen = out.isatty()
    while True:
        found = look()
        if screen:
            out.write(_screen(found, shutil.get_terminal_size(), coloured))
        else:
            out.writelines(f"{line}\n" for line in _changes(found, before))
        out.flush()
        before = {one.run_id: one.state for one in found}
        if all_ended(found):
            return found
        time.sleep(every)


def _screen(found: Sequence[RunStatus], size: os.terminal_size, coloured: bool) -> str:
    """The table from the top of the screen; if it is too long, only the most important rows."""
    room = max(size.lines - 4, 1)
    shown = found
    if len(found) > room:
        shown = sorted(found, key=lambda one: _URGENCY.index(one.state))[: room - 1]
    lines = [totals(found), "", *table(shown, size.columns, coloured).splitlines()]
    if len(shown) < len(found):
        lines.append(f"and {len(found) - len(shown)} more (`cppo status` lists all)")
    return _TO_THE_TOP + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW


def _changes(found: Sequence[RunStatus], before: dict[str, str]) -> list[str]:
    """One line for every run whose state has changed; the first time a single summary line."""
    if not before:
        return [totals(found)]
    lines = []
    for one in found:
        if one.state != before.get(one.run_id):
            label = one.label
            name = f"{one.run_id} {label.name}/{label.model}/seed {label.seed}"
            reached = "" if one.step is None else f", step {one.step}/{one.t_stop}"
            text = score_text(one.score, one.best, one.best_step)
            score = f", {text}" if text else ""
            reason = f": {one.reason}" if one.reason else ""
            lines.append(f"{name}: {one.state}{reached}{score}{reason}")
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


def notify(command: Sequence[str], sweep: str, found: Sequence[RunStatus]) -> None:
    """Run the command once; its environment has the numbers of done (also collapsed), failed and remaining runs.

    A failing command is reported on standard error.
    """
    counts = Counter(one.state for one in found)
    done, failed = sum(counts[state] for state in schema.FINISHED), counts[schema.FAILED]
    numbers = {"CPPO_DONE": done, "CPPO_FAILED": failed, "CPPO_LEFT": len(found) - done - failed}
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
