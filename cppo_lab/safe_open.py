"""Files in folders where others may have put something: opened, and replaced, only as plain files.

A pipe would let its reader wait for ever, a device has no end, and a link leads what is written to a file elsewhere.
All that is written in a run's folder is written by this module. It needs the standard library alone.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from cppo_lab.errors import UserError

# What the system says of a path that leads to no file: nothing there, a file for a folder, links in a ring, a socket.
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})


def leads_nowhere(error: OSError) -> bool:
    """Whether it means that there is no such file; otherwise the file cannot be read: no permission, a broken disk."""
    return error.errno in _NOTHING


def open_plain(path: Path) -> BinaryIO | None:
    """The file at `path`, opened for reading; None if there is none, or something that is not a plain file.

    Raises OSError if it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if leads_nowhere(error):
            return None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def open_below(folder: Path, *names: str) -> BinaryIO | None:
    """The plain file that `names` lead to, one folder below the other, from `folder` on; None if there is none.

    Raises UserError if a link is on the way, or in the file's place, or something that is not a plain file; OSError if
    it cannot be read.
    """
    place = folder.joinpath(*names)
    parent = _folder_below(folder, names[:-1])
    if parent is None:
        return None
    try:
        descriptor = os.open(
            names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent
        )
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_plain(place) from None
        if leads_nowhere(error):
            return None
        raise
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(place)
    return os.fdopen(descriptor, "rb")


def names_below(folder: Path, *names: str) -> list[str]:
    """What is in the folder that `names` lead to from `folder` on, in order; nothing if there is none.

    Raises as `open_below` does.
    """
    descriptor = _folder_below(folder, names)
    if descriptor is None:
        return []
    try:
        return sorted(os.listdir(descriptor))  # noqa: PTH208  of the folder that was opened
    finally:
        os.close(descriptor)


def _folder_below(folder: Path, names: Sequence[str]) -> int | None:
    """The folder that `names` lead to, opened; None if there is none. Each step begins where the last one came to."""
    if any(name in ("", ".", "..") or "/" in name for name in names):
        raise ValueError(f"{names}: names within a folder are wanted")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        descriptor = os.open(folder, flags)
    except OSError as error:
        if leads_nowhere(error):
            return None
        raise
    for depth, name in enumerate(names, 1):
        parent = descriptor
        try:
            descriptor = os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            if not leads_nowhere(error):
                raise
            if _is_link(name, parent):
                raise _not_plain(folder.joinpath(*names[:depth])) from None
            return None
        finally:
            os.close(parent)
    return descriptor


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def read_plain(path: Path, largest: int) -> bytes | None:
    """What the file holds; None as `open_plain`, and where it has more than `largest` bytes.

    Raises OSError if it cannot be read.
    """
    file = open_plain(path)
    if file is None:
        return None
    with file:
        content = file.read(largest + 1)
    return content if len(content) <= largest else None


def open_lock(path: Path) -> TextIO:
    """The file at `path` to be locked, read and written, made if it is not there; its content stays.

    Raises UserError if something else than a plain file is there, OSError if it cannot be opened.
    """
    return os.fdopen(_open_to_write(path, os.O_RDWR), "r+", encoding="utf-8")


def open_append(path: Path) -> TextIO:
    """The file at `path`, made if it is not there, to be written at its end. Raises as `open_lock` does."""
    return os.fdopen(_open_to_write(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")


def is_shared(folder: Path) -> bool:
    """Whether a group works in `folder` together: it may write there, and what this process makes there is its own."""
    try:
        found = folder.stat()
    except OSError:
        return False
    ours = bool(found.st_mode & stat.S_ISGID) or found.st_gid == os.getegid()
    return ours and bool(found.st_mode & stat.S_IWGRP)


def _open_to_write(path: Path, flags: int) -> int:
    kind = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | kind, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nobody reads
            raise _not_plain(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_plain(path)
    return descriptor


def _not_plain(path: Path) -> UserError:
    return UserError(f"{path} is a link or not a plain file, and was not made by this program: remove it")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end, as a whole; if writing fails, what was there stays.

    The caller sees to it that nobody else replaces the same file meanwhile. It is written as `NAME.partial`, which a
    kill may leave and the next call removes.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # a link goes, and what it leads to stays
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: str | bytes) -> None:
    """Put `content` into `path`, as `replacing` does. Raises OSError if it cannot be written."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def overwrite_file(path: Path, content: str) -> None:
    """Put `content` into `path` without another file: for a full disk, since a reader may see half of it.

    Raises as `open_lock` does.
    """
    with open_lock(path) as file:
        file.write(content)
        file.truncate()
