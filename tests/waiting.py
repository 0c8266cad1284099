"""Waiting for what others do in their own time."""

import time
from collections.abc import Callable


def until(what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
    """Waits until a condition holds; fails if it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds:g} s: {what}"
        time.sleep(0.1)
