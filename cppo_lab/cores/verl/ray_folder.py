"""Folders for Ray's sessions and tokens: private, with short paths, and removed by their owner or the next one.

Ray makes its folder accessible to everybody (mode 777), so it is put inside a folder of mode 700. Slurm may kill all
processes of a job at once; the released lock of the folder then shows that its owner is gone.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PLACE, PREFIX = Path("/tmp"), "cppo-ray-"  # short: Ray's sockets have at most 107 bytes for their path


@contextmanager
def own_folder() -> Iterator[tuple[Path, int]]:
    """A new folder, and the descriptor that holds its lock: a process that inherits it keeps the folder too."""
    remove_abandoned()
    folder, descriptor = _new()
    try:
        yield folder, descriptor
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned() -> None:
    """Remove this user's folders whose owners have been killed."""
    for folder in PLACE.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _new() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
        # Until it is locked, another process may take it for abandoned and remove it.
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)
