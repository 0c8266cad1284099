"""`cppo tune` as several people call it: in processes that can be interrupted and killed, whose runs wait at gates."""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from optuna.storages import BaseStorage
from sqlalchemy import Engine, event

from cppo_lab.cli import main
from cppo_lab.launch import launchers
from cppo_lab.runs.folder import holder
from cppo_lab.runs.recorder import Recorder
from cppo_lab.search import study, worker
from tests.search.made_search import training
from tests.servers.forked import Environment, Forked, Gate, context

LOG = Path("terminals.log")  # what all of them print


@dataclass
class ForkedRuns:
    """In place of `multiprocessing`: a search's training runs are forked instead of being new interpreters.

    As with those, no lock of the search goes along. They wait at a gate, if there is one.
    """

    gate: Gate | None = None

    def get_context(self, kind: str) -> "ForkedRuns":
        """This, in place of multiprocessing's context for new interpreters."""
        assert kind == "spawn"
        return self

    def Process(self, target: Callable[..., object], args: tuple[object, ...]) -> BaseProcess:
        """As multiprocessing has it."""
        return context().Process(target=_train, args=(Environment(), self.gate, target, args))


def _train(
    _: Environment, gate: Gate | None, target: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    if gate is not None:
        log = Recorder.log

        def gated(recorder: Recorder, step: int, values: Mapping[str, float]) -> None:
            gate.wait(step)
            log(recorder, step, values)

        Recorder.log = gated  # type: ignore[method-assign]
    target(*arguments)


def _impatient(url: str, opening: Callable[[str], BaseStorage] = study.open_storage) -> BaseStorage:
    storage = opening(url)
    storage.grace_period = -1
    return storage


def _kill_before(statement: int) -> None:
    """This process kills itself before its SQL statement of that number, as a SIGKILL from outside would."""
    number = itertools.count(1)

    def behind(*_: object) -> None:
        if next(number) == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", behind)


def _tune(words: Sequence[str], gate: Gate | None, kill: int, trains: bool) -> None:
    launchers.multiprocessing = ForkedRuns(gate)  # type: ignore[assignment]
    study.BEAT_SECONDS, study.SILENT_SECONDS = 1, 4
    if not trains:
        worker.train = training()
        study.open_storage = _impatient  # one worker at a time: what runs when it begins is nobody's
    _kill_before(kill)
    sys.exit(main(["tune", "./tune.yaml", *words]))


@dataclass
class Terminals:
    """Where people type `cppo tune`, in the working folder."""

    environment: Mapping[str, str]
    started: list[Forked] = field(default_factory=list)

    def tune(self, *words: str, gate: Gate | None = None, kill: int = 0, trains: bool = True) -> Forked:
        """A worker. Its runs wait at `gate`, or are made up; it dies before its SQL statement `kill`."""
        started = Forked(_tune, words, gate, kill, trains, log=LOG, environment=self.environment)
        self.started.append(started)
        return started

    def close(self) -> None:
        """End everything: in order, so that jobs of the local launcher go too, then by force; then their runs."""
        for one in self.started:
            one.send(signal.SIGTERM)
        for one in self.started:
            with contextlib.suppress(AssertionError):
                one.end()
            one.close()
        for lock in Path("runs").glob("*/lock"):
            if (held := holder(lock.parent)) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(held[1], signal.SIGKILL)


@contextlib.contextmanager
def searching(environment: Mapping[str, str] | None = None) -> Iterator[Terminals]:
    """What is still going at the end is ended."""
    opened = Terminals(environment or {})
    try:
        yield opened
    finally:
        opened.close()
