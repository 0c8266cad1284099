"""Waiting for what other processes do in their own time: for an event, never for a number of seconds."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# The one ceiling of the suite: how long a test waits for something before it calls it lost. It bounds what a broken
# build costs; no test that passes comes near it, on a machine many times slower than usual. Half an hour: 600 s were
# not enough for the first validation of verl with vLLM beside 20 other processes on two cores.
CEILING_SECONDS = 1800.0


def until(what: str, condition: Callable[[], T]) -> T:
    """What `condition` returns as soon as that is true; fails where it is not within the ceiling."""
    began = time.monotonic()
    while not (seen := condition()):
        waited = time.monotonic() - began
        assert waited < CEILING_SECONDS, f"not after {CEILING_SECONDS:g} s: {what}"
        # Soon at first, and less often later: what takes long should not take longer by our looking.
        time.sleep(min(0.02 + waited / 50, 0.5))
    return seen
