"""SIGKILL at any operation on files, stood in for by an exception that nothing of ours catches."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


OPERATIONS: list[tuple[Any, str]] = [
    (os, "mkdir"), (os, "link"), (Path, "write_text"), (os, "unlink"), (os, "rmdir"), (Path, "replace"),
    (os, "fsync"),
]  # fmt: skip


def killed_at_each(
    patch: pytest.MonkeyPatch,
    place: Path,
    work: Callable[[Path], object],
    prepare: Callable[[Path], object] = str,
) -> Iterator[tuple[Path, bool]]:
    """The folder of each attempt at this, and whether it got through: the first is killed at its first operation on
    files, the next at its second, and the last at none. What prepares it is not killed.
    """
    left = iter(range(0))

    def dying(operation: Callable[..., Any]) -> Callable[..., Any]:
        def die(*arguments: Any, **options: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return operation(*arguments, **options)

        return die

    through = False
    for number in itertools.count():
        if through:
            return
        (folder := place / str(number)).mkdir()
        prepare(folder)
        left = iter(range(number))
        with patch.context() as inner, contextlib.suppress(Killed):
            for owner, name in OPERATIONS:
                inner.setattr(owner, name, dying(getattr(owner, name)))
            work(folder)
            through = True
        yield folder, through
