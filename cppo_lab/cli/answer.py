"""What a command prints with `--json`: one object, with the same heading for every command.

ANSWERS is the schema: the keys of each command beside those of HEADING. docs/commands.md shows it.
"""

import argparse
import contextlib
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import IO, Any

SCHEMA = 1
HEADING = {
    "schema": "version of this format: 1; keys may be added, but none is removed or changes its meaning",
    "command": "the command, as in `plan` or `data check`",
    "exit_code": "the command's exit code",
    "error": "the error message, as on standard error; null if there was none. On an error the other keys are missing",
}
_RUNS = "one object per run, see below"
_PLAN = {
    "sweep": "name",
    "core": "trainer core",
    "runs": _RUNS,
    "totals": "runs, places, states and costs of all runs",
}
_TRAINED = {
    **_PLAN,
    "dry_run": "true if nothing was trained",
    "to_train": "ids of the runs that were (or would be) trained",
    "left": "ids of failed runs, which only `cppo retry` retrains",
    "replaced": "run id -> MLflow ids of the results that were replaced",
    "held": "ids of the runs that may have been finished elsewhere, since the store does not answer",
}
_FILES = {"folder": "path", "files": "name -> counts, origin and checksums"}
# A key that ends with ? is there where it applies.
ANSWERS: dict[str, dict[str, str]] = {
    "list": {
        "sweeps?": "without a word, or with `sweeps`: name (or path), title and question of each",
        "models?": "with `models`: name and meaning of each",
        "rules?": "with `rules`: name and meaning of each",
        "keys?": "with `keys`: key, default and meaning of each",
    },
    "new": {"sweep": "name", "file": "path of the file that was written"},
    "plan": {
        **{"sweep": "name", "core": "trainer core", "runs?": _RUNS},
        "totals?": "runs, places, states and costs of all runs",
        "correlation?": "with `--power`: assumed correlation of runs of the same seed",
        "claims?": "with `--power`: each claim with its power",
        "differences?": "with `--power` and without claims: what the seeds of two methods can show, of each model",
        "hours_are?": "with `--power`: `gpu` or `machine`, the unit of hours_needed; null if no cost is known",
        "search?": "for a search: study, model, seeds, objectives, parameters, trials, states",
    },
    "show": {
        "runs": "one object per run: run_id, source, run (the resolved configuration), layout, paths, estimate"
    },
    "diff": {
        "runs": "the two runs: run_id and source",
        "identical": "whether no key differs",
        "differences": "key -> the two values, null where a run lacks it",
    },
    "pull": {
        **{"sweep": "name", "core": "trainer core", "store": "address"},
        "asked": "ids of the runs without a record here",
        "pulled": "ids of those that were finished elsewhere",
        "removed": "ids of runs pulled earlier that the store does not have any more",
    },
    "launch": _TRAINED,
    "retry": _TRAINED,
    "preflight": {
        **{"sweep": "name", "core": "trainer core"},
        "kinds": "of each kind: model, layout, runs (ids), measured, error, hours (low, high; of all its runs), folder",
    },
    "status": {"runs": _RUNS, "states": "state -> number of runs, before --state filters them"},
    "watch": {"runs": _RUNS, "states": "state -> number of runs, when all have ended"},
    "logs": {
        "run_id": "the run",
        "steps": "step, time_ms (since the epoch) and metrics of each recorded step",
        "output": "path and text of each file of printed output",
    },
    "cancel": {
        "runs": "run_id, text and done of each run that was chosen",
        "dry_run": "true if nothing was cancelled",
    },
    "sync": {
        **{
            "store": "address",
            "runs": "ids of the runs with metrics to upload",
            "dry_run": "true if nothing was uploaded",
        },
        "points": "number of metric points uploaded",
    },
    "tune": {
        "search": "study, model, seeds, objectives, parameters, trials, states",
        "storage": "address of the study",
        "dry_run": "true if nothing was trained",
        "text": "the result in words",
    },
    "report": {
        "sweep": "name",
        "page": "path of index.html",
        "folder": "path",
    },
    "compare": {
        **{"same": "whether nothing differs", "before": "report", "after": "report"},
        **dict.fromkeys(("heading", "runs", "cells", "verdicts", "figures"), "what differs"),
    },
    "reference import": {"store": "address", "added": "number of runs that were added"},
    "export model": {"run_id": "the run", "folder": "path"},
    "export metrics": {
        **{"sweep": "name", "overrides": "as given", "read_from": "store or `paper`", "folder": "path"},
        **{"format": "parquet or csv", "states": "state -> runs", "rows": "table -> rows"},
    },
    "samples": {
        **{"run": "run id", "step": "training step", "left_out": "samples that were not kept"},
        "samples": "prompt, response, answer, truth, grade, reward and more of each",
    },
    "replay": {
        **{"run": "run id", "step": "training step", "left_out": "responses that were not kept"},
        **{
            "rule": "name",
            "constants": "constants of the rule",
            "divergence": "the D_t passed to it",
            "share_kept": "share of the tokens that the rule keeps",
        },
        "own": "the same for the rule that the run was trained with",
        "responses": "both rules' tests and the tokens on which they differ, for each response (docs/answers.md)",
    },
    "ui": {"links": "name and url of each page"},
    "data prepare": _FILES,
    "data check": _FILES,
    "doctor": {
        **{"core": "trainer core", "model": "name", "ready": "whether a run can start here"},
        "checks": "name, status, found and remedy of each",
    },
    "completion": {"shell": "name", "script": "the script for the shell"},
}
# The keys that `runs` of plan, launch, retry, status and watch share.
RUN_KEYS = {
    "run_id": "12 hexadecimal digits",
    "variants": "sweep -> the run's variant there, with the values of its axes",
    "rule": "rule name",
    "model": "model name",
    "seed": "whole number, or null",
    "state": "one of the states of `cppo status`",
    "reason": "why the run ended, what it is waiting for, or what it is doing",
    "step": "last step, or null",
}


def answer(options: argparse.Namespace, values: Mapping[str, Any]) -> None:
    """What the command answers with --json; `main` prints it once the command has ended, or `options.answer_now`."""
    options.answer = dict(values)


def document(options: argparse.Namespace, code: int, error: str | None = None) -> str:
    """The whole object as text. What is no number (NaN, infinity) is null: JSON has none of them."""
    heading = {"schema": SCHEMA, "command": options.name, "exit_code": int(code), "error": error}
    values = {} if error is not None else options.answer or {}
    return json.dumps(_finite(heading | values), indent=1, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


@contextlib.contextmanager
def exclusive_output() -> Iterator[IO[str]]:
    """A stream to standard output, where nothing else is printed meanwhile: that goes to standard error, also of
    processes that are started."""
    before = sys.stdout
    before.flush()
    try:
        number: int | None = before.fileno()
    except (OSError, io.UnsupportedOperation):  # a test's
        number = None
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            is_stdout = number == 1
            yield (
                stack.enter_context(os.fdopen(os.dup(stdout), "w", encoding="utf-8")) if is_stdout else before
            )
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


class Exit(IntEnum):
    """The exit codes of every command; `docs/commands.md` and `cppo --help` have them too."""

    DONE = 0
    NO = 1
    USAGE = 2
    STORE_AWAY = 3
    RUNS_FAILED = 4
    PACKAGE = 5
    INTERRUPTED = 130
    READER_GONE = 141


MEANINGS = {
    Exit.DONE: "done; for commands that answer a question: yes",
    Exit.NO: "not everything is done (runs are left, partial or cancelled); for commands that answer a question: no",
    Exit.USAGE: "bad input: an argument, a key, a file or a folder; nothing was started",
    Exit.STORE_AWAY: "the tracking store does not exist, cannot be reached or cannot be read",
    Exit.RUNS_FAILED: "runs have failed with an error",
    Exit.PACKAGE: "a package that the command needs is not installed",
    Exit.INTERRUPTED: "interrupted; run the same command to continue",
    Exit.READER_GONE: "the program that reads the output has exited, as `head` does early",
}


def codes_text() -> str:
    """The codes as lines of a help text."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())


def width() -> int | None:
    """Columns of the terminal; None where standard output is none: what reads it wants whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def coloured() -> bool:
    """Whether standard output may be coloured: it is a terminal, and NO_COLOR (no-color.org) does not forbid it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def passing(text: str, piped: bool = False) -> None:
    """Say what goes on, on a line of standard error that the next line replaces, an empty line by nothing. Where that
    is no terminal, nothing is said or, if it may be `piped`, a line.
    """
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text and f'{text} ...'}", end="", file=sys.stderr, flush=True)
    elif piped and text:
        print(f"cppo: {text}", file=sys.stderr, flush=True)


def counter(what: str) -> Callable[[int, int], None]:
    """Shows how many of how many are through, on one line of standard error; nothing where that is no terminal."""

    def show(done: int, of: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == of else ""
            print(f"\r{done}/{of} {what}", end=end, file=sys.stderr, flush=True)

    return show


def known_store(uri: str) -> str:
    """`uri`, if the store can be there; a note on standard error if somebody has named a store that is not there yet.

    Raises StoreAway for a SQLite file in a folder that does not exist.
    """
    from cppo_lab.tracking.address import require_place

    if note := require_place(uri):
        print(f"cppo: note: {note}", file=sys.stderr)
    return uri
