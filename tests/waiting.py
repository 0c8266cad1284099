"""Waiting for what other processes do in their own time: for an event, never for a number of seconds."""

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

from dev.ceiling import CEILING_SECONDS

__all__ = ["CEILING_SECONDS", "is_alive", "until"]

T = TypeVar("T")


def until(what: str, condition: Callable[[], T]) -> T:
    """What `condition` returns as soon as that is true; fails where it is not within the ceiling."""
    began = time.monotonic()
    while not (seen := condition()):
        waited = time.monotonic() - began
        assert waited < CEILING_SECONDS, f"not after {CEILING_SECONDS:g} s: {what}"
        # Soon at first, and less often later: what takes long should not take longer by our looking.
        time.sleep(min(0.02 + waited / 50, 0.5))
    return seen


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
