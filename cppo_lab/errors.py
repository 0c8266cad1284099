"""The one exception whose text is meant for the user."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend. The text names the value, what is valid, and the remedy, on one line."""


def unknown(kind: str, value: object, valid: Iterable[str]) -> UserError:
    """An unknown name: says what it was, what it may have meant, and every valid name."""
    names = sorted(valid)
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {kind} {str(value)!r}: {hint}valid: {', '.join(names) or 'none'}")
