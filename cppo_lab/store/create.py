"""Creating a SQLite file with its tables atomically."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from cppo_lab.safe_open import open_append

_ENDING = ".new"


def is_new(path: Path) -> bool:
    """Whether there is to be a file at `path`, in a folder that is there, and it has no content yet."""
    return path.parent.is_dir() and not (path.exists() and path.stat().st_size)


def create_atomically(path: Path, make: Callable[[Path], None]) -> None:
    """Have `make` create the file for `path` under another name; it is renamed once it is complete and on disk.

    Nothing happens if there is a file with content. Programs create their tables by some fifty statements: one that is
    killed in between would leave a file that no later one can use. The caller sees to it that one process at a time is
    here; what killed ones have left is removed.
    """
    if not is_new(path):
        return
    for left in path.parent.glob(f"{path.name}.*{_ENDING}*"):  # SQLite's journal beside it as well
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
