"""One embedded run from its first step or its checkpoint to its end."""

from pathlib import Path

import torch

from cppo_lab import schema
from cppo_lab.cores.base import BEST_MODEL, CHECKPOINT, MetricSink, Resources
from cppo_lab.cores.collapse import NotFinite, collapse_reason
from cppo_lab.cores.mini.checkpoint import (
    Row,
    load_checkpoint,
    make_checkpoint,
    refuse_checkpoint,
    save_checkpoint,
)
from cppo_lab.cores.mini.trainer import Trainer
from cppo_lab.schema import Outcome
from cppo_lab.spec import MiniRun


def train(spec: MiniRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Run `spec` to its last step or to its collapse, logging every step and each validation.

    A run with a checkpoint in its folder continues from there, with the numbers of an unbroken run.
    """
    torch.set_num_threads(resources.threads)
    trainer = Trainer(spec, resources)
    path = resources.folder / CHECKPOINT
    maker = f"torch {torch.__version__} on {trainer.device.type}"
    found = load_checkpoint(path, spec.run_id, maker)
    if found is not None:
        try:
            trainer.load_state(found["trainer"], found["history"][-1][0])
        except ValueError as error:
            refuse_checkpoint(path, error)
            found = None
    if found is not None:
        history = found["history"]
        sink.begin(history[-1][0])
    else:
        sink.begin(None)
        history = [(0, trainer.validate())]
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
        validated = trainer.steps % spec.validation.every == 0
        if validated:
            metrics |= trainer.validate()
        history.append((trainer.steps, metrics))
        sink.log(*history[-1])
        if validated:
            save_checkpoint(path, make_checkpoint(spec.run_id, maker, history, trainer.state()))
            _keep_best(spec, best, maker, history, trainer)
            reason = _collapsed(spec, history)
    for name, table in trainer.diagnostics.tables().items():
        sink.artifact(f"diagnostics/{name}.json", table)
    return Outcome(schema.COLLAPSED if reason else schema.DONE, history[-1][0], reason)


def _keep_best(spec: MiniRun, path: Path, maker: str, history: list[Row], trainer: Trainer) -> None:
    """Keep the weights if the last row has the highest score behind step 0, the later of equals; for `cppo export`.

    Called behind each validation and its checkpoint: the checkpoint alone says which weights they should be.
    """
    scores = _scores(spec, [row for row in history if row[0]])
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    if scores and history[-1][1].get(name) == max(scores):
        weights = {"model": trainer.model.state_dict()}
        save_checkpoint(path, make_checkpoint(spec.run_id, maker, history[-1:], weights))


def _scores(spec: MiniRun, history: list[Row]) -> list[float]:
    name = schema.validation_metric(schema.MEAN, spec.validation.samples)
    return [metrics[name] for _, metrics in history if name in metrics]


def _collapsed(spec: MiniRun, history: list[Row]) -> str:
    scores = _scores(spec, history)
    return collapse_reason(scores, spec.training.collapse_share, spec.training.collapse_patience)
