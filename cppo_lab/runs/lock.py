"""The lock of a run's folder: the process that holds it trains the run."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from cppo_lab.errors import one_line
from cppo_lab.safe_open import open_lock, open_plain, read_plain

_MOST_LOCK = 1000  # bytes of a lock: a host and a process
LOCK_TRIES = 50
LOCK_SECONDS = 1.0  # `is_held` holds a lock for an instant; a run holds it for its lifetime


class AlreadyRunning(RuntimeError):
    """Another process on this machine is training this run."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder. The kernel releases it when the process ends, however it ends.

    The lock file names the holder. Raises AlreadyRunning if another process holds it, UserError if the lock is a link.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open_lock(folder / "lock") as lock:
        for _ in range(LOCK_TRIES):  # a count, not a deadline, so that a stalled machine does not lose tries
            if _locked(lock):
                break
            time.sleep(LOCK_SECONDS / LOCK_TRIES)
        else:
            raise AlreadyRunning(f"run {folder.name} is being trained by another process")
        lock.truncate(0)
        lock.write(f"{socket.gethostname()}:{os.getpid()}\n")
        lock.flush()
        yield


def lock_file(folder: Path) -> int:
    """The inode of the lock of a run's folder; 0 if it has none."""
    try:
        return (folder / "lock").lstat().st_ino
    except FileNotFoundError:
        return 0


def is_lost(folder: Path, inode: int) -> bool:
    """Whether the lock that this process holds, the file `inode`, was removed: another process can take a new one.

    No answer, as of a network's file system that is away, ends no training.
    """
    with contextlib.suppress(OSError):
        return bool(inode) and lock_file(folder) != inode
    return False


def holder(folder: Path) -> tuple[str, int] | None:
    """Host and process id of the process that trains the run of `folder`; None if none does or it is unknown."""
    if not is_held(folder):
        return None
    said = (read_plain(folder / "lock", _MOST_LOCK) or b"").decode(errors="replace")
    host, _, pid = one_line(said).rpartition(":")
    return (host, int(pid)) if host and pid.isascii() and pid.isdecimal() and int(pid) < 2**31 else None


def _locked(file: IO[Any], kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock could be taken at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(folder: Path) -> bool:
    """Whether a living process is training the run of `folder`. Writes nothing."""
    lock = open_plain(folder / "lock")
    if lock is None:
        return False
    with lock:
        return not _locked(lock, fcntl.LOCK_SH)
