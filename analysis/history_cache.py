"""Histories that a store was asked for before, kept on this machine so that an unchanged run is not asked for again.

One file for each run of a store under `$XDG_CACHE_HOME/cppo-lab/histories/` (`~/.cache` by default): a line with the
run's version, then a `history.npz`. The folder may be deleted at any time. Nothing that goes wrong here is an error:
a file that cannot be read is as good as none, and one that cannot be written is not kept.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from cppo_lab.errors import UserError
from cppo_lab.history import LARGEST, History, unpack

FOLDER = Path("cppo-lab/histories")
MOST_BYTES = (
    4 * 2**30
)  # of all stores together: about ten thousand runs of sixty metrics over a thousand steps
_KEPT_SHARE = 0.8  # of MOST_BYTES that pruning leaves, so that it is rare


class HistoryCache:
    """The cache of one store. Any number of processes and threads may use it at once."""

    def __init__(self, uri: str) -> None:
        root = _root()
        self._root = root
        self._folder = None if root is None else root / hashlib.sha256(_place(uri).encode()).hexdigest()[:16]

    def get(self, mlflow_id: str, version: str) -> History | None:
        """What is known of the run at this version of it; None if nothing is. It may lack metrics."""
        path = self._path(mlflow_id)
        if path is None:
            return None
        try:
            if not path.is_file() or path.stat().st_size > LARGEST:
                return None
            with path.open("rb") as file:
                if file.readline(len(version) + 2) != version.encode() + b"\n":
                    return None
                content = file.read()
            with contextlib.suppress(OSError):
                os.utime(path)  # the files that nobody asks for are the first to go
            return unpack(content, str(path))
        except (OSError, UserError):
            return None

    def put(self, mlflow_id: str, version: str, packed: bytes) -> None:
        """Keep a packed history of the run in place of what was kept of it before."""
        path = self._path(mlflow_id)
        if path is None:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(version.encode() + b"\n")
                    file.write(packed)
                Path(name).replace(path)
            except OSError:
                Path(name).unlink(missing_ok=True)

    def prune(self) -> None:
        """Delete the files that were not used for longest, of whatever store, if all have more than MOST_BYTES."""
        if self._root is None:
            return
        found = []
        for path in self._root.glob("*/*"):
            with contextlib.suppress(OSError):  # another process was faster
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        total = sum(size for _, size, _ in found)
        if total <= MOST_BYTES:
            return
        for _, size, path in sorted(found):
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
            if total <= _KEPT_SHARE * MOST_BYTES:
                return

    def _path(self, mlflow_id: str) -> Path | None:
        """None where there is no place to keep anything, or for an id that makes no file name."""
        if self._folder is None or not mlflow_id.isalnum():
            return None
        return self._folder / f"{mlflow_id}.history"


def _root() -> Path | None:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # others are to be ignored, says the XDG Base Directory Specification
        return named / FOLDER
    try:
        return Path.home() / ".cache" / FOLDER
    except RuntimeError:  # a user without a home
        return None


def _place(uri: str) -> str:
    """The store without the name and password that it is opened with."""
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
