"""How wide what is printed may be."""

import shutil
import sys


def width() -> int | None:
    """Columns of the terminal; None where standard output is none: what reads it wants whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
