"""Checked access to the fields of a JSON file from a store: errors name the file and the field."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cppo_lab.errors import UserError

REMEDY = "the run was recorded by other code than this; run it again, or delete it"

T = TypeVar("T")


class Fields:
    """The fields of one JSON object. `what` names it in messages, `remedy` ends each of them.

    A check returns the parsed value, or None if the value is invalid. Every method raises UserError if a field is
    absent or fails its check.
    """

    def __init__(self, values: object, what: str, remedy: str = REMEDY) -> None:
        self.what, self.remedy = what, remedy
        if not isinstance(values, dict):
            raise self.bad("is not a JSON object")
        self.values: Mapping[str, Any] = values
        self.length: int | None = None

    @classmethod
    def parse(cls, content: str, what: str, remedy: str = REMEDY) -> "Fields":
        """The fields of a file's text."""
        try:
            values = json.loads(content)
        except (
            ValueError,
            RecursionError,
        ) as error:  # ValueError also covers a number with more digits than Python parses
            raise UserError(f"{what} is not JSON ({error}): {remedy}") from None
        return cls(values, what, remedy)

    def bad(self, why: str) -> UserError:
        """The error for an invalid object; `why` continues its name."""
        return UserError(f"{self.what} {why}: {self.remedy}")

    def one(self, key: str, check: Callable[[Any], T | None], kind: str) -> T:
        """One value."""
        if key not in self.values:
            raise self.bad(f"lacks {key!r}")
        value = check(self.values[key])
        if value is None:
            raise self.bad(f"has {key}={self.values[key]!r:.60}, which is no {kind}")
        return value

    def listed(self, key: str, check: Callable[[Any], T | None], kind: str) -> tuple[T, ...]:
        """A list of any length."""
        if not isinstance(self.values.get(key), list):
            raise self.bad(f"lacks the list {key!r}")
        result = []
        for index, item in enumerate(self.values[key]):
            value = check(item)
            if value is None:
                raise self.bad(f"has {key}[{index}]={item!r:.60}, which is no {kind}")
            result.append(value)
        return tuple(result)

    def many(self, key: str, check: Callable[[Any], T | None], kind: str) -> tuple[T, ...]:
        """A list of the same length as the lists before it."""
        result = self.listed(key, check, kind)
        if self.length not in (None, len(result)):
            raise self.bad(f"has {len(result)} values of {key!r} beside lists of {self.length}")
        self.length = len(result)
        return result

    def optional(self, key: str) -> float | None:
        """A number; None if the value is null."""
        return None if self.values.get(key) is None else self.one(key, number, "number")

    def inner(self, key: str) -> "Fields":
        """The JSON object under `key`."""
        return Fields(self.values.get(key), f"{self.what}, {key!r:.60},", self.remedy)


def number(value: Any) -> float | None:
    """A finite number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of floats
        return None


def count(value: Any) -> int | None:
    """0, 1, 2, ..."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def text(value: Any) -> str | None:
    """Any text."""
    return value if isinstance(value, str) else None


def boolean(value: Any) -> bool | None:
    """true or false."""
    return value if isinstance(value, bool) else None
