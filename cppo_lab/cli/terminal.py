"""What fits a terminal: how wide a line may be, and a line that counts."""

import shutil
import sys
from collections.abc import Callable


def width() -> int | None:
    """Columns of the terminal; None where standard output is none: what reads it wants whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def counter(what: str) -> Callable[[int, int], None]:
    """Shows how many of how many are through, on one line of standard error; nothing where that is no terminal."""

    def show(done: int, of: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == of else ""
            print(f"\r{done}/{of} {what}", end=end, file=sys.stderr, flush=True)

    return show
