"""Waiting for what other processes do in their own time: for an event, never for a number of seconds."""

import time
from collections.abc import Callable
from typing import TypeVar

from dev.ceiling import CEILING_SECONDS

__all__ = ["CEILING_SECONDS", "until"]

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
