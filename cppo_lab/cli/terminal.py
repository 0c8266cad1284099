"""What fits a terminal: how wide a line may be, and a line that counts."""

import os
import shutil
import sys
from collections.abc import Callable


def width() -> int | None:
    """Columns of the terminal; None where standard output is none: what reads it wants whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def coloured() -> bool:
    """Whether standard output may be coloured: it is a terminal, and NO_COLOR (no-color.org) does not forbid it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def passing(text: str) -> None:
    """Say what goes on, on a line of standard error that the next one replaces; nothing where that is no terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text} ...", end="", file=sys.stderr, flush=True)


def counter(what: str) -> Callable[[int, int], None]:
    """Shows how many of how many are through, on one line of standard error; nothing where that is no terminal."""

    def show(done: int, of: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == of else ""
            print(f"\r{done}/{of} {what}", end=end, file=sys.stderr, flush=True)

    return show
