"""The one exception whose text is meant for the user; and what else is said on standard error."""

import re
import sys
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

_JOINTS = re.compile(r"[\s/-]+")  # between the words of a name, where ours have `_`
_SEPARATORS = re.compile(r"[._]+")
_LONGEST_NAME = 100  # characters of a wrong name that are compared
# From which likeness on a name, the last word of a name, and a name with the same section are offered.
_NEAR, _NEAR_WORD, _NEAR_IN_SECTION = 0.6, 0.75, 0.9
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


class NotFinite(ValueError, ArithmeticError):
    """A log-probability, ratio or gradient is infinite or NaN: an update would destroy the weights, or has done so."""


MOST_FAULTS = 10  # that one message names
ALSO = "; also: "  # between them


def together(faults: Iterable[str], where: str = "") -> UserError:
    """Several mistakes of one file as one error; `where`, with which they may begin, is said once."""
    first, *others = dict.fromkeys(faults)
    if not others:
        return UserError(first)
    listed = [text.removeprefix(where) for text in others[: MOST_FAULTS - 1]]
    more = len(others) - len(listed)
    return UserError(ALSO.join([first, *listed]) + (f"; and {more} more" if more else ""))


def printable(text: str) -> str:
    """`text` without what would end a line or steer a terminal: such a character becomes an escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def harmless(text: str) -> str:
    """A program's output as a terminal may have it: its lines and colours; what else steers it becomes an escape."""
    return _COLOUR_OR_CONTROL.sub(lambda match: match[1] or ascii(match[0])[1:-1], text)


def message(text: str) -> str:
    """A message as a terminal may have it: on one line, and not too long."""
    plain = printable(text)
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST // 2]} ... {plain[-LONGEST // 2 :]}"  # the remedy is at the end


def one_line(text: str) -> str:
    """Somebody's words, of any number of lines, on a single line."""
    return printable(" ".join(text.split()))


def counted(number: int, what: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{number} {what}{'s' * (number != 1)}"


def nearest(value: object, names: Iterable[str]) -> list[str]:
    """The names that `value` may have meant, those that are equally near together; none if no name is near.

    A name is near if it has the same letters, or ends in the same word (`w_min`, `rule.w_min`), in a word with these
    initials (`lr`, `optim.learning_rate`), or in a word that begins with it or contains it; or if few letters differ.
    """
    typed = str(value)[:_LONGEST_NAME].lower()
    scores = {
        name: _likeness(typed, name.lower())
        for name in sorted(names, key=lambda name: (name.count("."), name))
    }
    best = max(scores.values(), default=0.0)
    return [name for name, score in scores.items() if score == best][:3] if best >= _NEAR else []


def _likeness(typed: str, name: str) -> float:
    """How much a name is like the typed name, from 0 to 1."""
    typed, name = (_JOINTS.sub("_", text) for text in (typed, name))
    letters = _SEPARATORS.sub("", typed)
    if letters == _SEPARATORS.sub("", name):
        return 1.0
    last, ending = typed.rpartition(".")[2], name.rpartition(".")[2]
    words = _SEPARATORS.split(ending)
    scores = [SequenceMatcher(None, name, typed).ratio()]
    if "." in name:
        if last == ending:
            scores.append(0.98)
        elif scores[0] >= _NEAR_IN_SECTION and typed.rpartition(".")[0] == name.rpartition(".")[0]:
            scores.append(0.98 + 0.02 * scores[0])
        elif (likeness := SequenceMatcher(None, ending, last).ratio()) >= _NEAR_WORD:
            scores.append(likeness - 0.05)
        if len(last) > 1 and last == "".join(word[:1] for word in words):
            scores.append(0.96)
    if len(letters) > 1 and name.startswith(typed):
        scores.append(0.8 + 0.15 * len(typed) / len(name))
    elif len(last) > 2 and (ending.startswith(last) or last in words):
        scores.append(0.7 + 0.15 * len(last) / len(ending))
    return max(scores)


def unknown(
    kind: str, value: object, valid: Iterable[str], others: Mapping[str, str] | None = None
) -> UserError:
    """An unknown name: says what it was, what it may have meant, and every valid name.

    `others`: further names that it may have meant -> how each is written.
    """
    names = sorted(valid)
    written = {**(others or {}), **dict(zip(names, names, strict=True))}
    near = nearest(value, written)
    near = [name for name in near if name in names] or [written[name] for name in near]
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return UserError(f"unknown {kind} {str(value)!r}: {hint}valid: {', '.join(names) or 'none'}")


def say(line: object) -> None:
    """A line on standard error, at once."""
    print(line, file=sys.stderr, flush=True)
