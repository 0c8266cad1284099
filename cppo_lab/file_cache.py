"""Files cached on this machine because recreating them is slow.

They are under `$XDG_CACHE_HOME` (`~/.cache` by default), each a line with the version of what it holds and then its
content. The folder may be deleted at any time. Nothing that goes wrong here is an error: a file that cannot be read is
as good as none, and one that cannot be written is not kept. Files that another account could have written are not read.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cppo_lab.files import open_lock

_KEPT_SHARE = 0.8  # of the most bytes that pruning leaves, so that it is rare


class FileCache:
    """The files under one `folder` of the cache. Any number of processes and threads may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._home = _cache_home()
        self._root = None if self._home is None else self._home / folder

    def usable(self) -> bool:
        """Whether files can be kept at all."""
        if self._root is None:
            return False
        with contextlib.suppress(OSError):
            self._make_folders(self._root / "any")
        return os.access(self._root, os.W_OK)

    def get(self, name: Path, version: str, largest: int) -> bytes | None:
        """The content of file `name`, a relative path, if kept at this version and has at most `largest` bytes."""
        if self._root is None:
            return None
        path = self._root / name
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                state = os.fstat(file.fileno())
                if not stat.S_ISREG(state.st_mode) or not _is_private(state) or state.st_size > largest:
                    return None
                if not all(_is_private(folder.stat()) for folder in self._folders(path)):
                    return None
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
            self._make_folders(path)
            descriptor, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(version.encode() + b"\n")
                    file.write(content)
                Path(part).replace(path)
            except OSError:
                Path(part).unlink(missing_ok=True)

    def _folders(self, path: Path) -> list[Path]:
        """The folders of ours above a file, the outermost first."""
        assert self._home is not None and self._root is not None
        above = self._home if self._home in path.parents else self._root.parent
        return [folder for folder in reversed(path.parents) if above in folder.parents]

    def _make_folders(self, path: Path) -> None:
        for folder in self._folders(path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if (state := folder.stat()).st_uid == os.geteuid() and not _is_private(state):
                folder.chmod(0o700)  # made by an older version under a umask that lets the group write

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


def _is_private(state: os.stat_result) -> bool:
    """Whether nobody but this account can have written there."""
    return state.st_uid == os.geteuid() and not state.st_mode & 0o022


def _cache_home() -> Path | None:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():  # others are to be ignored, says the XDG Base Directory Specification
        return named
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
