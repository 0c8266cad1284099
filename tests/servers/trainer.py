"""A training process for the fault tests: real but for its steps, which take no time and whose metrics are known.

Its record goes the way of every run: `TrainingJob`, recorder, spool, uploader. It waits at a gate before each
step that the test does not want yet. Steps that a kill has cut off since the last checkpoint are trained again.
"""

import contextlib
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.answers.recording import Recording, StepAnswers
from cppo_lab.cores.base import CHECKPOINT, MetricSink, Resources
from cppo_lab.runs import attempt as run_module
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import files
from cppo_lab.schema import DONE, Outcome
from cppo_lab.signals import Interrupted
from cppo_lab.spec import AnswersSpec, RunSpec
from cppo_lab.tracking import uploader
from tests.answers import made
from tests.jobs import job
from tests.servers.forked import Forked, Gate, KillAt
from tests.waiting import CEILING_SECONDS, until

EVERY = 10  # steps between two checkpoints, which are validations
KEPT = AnswersSpec(keep=True, problems=8, groups=2, megabytes=50.0)
NAMES = [one.name for one in schema.METRICS if one.name.startswith(("train/", "rule/"))]


def metrics(step: int) -> dict[str, float]:
    """What a step measures: something new each time, or the same again, or no number."""
    found = {name: math.sin(step * (number + 1)) for number, name in enumerate(NAMES)}
    found["train/reward"] = step // 7 / 10
    found["train/loss"] = math.nan if step % 50 == 3 else -step / 3
    found["train/grad_norm"] = math.inf if step % 50 == 4 else 1e-300 * step
    if step % 5 == 0:
        found[schema.validation_metric(schema.MEAN)] = step / 1000
    return found


def answers(step: int) -> StepAnswers:
    """What a validated step keeps."""
    whole = made.outcomes(validations=step // EVERY + 1)
    return StepAnswers(
        replace(
            whole.until(-1),
            **{name: getattr(whole, name)[-1:] for name in ("steps", "right", "cut_off", "length")},
        ),
        [made.sample(step=step, draw=draw, response=f"{step} <b>\u202e") for draw in range(3)],
        made.tokens(seed=step, step=step) if step else None,
    )


def train(spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome:
    """A core."""
    checkpoint = resources.folder / CHECKPOINT
    recording = Recording(KEPT, resources.folder, 1 + spec.training.t_stop // EVERY, sink.file)
    try:
        done = int(checkpoint.read_text())
        sink.begin(done)
        recording.begin(done)
    except (FileNotFoundError, ValueError):
        done = -1
        sink.begin(None)
        recording.begin(None)
    for step in range(done + 1, spec.training.t_stop + 1):
        kept = step % EVERY == 0 and recording.add(answers(step))
        sink.log(step, metrics(step))
        if kept:
            _save(checkpoint, step)
    return Outcome(DONE, spec.training.t_stop)


def _save(checkpoint: Path, step: int) -> None:
    partial = checkpoint.with_suffix(".partial")
    try:
        partial.write_text(str(step))
        partial.replace(checkpoint)
    except OSError as error:  # as the embedded core has it
        print(f"checkpoint {checkpoint} could not be written: {error}", flush=True)


@dataclass(frozen=True)
class Settings:
    """Of a training process."""

    spec: RunSpec
    runs: Path
    uri: str
    log: Path
    steps: Path  # file of the steps that were logged, and of how often each asked the store
    environment: Mapping[str, str] = field(default_factory=dict)
    ship_seconds: float = 0.1  # between two shipments
    real_process: bool = (
        False  # whether the uploading process is a new one, as in a launch, and not a forked one
    )
    patience: float = CEILING_SECONDS  # seconds that an end waits for the store
    hurry: float = CEILING_SECONDS  # and one that a signal has asked for
    stub: bool = True
    kill: KillAt | None = None

    @property
    def folder(self) -> Path:
        """The run's own."""
        return self.runs / self.spec.run_id

    @property
    def gate(self) -> Gate:
        """Where it waits."""
        return Gate(Path(f"{self.steps}.gate"))


def attempt(settings: Settings) -> None:
    """In a process of its own: one attempt at a run."""
    if settings.stub:
        run_module.load_core = lambda name: train
    uploader.EVERY_SECONDS = settings.ship_seconds
    uploader.FIRST_SECONDS = 0.0 if settings.real_process else settings.ship_seconds
    uploader.LONGEST_PAUSE_SECONDS = max(0.2, settings.ship_seconds)
    uploader.PATIENCE_SECONDS, uploader.HURRY_SECONDS = settings.patience, settings.hurry
    uploader.LOOK_SECONDS = 0.05
    if not settings.real_process:
        uploader._start = _Beside  # type: ignore[assignment]
    _watch_steps(settings)
    if settings.kill is not None:
        settings.kill.arm()
        _upload_behind_the_spool(settings.folder)
    try:
        job(settings.spec, settings.runs, settings.uri).run()
    except Interrupted as error:
        print(error, flush=True)


def _upload_behind_the_spool(folder: Path) -> None:
    """Upload only once this attempt has opened its spool, so that it is one more file wherever the attempt dies."""
    before, work = len(files(folder)), uploader.work

    def later(*arguments: Any) -> None:
        until("the attempt has a spool", lambda: len(files(folder)) > before)
        work(*arguments)

    uploader.work = later


def _watch_steps(settings: Settings) -> None:
    """Steps wait at the gate, and are noted with how often each of them has asked the store itself."""
    calls, log = _calls_of_this_thread(), Recorder.log

    def watched(recorder: Recorder, step: int, values: Mapping[str, float]) -> None:
        settings.gate.wait(step)
        before = len(calls)
        log(recorder, step, values)
        with settings.steps.open("a") as steps:
            steps.write(json.dumps([step, len(calls) - before]) + "\n")

    Recorder.log = watched  # type: ignore[method-assign]


def _calls_of_this_thread() -> list[str]:
    """The requests for a shipment that this thread makes from now on."""
    thread, calls = threading.current_thread(), list[str]()

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is thread:
                calls.append(name)
            return real(*arguments, **named)

        setattr(owner, name, noted)

    watch(uploader, "upload_once")
    return calls


class _Beside:
    """The uploading process, forked: it has imported MLflow, and dies at the points at which the trainer is to die."""

    def __init__(self, folders: Sequence[Path], uri: str) -> None:
        owner = os.getpid()
        self.pid = os.fork()
        other = self.pid or owner

        def die(kill: KillAt) -> None:  # both: the uploader would go on as long as somebody trains the run
            kill.note.write_text(kill.name)
            with contextlib.suppress(ProcessLookupError):  # it has ended, and was waited for
                os.kill(other, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        KillAt._die = die  # type: ignore[method-assign, assignment]
        if self.pid == 0:
            try:
                uploader.work(folders, uri, owner, uploader.FIRST_SECONDS)
            finally:
                os._exit(0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


class Trainer:
    """A training process that can be killed and started again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.process: Forked | None = None
        self._before = 0  # steps that earlier attempts have logged

    def start(self, kill: KillAt | None = None, upto: int = 0) -> "Trainer":
        """Begins an attempt, which trains up to a step until it may go on; at a point to be killed at, it dies."""
        self._before = len(self.steps())
        self.let(upto)
        settings = self.settings if kill is None else Settings(**{**vars(self.settings), "kill": kill})
        self.process = Forked(attempt, settings, log=settings.log, environment=settings.environment)
        return self

    def let(self, step: int) -> None:
        """It may train up to a step, and waits behind it."""
        self.settings.gate.let(step)

    def reach(self, step: int) -> "Trainer":
        """Returns when this attempt has logged a step, behind which it waits."""
        self.let(step)
        until(f"step {step} is logged", lambda: self._while_alive(lambda: self.step() >= step))
        return self

    def go_on(self) -> None:
        """It may train to its end."""
        self.settings.gate.open()

    def finish(self) -> int:
        """Lets it train to its end, and waits for that; its exit status."""
        self.go_on()
        return self.end()

    def until_said(self, words: str) -> None:
        """Waits until it has printed something."""
        until(f"it says {words!r}", lambda: self._while_alive(lambda: words in self.log()))

    def steps(self) -> list[tuple[int, int]]:
        """Every step that any attempt has logged, and how often that asked the store."""
        try:
            text = self.settings.steps.read_text()
        except FileNotFoundError:
            return []
        return [tuple(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def step(self) -> int:
        """The last step that this attempt has logged; -1 before the first."""
        return max((step for step, _ in self.steps()[self._before :]), default=-1)

    def alive(self) -> bool:
        """Whether it trains, or waits for the store."""
        return self.process is not None and self.process.alive()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to it alone."""
        assert self.process is not None
        self.process.send(number)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()

    def end(self) -> int:
        """Waits for its end; its exit status."""
        assert self.process is not None
        return self.process.end()

    def log(self) -> str:
        """What all attempts have printed."""
        return self.settings.log.read_text() if self.settings.log.exists() else ""

    def close(self) -> None:
        """Ends what is left of it."""
        if self.process is not None:
            self.process.close()

    def _while_alive(self, condition: Callable[[], bool]) -> bool:
        alive, met = self.alive(), condition()
        assert alive or met, f"it has ended: {self.log()}"
        return met
