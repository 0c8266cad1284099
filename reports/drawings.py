"""A cache of drawings on this machine: a figure is drawn again only if its info changes.

Files are under `cppo-lab/drawings/` of the cache (see `cppo_lab.file_cache`). Their names are fingerprints of the drawn
data and of the drawing code. Each file contains the fingerprint of its bytes, so that a damaged one is ignored.
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from cppo_lab.file_cache import FileCache
from cppo_lab.reports.fingerprint import Unknown, drawing_code, fingerprint, of_bytes

FOLDER = Path("cppo-lab/drawings")
MOST_BYTES = 256 * 2**20
LARGEST = 32 * 2**20
WORTH_HELP = 2  # missing drawings at which a second process pays off
_DIGITS = 64  # of a fingerprint
_others: ContextVar[Path | None] = ContextVar("_others", default=None)  # a folder used in place of FOLDER
_made: list[str] = []  # fingerprints of what this process has drawn


@contextlib.contextmanager
def without_cache(wanted: bool = True) -> Iterator[None]:
    """In this context, and if `wanted`, draw everything again and leave the cache as it is."""
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="cppo-") as folder:
        before = _others.set(Path(folder))
        try:
            yield
        finally:
            _others.reset(before)


def _kept() -> FileCache:
    return FileCache(_others.get() or FOLDER)


def kept_drawings(
    asked: object, kinds: Sequence[str], draw: Callable[[], Mapping[str, bytes]]
) -> dict[str, bytes]:
    """The result of `draw`, by kind, or its cached result for an equal `asked`, which must cover everything that it
    depends on except code.
    """
    try:
        version = fingerprint((drawing_code(), asked))
    except Unknown:
        return dict(draw())
    files = _kept()
    places = {kind: Path(version[:2], f"{version[2:]}.{kind}") for kind in kinds}
    found = {kind: _whole(files.get(place, version, LARGEST)) for kind, place in places.items()}
    kept = {kind: content for kind, content in found.items() if content is not None}
    if len(kept) == len(places):
        return kept
    drawn = dict(draw())
    _made.append(version)
    for kind, place in places.items():
        files.put(place, version, of_bytes(drawn[kind]).encode() + drawn[kind])
    return drawn


def _whole(content: bytes | None) -> bytes | None:
    if content is None or content[:_DIGITS] != of_bytes(content[_DIGITS:]).encode():
        return None
    return content[_DIGITS:]


def draw_ahead(calls: Sequence[partial[Any]]) -> None:
    """Make the drawings of `calls` in two processes, and cache them.

    The processes go through the list from both ends until they meet. Without a usable cache this does nothing.
    """
    files = _kept()
    if not files.usable():
        return
    helper = None
    try:
        for index, call in enumerate(calls):
            before = len(_made)
            call()
            rest = calls[index + 1 :]
            if helper is None and len(_made) > before and len(rest) >= WORTH_HELP and _may_fork():
                helper = _fork(rest)
    finally:
        if helper is not None:
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)
    files.prune(MOST_BYTES)


def _may_fork() -> bool:
    """A forked copy of a process with several threads may hang, and a new process would take longer to start than it
    saves.
    """
    return sys.platform == "linux" and threading.active_count() == 1


def _fork(calls: Sequence[partial[Any]]) -> int:
    """Fork a process that works from the last of `calls`, and that exits without running the parent's cleanup."""
    helper = os.fork()
    if helper:
        return helper
    try:
        for call in reversed(calls):
            call()
    finally:
        os._exit(0)
