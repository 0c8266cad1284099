"""The locks of GPU machines are solutions by what the index has today: complete, without a package too many, and what
each locked package requires of the others holds.
"""

import os
import sys
from pathlib import Path

import pytest

from dev import lock_gpu
from dev.errors import DevError
from dev.lock import Pin, pins
from tests.requirement import INDEX


@pytest.mark.slow
@pytest.mark.parametrize("path", lock_gpu.REQUIREMENTS, ids=lambda path: path.stem)
def test_the_locks_are_solutions(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    INDEX.demand()
    text = path.read_text(encoding="utf-8")
    locked = pins(text) | pins(lock_gpu.FLASH.read_text(encoding="utf-8"))
    found = lock_gpu.resolved(lock_gpu.REQUIREMENTS[path], lock_gpu.until(text), locked)
    assert versions(found) == versions(locked), "run `make lock-gpu`"
    # As verl's own override gave it: numba, mistral-common and vLLM each have a limit below.
    with pytest.raises(DevError, match="numpy"):
        lock_gpu.resolved(lock_gpu.REQUIREMENTS[path], lock_gpu.until(text), locked | {"numpy": Pin("2.5.5")})


def versions(of: dict[str, Pin]) -> dict[str, str]:
    """Version by package; the files of a version may become more on an index."""
    return {name: pin.version for name, pin in of.items()}
