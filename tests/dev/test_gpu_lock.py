"""The lock of GPU machines is what uv makes of this project today, of the releases that there were when it was made."""

import os
import sys
from pathlib import Path

import pytest

from dev import lock_gpu
from dev.errors import DevError
from tests.requirement import INDEX


@pytest.mark.slow
def test_the_locks_are_what_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make lock-gpu` does, but for the date, and without writing. It fails once other packages are asked for."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    INDEX.demand()
    newest = {lock_gpu.until(path.read_text()) for path in (*lock_gpu.REQUIREMENTS, lock_gpu.FLASH)}
    assert len(newest) == 1
    for path, text in lock_gpu.locks(*newest).items():
        assert text == path.read_text(), f"{path.name}: run `make lock-gpu`"


def test_a_lock_without_its_date_is_refused() -> None:
    with pytest.raises(DevError, match="run `make lock-gpu`"):
        lock_gpu.until("# Made by `make lock-gpu`\na==1\n")
