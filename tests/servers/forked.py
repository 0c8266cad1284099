"""Processes that are forked from one that has imported torch and MLflow already: those of the tests begin in no time.

The process that they are forked from is multiprocessing's fork server, one for a session: nobody's locks, threads or
connections go along, as with a new interpreter.
"""

import contextlib
import math
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.waiting import CEILING_SECONDS, until

_ROOT = str(Path(__file__).parents[2])
# What every one of them needs, or most. A module that cannot be imported here is imported where it is needed.
_PRELOADED = (
    "torch",
    "optuna",
    "cppo_lab.cli",
    "cppo_lab.cores.mini.trainer",
    "cppo_lab.search.worker",
    "cppo_lab.tracking.upload",
    "tests.servers.warm",
)


def context() -> ForkServerContext:
    """Of multiprocessing."""
    forking = get_context("forkserver")
    if parent_process() is not None:
        # Forked itself, it knows its fork server; Python 3.11 would start another one all the same.
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
        return forking
    forking.set_forkserver_preload([*_PRELOADED])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [_ROOT, before])
    )  # another `tests` may be installed
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return forking


def stop() -> None:
    """Ends the fork server, if there is one, and what multiprocessing keeps beside it, at the end of a session."""
    server, tracker = forkserver._forkserver, resource_tracker._resource_tracker  # type: ignore[attr-defined]
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
        if tracker._pid is not None:  # the last process that used it may have ended it
            os.kill(tracker._pid, signal.SIGKILL)
        tracker._stop()


class Environment:
    """This process's environment, which a forked one takes over as it reads what it is to do.

    Named first among the arguments: what follows it may want to know a password when it is read.
    """

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _take_over, (dict(os.environ),)


def _take_over(values: dict[str, str]) -> Environment:
    os.environ.clear()
    os.environ.update(values)
    return Environment()


class Forked:
    """A process that calls a function, in a process group of its own, with its output in a file."""

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: object,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        """It works in this process's folder; `environment` is what it has besides this process's."""
        # No daemon in multiprocessing's sense: those may have no children.
        self.process: BaseProcess = context().Process(
            target=_called, args=(Environment(), log, Path.cwd(), dict(environment), function, arguments)
        )
        self.process.start()
        self.pid = self.process.pid or 0

    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.is_alive()

    def send(self, number: signal.Signals) -> None:
        """A signal for it alone."""
        with contextlib.suppress(ProcessLookupError):  # it ends at this moment
            if self.alive():
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL for it alone, and waits for its end."""
        self.send(signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Waits for its end; its exit status, the negative number of a signal."""
        self.process.join(CEILING_SECONDS)
        assert self.process.exitcode is not None, "it does not end"
        return self.process.exitcode

    def close(self) -> None:
        """Ends it and whatever is left of its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()


def _called(
    _: Environment,
    log: Path,
    folder: Path,
    environment: dict[str, str],
    function: Callable[..., object],
    arguments: tuple[object, ...],
) -> None:
    os.setpgrp()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.environ |= environment
    # A script that starts the tests in the background has them ignore it, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    function(*arguments)


@dataclass(frozen=True)
class Gate:
    """A file that says up to which step a process may train; it may go to the end where there is none."""

    path: Path

    def let(self, step: int) -> None:
        """It may train up to a step, and waits behind it."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(str(step))
        partial.replace(self.path)

    def open(self) -> None:
        """It may train to its end."""
        self.path.unlink(missing_ok=True)

    def wait(self, step: int) -> None:
        """In the process that trains: returns when it may take a step."""
        until(f"step {step} may begin", lambda: self._allowed() >= step)

    def _allowed(self) -> float:
        try:
            return float(self.path.read_text())
        except FileNotFoundError:
            return math.inf
