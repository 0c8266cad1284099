"""The one exception whose text is meant for the user."""

import difflib
import re
from collections.abc import Iterable

LONGEST = 2000  # characters of a message; the longest of ours list fifty names
# A colour; or a control character that is no tab or end of a line, or that turns the direction of text.
_COLOUR_OR_CONTROL = re.compile(
    r"(\x1b\[[\d;:]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


class UserError(Exception):
    """An error that the user can fix. The text names the value, what is valid, and the remedy, on one line.

    Names in it may be anybody's: what would end the line, or steer a terminal, is written as an escape.
    """

    def __init__(self, text: object) -> None:
        super().__init__(message(str(text)))


class StoreAway(UserError):
    """The tracking store does not exist, cannot be reached or cannot be read."""


class StoreBroken(StoreAway):
    """The tracking store is a file that is no database: waiting for it does not help."""


MOST_FAULTS = 10  # that one message names


def together(faults: Iterable[str], where: str = "") -> UserError:
    """Several mistakes of one file as one error; `where`, with which they may begin, is said once."""
    first, *others = dict.fromkeys(faults)
    if not others:
        return UserError(first)
    rest = [text.removeprefix(where) for text in others[: MOST_FAULTS - 1]]
    more = len(others) - len(rest)
    return UserError("; also: ".join([first, *rest]) + (f"; and {more} more" if more else ""))


def printable(text: str) -> str:
    """`text` without what would end a line or steer a terminal: such a character becomes an escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def harmless(text: str) -> str:
    """A program's output as a terminal may have it: its lines and colours; what else steers one becomes an escape."""
    return _COLOUR_OR_CONTROL.sub(lambda match: match[1] or ascii(match[0])[1:-1], text)


def message(text: str) -> str:
    """A message as a terminal may have it: on one line, and not too long."""
    plain = printable(text)
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST // 2]} ... {plain[-LONGEST // 2 :]}"  # the remedy is at the end


def one_line(text: str) -> str:
    """Somebody's words, of any number of lines, on one."""
    return printable(" ".join(text.split()))


def unknown(kind: str, value: object, valid: Iterable[str]) -> UserError:
    """An unknown name: says what it was, what it may have meant, and every valid name."""
    names = sorted(valid)
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {kind} {str(value)!r}: {hint}valid: {', '.join(names) or 'none'}")
