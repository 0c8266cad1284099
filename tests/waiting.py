"""Waiting for what others do in their own time."""

import time
from collections.abc import Callable


def until(what: str, condition: Callable[[], bool], seconds: float = 120) -> None:
    """Waits until a condition holds; fails if it does not within so many seconds."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"not after {seconds:g} s: {what}"
        time.sleep(min(0.1 + waited / 100, 0.5))  # what takes long should not take longer by our looking
