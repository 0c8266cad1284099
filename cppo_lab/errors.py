"""How work ends early: by a mistake, whose text is meant for the user, or by a signal, as an exception raised once.

And what else is said on standard error.
"""

import contextlib
import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from difflib import SequenceMatcher
from types import FrameType
from typing import Any, TextIO, TypeVar
from unicodedata import normalize

T = TypeVar("T")
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


class Interrupted(SystemExit):
    """This process was asked to end: by signal `number`, or, if that is None, by somebody who cancelled the run.

    A run that cannot go on here, but could in another job, ends by SIGUSR2 as well, and says `why`.
    """

    def __init__(self, number: int | None, why: str = "") -> None:
        if number is None:
            why = "cancelled before it began"
        elif not why:
            limit = " (time limit or preemption)" if number == signal.SIGUSR2 else ""
            why = f"terminated by {signal.Signals(number).name}{limit}"
        super().__init__(why)
        self.number = number


MOST_FAULTS = 10  # that a message names
ALSO = "; also: "  # between them


def together(faults: Iterable[str], where: str = "") -> UserError:
    """Several mistakes of a file as one error; `where`, with which they may begin, is said once."""
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
    """A message as a terminal may have it: without line breaks, and not too long."""
    plain = printable(text)
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST // 2]} ... {plain[-LONGEST // 2 :]}"  # the remedy is at the end


def one_line(text: str) -> str:
    """Somebody's words, of any number of lines, on a single line."""
    return printable(" ".join(text.split()))


def first_fault(faults: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with a file by the first of pydantic's faults: `has step=-1: ...`, or `is invalid: ...`."""
    place, value = ".".join(map(str, faults[0]["loc"])), faults[0]["input"]
    shown = "" if isinstance(value, dict | list) else f"={value!r:.60}"
    why = faults[0]["msg"].removeprefix("Value error, ")
    return one_line(f"has {place}{shown}: {why}" if place else f"is invalid: {why}")


def describe(error: BaseException) -> str:
    """An exception as a line: its type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {printable(text[0])}" if text else type(error).__name__


def counted(number: int, what: str) -> str:
    """`1 run`, `3 runs`."""
    return f"{number} {what}{'s' * (number != 1)}"


def has(number: int) -> str:
    """The verb after a number of runs."""
    return "has" if number == 1 else "have"


def spanned(numbers: Iterable[int]) -> str:
    """Numbers in order: `0 to 9` if they are more than two and without a gap, else each of them."""
    first, *others = sorted(numbers)
    is_whole = len(others) > 1 and others[-1] - first == len(others)
    return f"{first} to {others[-1]}" if is_whole else ", ".join(map(str, (first, *others)))


def few(names: Sequence[str]) -> str:
    """The first three names, and a sign that there are more."""
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)


def nearest(value: object, names: Iterable[str]) -> list[str]:
    """The names that `value` may have meant, those that are equally near together; none if no name is near.

    A name is near if it has the same letters, but for a plural, or ends in the same word (`w_min`, `rule.w_min`), in a
    word with these initials (`lr`, `optim.learning_rate`), or in a word that begins with it or contains it; or if few
    letters differ.
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
    typed, name = (_JOINTS.sub("_", normalize("NFC", text)) for text in (typed, name))
    letters = _SEPARATORS.sub("", typed)
    if letters == (other := _SEPARATORS.sub("", name)):
        return 1.0
    if letters.removesuffix("s") == other.removesuffix("s"):  # models, model
        return 0.9999
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
    """A line on standard error, at once. A full disk below it ends nothing."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Let what waits in a stream vanish, which Python would flush once more as it ends. What follows is written."""
    try:
        number = stream.fileno()
    except OSError:  # of a test or a notebook, which has none
        return
    saved, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    stream.flush()
    os.dup2(saved, number)
    os.close(saved)
    os.close(nowhere)


# The signals that end a process.

# A closing terminal sends SIGHUP to all of its processes; `nohup` makes them ignore it.
_HANGUP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
# Users, Slurm and launchers send SIGTERM; SIGUSR2 is submitit's warning before a time limit.
_END_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, *_HANGUP)
_held: list[int] = []  # numbers of the signals that came after `hold_signals`
_raised: list[int] = []  # the number of the signal that was raised since `handle_signals`


def interrupt_on_termination() -> None:
    """Have SIGTERM and SIGHUP interrupt this process as Ctrl-C does, but only once.

    A session that ends sends both signals, and SIGHUP twice: from its shell and from the system.
    """
    signals = (signal.SIGTERM, *_HANGUP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for other in signals:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt(f"terminated by {signal.Signals(number).name}")

    for number in signals:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def announcing_interrupt(announce: Callable[[], None]) -> Iterator[None]:
    """Call `announce` at the first Ctrl-C, before it interrupts this process, since shutting down may take long.

    `announce` runs in a signal handler. If a SIGINT handler other than Python's default is installed, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before != signal.default_int_handler:
        yield
        return

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        announce()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Processes started in this block inherit a mask that blocks these signals; this process gets them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def deferred(at_signal: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Defer signals that end this process until the block has ended; `at_signal` is called at each. May be nested.

    For short work on a SQLite file: an exception in the middle of a transaction keeps the session alive, and with it
    the file's lock, until it has been handled. The code that handles it could not write to the file.
    """
    # Python runs signal handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, *_END_SIGNALS)
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}

    def on_signal(number: int, frame: FrameType | None) -> None:
        came.append(number)
        at_signal()

    try:
        for number in before:
            signal.signal(number, on_signal)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def in_time(ask: Callable[[], T], seconds: float | None) -> T:
    """What `ask` returns or raises.

    Raises TimeoutError if there is no answer by then: a server that sends a byte now and then never times out. No
    `seconds`: waits in this thread.
    """
    if seconds is None:
        return ask()
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001  raised by `result`
            answer.set_exception(error)

    # In a thread, since a request to a server that hangs cannot be ended.
    threading.Thread(target=work, daemon=True).start()
    if wait([answer], seconds).not_done:
        raise TimeoutError(f"it has not answered within {seconds:.0f} seconds")
    return answer.result()


def handle_signals(now: bool = True) -> None:
    """Raise Interrupted in the main thread at the first signal to end; with `now`, at once if a signal is pending."""
    _raised.clear()
    _handle(_interrupt)
    if _held and now:
        _interrupt(_held[0], None)


def _interrupt(number: int, frame: FrameType | None) -> None:
    ignore_signals()
    _raised.append(number)
    raise Interrupted(number)


def interruption() -> Interrupted | None:
    """What `handle_signals` has raised; in `ray.get` it becomes a plain SystemExit with code 1."""
    return Interrupted(_raised[0]) if _raised else None


def hold_signals() -> None:
    """Hold signals to end until `handle_signals`: the work in between must not be interrupted."""
    _handle(lambda number, _: _held.append(number))


def ignore_signals(do: Callable[[], None] | None = None) -> None:
    """From now on, call `do` at a signal to end, or ignore it (None): recording the end must not be interrupted.

    With `do`, the signal is also held for the next `handle_signals`. Repeated signals are common: Slurm often sends two
    at once, the local launcher repeats its signal, and a SIGTERM may follow a Ctrl-C.
    """
    _held.clear()
    if do is None:
        _handle(signal.SIG_IGN)
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        _held.append(number)
        do()

    _handle(on_signal)


def find_interruption(error: BaseException) -> KeyboardInterrupt | Interrupted | None:
    """The interruption that caused `error`, if any: libraries such as `torch.save` raise another error on top of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (KeyboardInterrupt, Interrupted)):
            return cause
        # Raised by Ray's handler while Ray starts.
        if isinstance(cause, SystemExit) and cause.code == signal.SIGTERM:
            return Interrupted(signal.SIGTERM)
        cause = cause.__cause__ or cause.__context__
    return None


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        for number in _END_SIGNALS:
            signal.signal(number, handler)
