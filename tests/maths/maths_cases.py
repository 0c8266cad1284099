"""A check applied to many small cases in one test, which reports every case that fails."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

# What a failed comparison, or maths that refuses its inputs, raises. Anything else ends the test at once.
FAILED = (
    *(AssertionError, pytest.fail.Exception),
    *(LookupError, ValueError, RuntimeError, TypeError, ArithmeticError),
)


def check_all(check: Callable[..., None], cases: Iterable[tuple[Any, ...]]) -> None:
    """Call `check` with each of `cases`; fail once, with a line for each case that failed and why."""
    done, lines = 0, []
    for case in cases:
        done += 1
        try:
            check(*case)
        except FAILED as error:
            name = ", ".join(one_line(value)[:50] for value in case)
            lines.append(f"{name}: {type(error).__name__}: {one_line(error)}")
    assert done, "no case to check"
    if lines:
        pytest.fail("\n".join([f"{len(lines)} of {done} cases failed", *lines]), pytrace=False)


def one_line(value: object) -> str:
    return " ".join(str(value).split())
