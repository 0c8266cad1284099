"""A folder that appears as a whole or not at all: it is written next to its place and renamed.

The next export to the same place removes the leftovers of a killed export.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from cppo_lab.errors import UserError


def require_free(out: Path) -> Path:
    """The resolved path of `out`. Raises UserError if it exists, unless it is an empty folder."""
    try:
        place = out.resolve()
    except (OSError, RuntimeError):  # RuntimeError: raised by pathlib for circular links before Python 3.13
        raise UserError(f"--out {out} is a circular link: name another folder") from None
    if place.exists() and not place.is_dir():
        raise UserError(f"--out {out} is a file: name a folder")
    if place.is_dir() and any(place.iterdir()):
        raise UserError(f"--out {out} exists and is not empty: name another folder, or remove it yourself")
    return place


@contextlib.contextmanager
def appearing(place: Path, replace: bool = False) -> Iterator[Path]:
    """An empty folder that is renamed to `place` (from `require_free`) at the end; if writing fails, nothing appears.

    `replace`: it replaces the existing folder; if writing fails, the old folder stays.
    Raises UserError if somebody else has put something there meanwhile.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(place)
    folder = place.with_name(f".{place.name}.export-{secrets.token_hex(4)}")
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then leftovers are not removed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
        for path in folder.rglob("*"):  # transformers makes its weights private, whatever the umask
            if path.is_file():
                path.chmod(os.fstat(lock).st_mode & 0o666)
        old = place.with_name(f".{place.name}.export-{secrets.token_hex(4)}")
        if replace and place.exists():
            place.rename(old)
        try:
            folder.rename(place)
        except OSError as error:
            if old.exists():
                old.rename(place)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise UserError(f"--out {place}: another process has written there in the meantime") from None
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_left(place: Path) -> None:
    """Remove the leftovers of killed exports to `place`; live exports hold a lock."""
    ours = re.compile(rf"\.{re.escape(place.name)}\.export-[0-9a-f]{{8}}")
    for path in place.parent.iterdir():
        if not ours.fullmatch(path.name):
            continue
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:  # another export is writing there
            continue
        finally:
            os.close(lock)
