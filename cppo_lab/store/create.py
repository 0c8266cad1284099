"""Creates a SQLite file with its tables atomically."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from cppo_lab.safe_open import open_append

_ENDING = ".new"


def is_new(path: Path) -> bool:
    """Whether the folder of `path` exists, and the file is missing or empty."""
    return path.parent.is_dir() and not (path.exists() and path.stat().st_size)


def create_atomically(path: Path, make: Callable[[Path], None]) -> None:
    """Call `make` to create the file under a temporary name, and rename it to `path` once it is complete and on disk.

    Does nothing if there is a file with content. Tables are created by some fifty statements, and a process killed in
    between would leave a file that no later one can use. The caller ensures that only one process at a time runs this;
    leftovers of killed processes are removed.
    """
    if not is_new(path):
        return
    for left in path.parent.glob(f"{path.name}.*{_ENDING}*"):  # including SQLite's journal
        left.unlink(missing_ok=True)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_ENDING}")
    try:
        open_append(beside).close()  # SQLite ignores the umask and gives the group no write permission
        make(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
