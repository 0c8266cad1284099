"""The jobs that live launchers still have to start: one small file per launcher, locked until the launcher ends.

A line `+<run id>` adds a run to the list and `-<run id>` removes it. The file only grows, so that a reader never sees
half of a change; an unfinished line does not count.
"""

import fcntl
import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TextIO

from cppo_lab.errors import UserError
from cppo_lab.safe_open import open_lock, open_plain

FOLDER = "queues"  # below the folder of all runs


class Queue:
    """This launcher's list: a context manager that shows `run_ids` as queued until they are removed.

    Files of dead launchers are removed.
    """

    def __init__(self, runs: Path, run_ids: Iterable[str]) -> None:
        self._folder, self._run_ids = runs / FOLDER, tuple(run_ids)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.list"):
            _remove_if_dead(path)
        self._path, self._file = _own_file(self._folder)
        self._write("+", self._run_ids)
        return self

    def ended(self, run_id: str) -> None:
        """Remove a run from the list, once it has ended and its outcome is recorded."""
        self._write("-", [run_id])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()

    def _write(self, sign: str, run_ids: Iterable[str]) -> None:
        self._file.write("".join(f"{sign}{run_id}\n" for run_id in run_ids))
        self._file.flush()


def queued(runs: Path) -> frozenset[str]:
    """The runs on the lists of the live launchers of this machine. Writes nothing."""
    found: set[str] = set()
    for path in (runs / FOLDER).glob("*.list"):
        file = open_plain(path)
        if file is None:  # its launcher has just ended
            continue
        with file:
            if not _lock(file, fcntl.LOCK_SH):
                found |= _listed(file.read().decode(errors="replace"))
    return frozenset(found)


def _listed(text: str) -> set[str]:
    listed: set[str] = set()
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            change = listed.add if line.startswith("+") else listed.discard
            change(line[1:-1])
    return listed


def _own_file(folder: Path) -> tuple[Path, TextIO]:
    """A new, locked file. If another launcher removed it as dead before it was locked, it is created again."""
    while True:
        path = folder / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.list"
        file = path.open("x", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()


def _remove_if_dead(path: Path) -> None:
    if not path.is_file():  # not created by a launcher
        return
    try:
        with open_lock(path) as file:
            if _lock(file, fcntl.LOCK_EX):
                file.truncate()  # for a reader that mistakes our lock for the launcher's
                path.unlink(missing_ok=True)
    except (FileNotFoundError, PermissionError, UserError):  # gone; another account's; not a launcher's
        pass


def _lock(file: IO[Any], kind: int) -> bool:
    """Whether the lock could be taken at once."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
