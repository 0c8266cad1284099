"""Turns the signals that end a process into an exception, raised once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

# A closing terminal sends SIGHUP to all of its processes; `nohup` makes them ignore it.
_HANGUP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
# Users, Slurm and launchers send SIGTERM; SIGUSR2 is submitit's warning before a time limit.
_END_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, *_HANGUP)
_held: list[int] = []  # numbers of the signals that came after `hold_signals`
_raised: list[int] = []  # the number of the signal that was raised since `handle_signals`


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


def interrupt_on_termination() -> None:
    """Have SIGTERM and SIGHUP interrupt this process as Ctrl-C does, but only once.

    A session that ends sends both signals, and SIGHUP twice: from its shell and from the system.
    """
    for number in (signal.SIGTERM, *_HANGUP):
        signal.signal(number, _ctrl_c)


@contextlib.contextmanager
def announcing_interrupt(say: Callable[[], None]) -> Iterator[None]:
    """Call `say` at the first Ctrl-C, before it interrupts this process, since shutting down may take long.

    `say` runs in a signal handler. If a SIGINT handler other than Python's default is installed, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before != signal.default_int_handler:
        yield
        return

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        say()
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
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_END_SIGNALS)}
    before = {number: handler for number, handler in before.items() if callable(handler)}

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


def handle_signals(now: bool = True) -> None:
    """Raise Interrupted in the main thread at the first signal to end; with `now`, at once if one is pending."""
    _raised.clear()
    _handle(_interrupt)
    if _held and now:
        _interrupt(_held[0], None)


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


def _ctrl_c(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGTERM, *_HANGUP):
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(f"terminated by {signal.Signals(number).name}")


def interruption() -> Interrupted | None:
    """What `handle_signals` has raised; in `ray.get` it becomes a plain SystemExit with code 1."""
    return Interrupted(_raised[0]) if _raised else None


def _interrupt(number: int, frame: FrameType | None) -> None:
    ignore_signals()
    _raised.append(number)
    raise Interrupted(number)
