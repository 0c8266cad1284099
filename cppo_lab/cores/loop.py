"""One run of an embedded core from its first step or its checkpoint to its end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from cppo_lab import schema
from cppo_lab.answers.recording import Recording, StepAnswers
from cppo_lab.cores.base import BEST_MODEL, CHECKPOINT, MetricSink, Resources
from cppo_lab.cores.collapse import NotFinite, collapse_reason
from cppo_lab.cores.diagnostics import Diagnostics
from cppo_lab.cores.mini.checkpoint import (
    Row,
    load_checkpoint,
    make_checkpoint,
    refuse_checkpoint,
    save_checkpoint,
)
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec


class SteppedTrainer(Protocol):
    """What trains a run step by step. `steps` counts the training steps taken."""

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
        """One training step; its metrics. Raises NotFinite before an update that would destroy the weights."""
        ...

    def validate(self) -> dict[str, float]:
        """The validation scores of the policy as it is."""
        ...

    def answers(self) -> StepAnswers | None:
        """What is kept of the last validation and its training step, handed over once; None if nothing is."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """The policy's parameters."""
        ...

    def state(self) -> dict[str, Any]:
        """All that decides the further numbers of this run."""
        ...

    def load_state(self, state: dict[str, Any], step: int) -> None:
        """Continue from `state`, which was taken behind `step`. Raises ValueError if it is of another trainer."""
        ...


def run(trainer: SteppedTrainer, spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome:
    """Run `spec` on its new `trainer` to its last step or to its collapse, logging every step and each validation.

    A run with a checkpoint in its folder continues from there, with the numbers of an unbroken run.
    """
    path = resources.folder / CHECKPOINT
    maker = f"torch {torch.__version__} on {trainer.device.type}"
    found = load_checkpoint(path, spec.run_id, maker)
    if found is not None:
        try:
            trainer.load_state(found["trainer"], found["history"][-1][0])
        except ValueError as error:
            refuse_checkpoint(path, error)
            found = None
    recording = _recording(spec, sink, resources)
    if found is not None:
        history = found["history"]
        sink.begin(history[-1][0])
        recording.begin(history[-1][0])
    else:
        sink.begin(None)
        recording.begin(None)
        history = [(0, trainer.validate())]
        recording.add(trainer.answers())
    for name, value in trainer.tags.items():
        sink.tag(name, value)
    for step, metrics in history:
        sink.log(step, metrics)
    best = resources.folder / BEST_MODEL
    _keep_best(spec, best, maker, history, trainer)  # killed between its checkpoint and this

    reason = _collapsed(spec, history)
    while not reason and trainer.steps < spec.training.t_stop:
        try:
            metrics = trainer.step()
        except NotFinite as error:
            reason = f"{error} at step {trainer.steps + 1}"
            break
        validated, kept = trainer.steps % spec.validation.every == 0, True
        if validated:
            metrics |= trainer.validate()
            kept = recording.add(trainer.answers())
        history.append((trainer.steps, metrics))
        sink.log(*history[-1])
        if validated:
            if kept:  # else a run that goes on behind the checkpoint would lack these answers
                save_checkpoint(path, make_checkpoint(spec.run_id, maker, history, trainer.state()))
            _keep_best(spec, best, maker, history, trainer)
            reason = _collapsed(spec, history)
    for name, table in trainer.diagnostics.tables().items():
        sink.artifact(f"diagnostics/{name}.json", table)
    return Outcome(schema.COLLAPSED if reason else schema.DONE, history[-1][0], reason)


def _recording(spec: RunSpec, sink: MetricSink, resources: Resources) -> Recording:
    """What writes the files of the run's answers."""
    validations = 1 + spec.training.t_stop // spec.validation.every
    return Recording(
        resources.answers, resources.folder, validations, lambda name, content: sink.file(name, content)
    )


def _keep_best(spec: RunSpec, path: Path, maker: str, history: list[Row], trainer: SteppedTrainer) -> None:
    """Keep the weights if the last row has the highest score behind step 0, the later of equals; for `cppo export`.

    Called behind each validation and its checkpoint: the checkpoint alone says which weights they should be.
    """
    scores = _scores(spec, [row for row in history if row[0]])
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    if scores and history[-1][1].get(name) == max(scores):
        weights = {"model": trainer.weights()}
        save_checkpoint(path, make_checkpoint(spec.run_id, maker, history[-1:], weights))


def _scores(spec: RunSpec, history: list[Row]) -> list[float]:
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    return [metrics[name] for _, metrics in history if name in metrics]


def _collapsed(spec: RunSpec, history: list[Row]) -> str:
    scores = _scores(spec, history)
    return collapse_reason(scores, spec.training.collapse_share, spec.training.collapse_patience)
