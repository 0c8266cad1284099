"""A cache of drawings on this machine: a figure is drawn again only if its info changes.

Files are under `cppo-lab/drawings/` of the cache (see `cppo_lab.file_cache`). Their names are fingerprints of the drawn
data and of the drawing code. Each file contains the fingerprint of its bytes, so that a damaged one is ignored.
"""

import contextlib
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from cppo_lab.file_cache import FileCache
from cppo_lab.reports.fingerprint import Unknown, drawing_code, fingerprint, of_bytes

FOLDER = Path("cppo-lab/drawings")
MOST_BYTES = 256 * 2**20
LARGEST = 32 * 2**20
WORTH_HELP = 2  # missing drawings at which a second process pays off
LEAST_PATIENCE = 2.0  # seconds
_DIGITS = 64  # of a fingerprint
_NUMBER = 2  # bytes of a number in the queue
_MOST_QUEUED = 2000  # numbers: a pipe takes 4096 bytes everywhere
_others: ContextVar[Path | None] = ContextVar("_others", default=None)  # a folder used in place of FOLDER
_looking: ContextVar[bool] = ContextVar("_looking", default=False)  # whether to draw nothing
_made: list[str] = []  # fingerprints of what this process has drawn


class _NotKept(Exception):
    """A drawing is not cached, in a look at the cache."""


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
        if _looking.get():
            return dict.fromkeys(kinds, b"")  # it cannot be made ahead
        return dict(draw())
    files = _kept()
    places = {kind: Path(version[:2], f"{version[2:]}.{kind}") for kind in kinds}
    found = {kind: _whole(files.get(place, version, LARGEST)) for kind, place in places.items()}
    kept = {kind: content for kind, content in found.items() if content is not None}
    if len(kept) == len(places):
        return kept
    if _looking.get():
        raise _NotKept
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
    """Make the drawings of `calls` that are not cached yet in two processes, and cache them.

    Both processes take the next call from one queue. Without a usable cache this does nothing.
    """
    files = _kept()
    if not files.usable():
        return
    waiting = [call for call in calls if not _is_kept(call)]
    if len(waiting) < WORTH_HELP or not _may_fork():
        for call in waiting:
            call()
    else:
        _draw_in_two(waiting)
    files.prune(MOST_BYTES)


def _is_kept(call: partial[Any]) -> bool:
    """Whether all drawings of a call are cached."""
    before = _looking.set(True)
    try:
        call()
    except _NotKept:
        return False
    finally:
        _looking.reset(before)
    return True


def _may_fork() -> bool:
    """A forked copy of a process with several threads may hang, and a new process would take longer to start than it
    saves.
    """
    return sys.platform == "linux" and threading.active_count() == 1


def _draw_in_two(calls: Sequence[partial[Any]]) -> None:
    """Make every call, here or in a copy of this process. What a copy that fails leaves undone is drawn when needed."""
    # The last call first: on the page of a sweep it makes many drawings, and nobody would be left to share the work.
    order = [len(calls) - 1, *range(len(calls) - 1)]
    queue, feed = os.pipe()
    os.write(feed, b"".join(number.to_bytes(_NUMBER) for number in order[:_MOST_QUEUED]))
    os.close(feed)  # so that an empty queue ends
    done, working = os.pipe()
    with os.fdopen(queue, "rb", buffering=0) as take, os.fdopen(done, "rb", buffering=0) as ended:
        helper = os.fork()
        if not helper:
            _help(calls, take)
        os.close(working)
        try:
            start = time.monotonic()
            _draw_from(calls, take)
            # The helper's last call takes about as long as making it once more would. As the helper ends, so does
            # the pipe.
            select.select([ended], [], [], LEAST_PATIENCE + time.monotonic() - start)
        finally:
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)


def _draw_from(calls: Sequence[partial[Any]], queue: FileIO) -> None:
    """Make the calls whose numbers are in the queue, until it is empty."""
    while number := queue.read(_NUMBER):
        calls[int.from_bytes(number)]()


def _help(calls: Sequence[partial[Any]], queue: FileIO) -> NoReturn:
    """Make calls in a copy of the process, which ends without cleaning up what is not its own."""
    try:
        _draw_from(calls, queue)
    finally:
        os._exit(0)
