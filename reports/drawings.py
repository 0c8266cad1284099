"""Drawings that were made before, kept on this machine: a figure whose info did not change is not drawn again.

They are under `cppo-lab/drawings/` of the cache (see `cppo_lab.file_cache`), by the fingerprint of all that is drawn
and of the code that draws it. Each is kept with the fingerprint of its bytes, so that a broken file is none.
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
WORTH_HELP = 2  # drawings left to make
_DIGITS = 64  # of a fingerprint
_others: ContextVar[Path | None] = ContextVar("_others", default=None)  # a folder used in place of FOLDER
_made: list[str] = []  # fingerprints of what this process has drawn


@contextlib.contextmanager
def without_cache(wanted: bool = True) -> Iterator[None]:
    """While active and if `wanted`, draw everything anew without changing the cache."""
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
    """What `draw` returns, by kind, or has returned for an equal `asked`: all that it depends on, except code."""
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
    """Make the drawings of `calls` in two processes and cache them for later use.

    Both go through the list, one from each end, until they meet. Where nothing can be kept, nothing is done.
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
    """A copy of a process with several threads may hang. A new process would take longer to start than it saves."""
    return sys.platform == "linux" and threading.active_count() == 1


def _fork(calls: Sequence[partial[Any]]) -> int:
    """A copy of this process that begins with the last of `calls`, and ends without cleaning up what is not its own."""
    helper = os.fork()
    if helper:
        return helper
    try:
        for call in reversed(calls):
            call()
    finally:
        os._exit(0)
