"""SIGKILL at any operation on files, stood in for by an exception that nothing of ours catches."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


OPERATIONS: list[tuple[Any, str]] = [
    (os, "mkdir"), (os, "link"), (Path, "write_text"), (os, "unlink"), (os, "rmdir"), (Path, "replace"),
    (os, "fsync"),
]  # fmt: skip


def survives(patch: pytest.MonkeyPatch, number: int, work: Callable[[], object]) -> bool:
    """Whether this is through before its operation on files of that number, at which it is killed."""
    left = iter(range(number))

    def dying(operation: Callable[..., Any]) -> Callable[..., Any]:
        def die(*arguments: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return operation(*arguments, **options)

        return die

    with patch.context() as inner:
        for owner, name in OPERATIONS:
            inner.setattr(owner, name, dying(getattr(owner, name)))
        try:
            work()
        except Killed:
            return False
    return True
