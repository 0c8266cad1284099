"""The training loop of the embedded cores, from the first step or a checkpoint to the end of a run."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from cppo_lab import schema
from cppo_lab.answers.recording import Recording, StepAnswers
from cppo_lab.cores.base import BEST_MODEL, CHECKPOINT, MetricSink, Resources
from cppo_lab.cores.checkpoint import (
    Row,
    load_checkpoint,
    make_checkpoint,
    refuse_checkpoint,
    save_checkpoint,
)
from cppo_lab.cores.collapse import collapse_reason
from cppo_lab.cores.diagnostics import Diagnostics
from cppo_lab.errors import NotFinite
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec


class SteppedTrainer(Protocol):
    """Trains a run step by step. `steps` counts the training steps taken."""

    steps: int

    @property
    def device(self) -> torch.device: ...

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the run that are known only once its trainer exists (schema.TAGS_OF_CORES)."""
        ...

    @property
    def diagnostics(self) -> Diagnostics: ...

    def step(self) -> dict[str, float]:
        """Take a step; returns its metrics. Raises NotFinite before an update that would destroy the weights."""
        ...

    def validate(self) -> dict[str, float]:
        """The validation scores of the current policy."""
        ...

    def answers(self) -> StepAnswers | None:
        """The responses kept from the last validation and its training step, returned once; None if there are none."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """The policy's parameters, for `cppo export`; empty if they are not kept."""
        ...

    def state(self) -> dict[str, Any]:
        """The state that determines the rest of this run."""
        ...

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Continue from `state`, which was taken after `step`. Raises ValueError if it is of another trainer."""
        ...


def run(trainer: SteppedTrainer, spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome:
    """Run `spec` on its new `trainer` to its last step or to its collapse, logging every step and each validation.

    A run with a checkpoint in its folder continues from there, with the numbers of an uninterrupted run.
    """
    course = Course(trainer, spec, sink, resources)
    course.begin(trainer.validate)
    while not course.over:
        try:
            metrics = trainer.step()
        except NotFinite as error:
            course.broke(error)
            break
        course.add(metrics, trainer.validate)
    return course.end()


class Course:
    """The course of one run from its start or checkpoint to its end: logging, checkpoints and early stopping.

    `trainer` is new. Call `begin`, then `add` after each step of the trainer until `over`, then `end`.
    """

    def __init__(
        self,
        trainer: SteppedTrainer,
        spec: RunSpec,
        sink: MetricSink,
        resources: Resources,
        checkpoint_seconds: float = 0.0,
    ) -> None:
        """`checkpoint_seconds`: minimum time between two checkpoints, after the first."""
        self.trainer, self.spec, self.sink = trainer, spec, sink
        self.history: list[Row] = []
        self.reason = ""  # why it ended early
        self._pause, self._saved = checkpoint_seconds, -math.inf
        self._path, self._best = resources.folder / CHECKPOINT, resources.folder / BEST_MODEL
        self._maker = f"torch {torch.__version__} on {trainer.device.type}"
        checkpoint = load_checkpoint(self._path, spec.run_id, self._maker)
        if checkpoint is not None:
            try:
                trainer.load_state(checkpoint["trainer"], checkpoint["history"][-1][0])
                self.history = checkpoint["history"]
            except ValueError as error:
                refuse_checkpoint(self._path, error)
        self._recording = _recording(spec, sink, resources)

    @property
    def over(self) -> bool:
        """Whether the run has reached its last step or has collapsed."""
        return bool(self.reason) or self.trainer.steps >= self.spec.training.t_stop

    def begin(self, validate: Callable[[], dict[str, float]]) -> None:
        """Log the rows of the checkpoint or, if there is none, the scores before training from `validate`."""
        step = self.history[-1][0] if self.history else None
        self.sink.begin(step)
        self._recording.begin(step)
        if step is None:
            self.history = [(0, validate())]
            self._recording.add(self.trainer.answers())
        for name, value in self.trainer.tags.items():
            self.sink.tag(name, value)
        for row in self.history:
            self.sink.log(*row)
        _keep_best(  # if it was killed between writing its checkpoint and this
            self.spec, self._best, self._maker, self.history, self.trainer
        )
        self.reason = _collapsed(self.spec, self.history)

    def add(self, metrics: dict[str, float], validate: Callable[[], dict[str, float]]) -> None:
        """Log a step of the trainer; if due, also log the scores from `validate` and write a checkpoint."""
        steps = self.trainer.steps
        validated, is_recorded = steps % self.spec.validation.every == 0, True
        if validated:
            metrics = metrics | validate()
            is_recorded = self._recording.add(self.trainer.answers())
        self.history.append((steps, metrics))
        self.sink.log(steps, metrics)
        if validated:
            if is_recorded:  # otherwise a run that resumes from the checkpoint would lack these responses
                self._save()
            _keep_best(self.spec, self._best, self._maker, self.history, self.trainer)
            self.reason = _collapsed(self.spec, self.history)

    def _save(self) -> None:
        if time.monotonic() - self._saved < self._pause:
            return
        state = self.trainer.state()
        save_checkpoint(self._path, make_checkpoint(self.spec.run_id, self._maker, self.history, state))
        self._saved = time.monotonic()

    def broke(self, error: NotFinite) -> None:
        """The trainer could not take its next step: the run has collapsed."""
        self.reason = f"{error} at step {self.trainer.steps + 1}"

    def end(self) -> Outcome:
        """Write the diagnostics; returns the outcome of the run."""
        for name, table in self.trainer.diagnostics.tables().items():
            self.sink.artifact(f"diagnostics/{name}.json", table)
        return Outcome(schema.COLLAPSED if self.reason else schema.DONE, self.history[-1][0], self.reason)


def _recording(spec: RunSpec, sink: MetricSink, resources: Resources) -> Recording:
    """The writer of the run's kept responses."""
    validations = 1 + spec.training.t_stop // spec.validation.every
    return Recording(
        resources.answers, resources.folder, validations, lambda name, content: sink.file(name, content)
    )


def _keep_best(spec: RunSpec, path: Path, maker: str, history: list[Row], trainer: SteppedTrainer) -> None:
    """Save the weights for `cppo export` if the last row has the highest score after step 0 (on a tie, the later).

    Called after each validation and its checkpoint, which determines the weights to save.
    """
    scores = _scores(spec, [row for row in history if row[0]])
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    if scores and history[-1][1].get(name) == max(scores) and (weights := trainer.weights()):
        save_checkpoint(path, make_checkpoint(spec.run_id, maker, history[-1:], {"model": weights}))


def _scores(spec: RunSpec, history: list[Row]) -> list[float]:
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    return [metrics[name] for _, metrics in history if name in metrics]


def _collapsed(spec: RunSpec, history: list[Row]) -> str:
    scores = _scores(spec, history)
    return collapse_reason(scores, spec.training.collapse_share, spec.training.collapse_patience)
