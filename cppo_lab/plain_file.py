"""Files that anybody may have put there, opened only if they are plain files.

A pipe would let its reader wait for ever, a device has no end. Imports the standard library alone.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# What the system says of a path that leads to no file: nothing there, a file for a folder, links in a ring, a socket.
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})


def leads_nowhere(error: OSError) -> bool:
    """Whether it says that there is no such file; else the file cannot be had: no permission, a broken disk."""
    return error.errno in _NOTHING


def open_plain(path: Path) -> BinaryIO | None:
    """The file at `path`, to be read; None if there is none, or something that is no plain file.

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
