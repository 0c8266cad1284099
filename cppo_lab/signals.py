"""Signals that end a process become an exception, once."""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec, TypeVar

# A terminal that closes says it to all its processes, unless `nohup` keeps them.
_HANGUP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
# People, Slurm and launchers send the first; the second is submitit's warning before a time limit.
_TOLD = (signal.SIGTERM, signal.SIGUSR2, *_HANGUP)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_held: list[int] = []  # numbers of signals that came while they were held back


class Interrupted(SystemExit):
    """This process was asked to end: by signal `number`, or, if that is None, by somebody who cancelled the run."""

    def __init__(self, number: int | None) -> None:
        limit = " (time limit or preemption)" if number == signal.SIGUSR2 else ""
        super().__init__(
            "cancelled before it began"
            if number is None
            else f"terminated by {signal.Signals(number).name}{limit}"
        )
        self.number = number


def interrupt_on_termination() -> None:
    """Have SIGTERM and a closed terminal interrupt this process, as Ctrl-C does: once, since a session that ends sends
    both, and its shell and the system the second each."""
    for number in (signal.SIGTERM, *_HANGUP):
        signal.signal(number, _ctrl_c)


@contextlib.contextmanager
def saying_at_interrupt(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` at the first Ctrl-C, before it interrupts this process; what is waited for then may take long.

    `say` runs in a signal handler. Where Ctrl-C has another meaning than Python's own, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before != signal.default_int_handler:
        yield
        return

    def told(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        say()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, told)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Processes that are started here do not hear these signals; this one does, afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A signal that ends this process does so after this block, not within it. May be nested.

    For short work on a SQLite file: an exception in the middle of a transaction keeps the session that it came from,
    and with it the file's lock, until it has been handled. Whoever handles it could not write.
    """
    if threading.current_thread() is not threading.main_thread():  # where no signal is handled
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_TOLD)}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in before:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def deferring(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`function`, with signals deferred until it returns."""

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        with deferred():
            return function(*arguments, **named)

    return call


def handle_signals(now: bool = True) -> None:
    """Raise Interrupted in this process's main thread at the first signal to end; `now`, if there was one."""
    _handle(_interrupt)
    if _held and now:
        _interrupt(_held[0], None)


def hold_signals() -> None:
    """Until `handle_signals`, remember a signal to end: what this process does now must not be cut off."""
    _handle(lambda number, _: _held.append(number))


def ignore_signals(do: Callable[[], None] | None = None) -> None:
    """From now on, `do` that at a signal to end, or nothing: its last words must not be cut off.

    If it does something, the next `handle_signals` knows. Slurm sends two signals, often together; the local launcher
    repeats its own; a SIGTERM comes with a Ctrl-C.
    """
    _held.clear()
    if do is None:
        _handle(signal.SIG_IGN)
        return

    def told(number: int, frame: FrameType | None) -> None:
        _held.append(number)
        do()

    _handle(told)


def find_interruption(error: BaseException) -> KeyboardInterrupt | Interrupted | None:
    """The interruption that `error` is, or that a library met with an error of its own: `torch.save` cut off does."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, (KeyboardInterrupt, Interrupted)):
            return found
        if isinstance(found, SystemExit) and found.code == signal.SIGTERM:  # Ray's handler, while Ray starts
            return Interrupted(signal.SIGTERM)
        found = found.__cause__ or found.__context__
    return None


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        for number in _TOLD:
            signal.signal(number, handler)


def _ctrl_c(number: int, frame: FrameType | None) -> None:
    for one in (signal.SIGTERM, *_HANGUP):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt(f"terminated by {signal.Signals(number).name}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    ignore_signals()
    raise Interrupted(number)
