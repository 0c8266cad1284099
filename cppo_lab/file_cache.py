"""Files that are kept on this machine because making them again takes long.

They are under `$XDG_CACHE_HOME` (`~/.cache` by default), each a line with the version of what it holds and then its
content. The folder may be deleted at any time. Nothing that goes wrong here is an error: a file that cannot be read is
as good as none, and one that cannot be written is not kept.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cppo_lab.safe_open import open_lock

_KEPT_SHARE = 0.8  # of the most bytes that pruning leaves, so that it is rare


class FileCache:
    """The files under one `folder` of the cache. Any number of processes and threads may use it at once."""

    def __init__(self, folder: Path) -> None:
        home = _cache_home()
        self._root = None if home is None else home / folder

    def usable(self) -> bool:
        """Whether files can be kept at all."""
        if self._root is None:
            return False
        with contextlib.suppress(OSError):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.access(self._root, os.W_OK)

    def get(self, name: Path, version: str, largest: int) -> bytes | None:
        """The content of file `name`, a relative path, if kept at this version and has at most `largest` bytes."""
        if self._root is None:
            return None
        path = self._root / name
        try:
            if not path.is_file() or path.stat().st_size > largest:
                return None
            with path.open("rb") as file:
                if file.readline(len(version) + 2) != version.encode() + b"\n":
                    return None
                content = file.read()
            with contextlib.suppress(OSError):
                os.utime(path)  # the files that nobody asks for are the first to go
            return content
        except OSError:
            return None

    def put(self, name: Path, version: str, content: bytes) -> None:
        """Keep `content` in place of what was kept under that name."""
        if self._root is None:
            return
        path = self._root / name
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(version.encode() + b"\n")
                    file.write(content)
                Path(part).replace(path)
            except OSError:
                Path(part).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold a lock of this account's on this machine; without a folder for it, go on without."""
        with contextlib.ExitStack() as stack:
            if self._root is not None and self.usable():
                file = stack.enter_context(open_lock(self._root / name))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def prune(self, most_bytes: int) -> None:
        """Delete the files that were not used for longest if all have more than `most_bytes`."""
        if self._root is None:
            return
        found = []
        for path in self._root.glob("*/*"):
            with contextlib.suppress(OSError):  # another process was faster
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        total = sum(size for _, size, _ in found)
        if total <= most_bytes:
            return
        for _, size, path in sorted(found):
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
            if total <= _KEPT_SHARE * most_bytes:
                return


def _cache_home() -> Path | None:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # others are to be ignored, says the XDG Base Directory Specification
        return named
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
