"""Which test sessions of this machine live: folders of clusters that dead ones have left are cleared away.

A session holds a lock on a file beside its folders for as long as it lives. The kernel lets go of it however the
session ends, so no number of a process that is used again is taken for it.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from dev.slurm.cluster import Cluster, default_folder
from dev.slurm.daemons import look_up

PREFIX = "tests-"
_known: set[Path] = set()  # where this process is known to live


def session_folder(what: str = "") -> Path:
    """A folder for a cluster of this test session."""
    return default_folder(f"{PREFIX}{os.getpid()}{what}")


def remove(cluster: Cluster) -> None:
    """Stops a cluster and removes what is left of it."""
    cluster.stop()
    shutil.rmtree(cluster.folder, ignore_errors=True)


@contextlib.contextmanager
def alive(parent: Path) -> Iterator[None]:
    """Clears away what dead sessions have left in `parent`. Until the end of the context this one is known to live."""
    if parent in _known:  # two conftests have the fixture
        yield
        return
    with _alone(parent):
        left = [folder for folder in parent.glob(f"{PREFIX}*") if folder.is_dir()]
        dead = {name for folder in left if not _lives(parent, name := folder.name.split("-")[1])}
        for folder in left:
            if folder.name.split("-")[1] in dead:
                remove(Cluster(folder))
        for name in dead:
            _lock_file(parent, name).unlink(missing_ok=True)
        own = _lock_file(parent, str(os.getpid())).open("w")
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _known.add(parent)
    try:
        yield
    finally:
        _known.discard(parent)
        with _alone(parent), own:
            _lock_file(parent, str(os.getpid())).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(parent: Path) -> Iterator[TextIO]:
    """Lets one session at a time begin, end, or clear away: what is just being made is not taken for left over."""
    parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    with (parent / "sessions.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _lock_file(parent: Path, session: str) -> Path:
    return parent / f"{PREFIX}{session}.lock"


def _lives(parent: Path, session: str) -> bool:
    """Whether somebody holds the session's lock; without a file for it, whether there is a process of its number."""
    try:
        file = _lock_file(parent, session).open()
    except FileNotFoundError:
        return not session.isdigit() or look_up(int(session)) is not None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
