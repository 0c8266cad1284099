"""A training process for the fault tests: real but for its steps, which are short and whose metrics are known.

Its record goes the way of every run: `execute`, recorder, spool, shipper. Steps that a kill has cut off since the last
checkpoint are trained again.
"""

import contextlib
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from cppo_lab import run as run_module
from cppo_lab import schema
from cppo_lab.cores import base
from cppo_lab.cores.base import CHECKPOINT, MetricSink, Resources
from cppo_lab.interruption import Interrupted
from cppo_lab.run import Attempt
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import shipper

EVERY = 10  # steps between two checkpoints
HOLD_AT = 60  # the step before which it waits while there is a file `waits`.hold
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


def train(spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome:
    """A core. How long a step takes is in the environment, which is no part of what a run is."""
    seconds = float(os.environ["TRAINER_STEP_SECONDS"])
    checkpoint = resources.folder / CHECKPOINT
    try:
        done = int(checkpoint.read_text())
        sink.begin(done)
    except (FileNotFoundError, ValueError):
        done = -1
        sink.begin(None)
    hold = Path(os.environ["TRAINER_WAITS"] + ".hold")
    with Path(os.environ["TRAINER_WAITS"]).open("a") as waits:
        for step in range(done + 1, spec.training.t_stop + 1):
            time.sleep(seconds)
            while step == HOLD_AT and hold.exists():
                time.sleep(0.02)
            start = time.monotonic()
            sink.log(step, metrics(step))
            waits.write(json.dumps([step, time.monotonic() - start]) + "\n")
            waits.flush()
            if step % EVERY == 0:
                _save(checkpoint, step)
    return Outcome(DONE, spec.training.t_stop)


def _save(checkpoint: Path, step: int) -> None:
    partial = checkpoint.with_suffix(".partial")
    try:
        partial.write_text(str(step))
        partial.replace(checkpoint)
    except OSError as error:  # as the embedded core has it
        print(f"checkpoint {checkpoint} could not be written: {error}", flush=True)


def attempt(settings: "Settings") -> None:
    """In a process of its own: one attempt at a run."""
    log = os.open(settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setsid()  # what it starts is killed with it
    os.environ |= settings.environment
    os.environ["TRAINER_STEP_SECONDS"] = str(settings.step_seconds)
    os.environ["TRAINER_WAITS"] = str(settings.waits)
    if settings.stub:
        base.CORES["mini"] = f"{__name__}:train"
    shipper.EVERY_SECONDS = settings.ship_seconds
    shipper.ASIDE_AFTER_SECONDS = settings.aside_after
    shipper.LONGEST_PAUSE_SECONDS = 2.0
    shipper.PATIENCE_SECONDS = 300.0  # a server may take a minute to start
    try:
        run_module.execute(Attempt(settings.spec, settings.runs, settings.uri))
    except Interrupted as error:
        print(error, flush=True)


@dataclass(frozen=True)
class Settings:
    """Of a training process."""

    spec: RunSpec
    runs: Path
    uri: str
    log: Path
    waits: Path  # file of the steps that were logged, and of how long each waited for that
    environment: Mapping[str, str]
    step_seconds: float = 0.015
    ship_seconds: float = 0.3
    aside_after: float = 1e9  # seconds until a process of its own ships
    stub: bool = True

    @property
    def folder(self) -> Path:
        """The run's own."""
        return self.runs / self.spec.run_id


class Trainer:
    """A training process that can be killed and started again."""

    _context: ForkServerContext | None = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.process: BaseProcess | None = None

    def start(self) -> "Trainer":
        """Begins an attempt."""
        if Trainer._context is None:  # imports once what every attempt needs
            Trainer._context = multiprocessing.get_context("forkserver")
            Trainer._context.set_forkserver_preload([__name__, "cppo_lab.tracking.recorder"])
        self.process = Trainer._context.Process(target=attempt, args=(self.settings,), daemon=True)
        self.process.start()
        return self

    def step(self) -> int:
        """The last step that it has logged; -1 before the first."""
        lines = self.waits()
        return int(lines[-1][0]) if lines else -1

    def waits(self) -> list[tuple[int, float]]:
        """Every step that any attempt has logged, and the seconds that it waited for that."""
        try:
            text = self.settings.waits.read_text()
        except FileNotFoundError:
            return []
        return [tuple(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def reach(self, step: int, seconds: float = 240.0) -> "Trainer":
        """Waits until it has logged a step."""
        deadline = time.monotonic() + seconds
        while self.step() < step:
            assert self.alive(), f"it has ended: {self.log()}"
            assert time.monotonic() < deadline, f"step {self.step()} of {step}: {self.log()}"
            time.sleep(0.02)
        return self

    def alive(self) -> bool:
        """Whether it trains, or waits for the store."""
        return self.process is not None and self.process.is_alive()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to it alone."""
        assert self.process is not None and self.process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it ends at this moment
            if self.alive():
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        self.end()

    def end(self, seconds: float = 400.0) -> int:
        """Waits for its end; its exit status."""
        assert self.process is not None
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"it does not end: {self.log()}"
        return self.process.exitcode

    def log(self) -> str:
        """What all attempts have printed."""
        return self.settings.log.read_text() if self.settings.log.exists() else ""
