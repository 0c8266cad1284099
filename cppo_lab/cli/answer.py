"""What a command prints with `--json`: one object, with the same heading for every command.

docs/commands.md is the schema: the keys of the heading, and of each command.
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

from cppo_lab.errors import say

SCHEMA = 1  # keys may be added; none is removed, or changes its meaning


def answer(options: argparse.Namespace, values: Mapping[str, Any], text: object = None) -> None:
    """What the command answers: with --json the object of `values`, which `main` prints once the command has ended, or
    `options.answer_now`; else the `text`, if there is any.
    """
    if options.json:
        options.answer = dict(values)
    elif text is not None:
        print(text)


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
        say(f"cppo: {text}")


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
        say(f"cppo: note: {note}")
    return uri
