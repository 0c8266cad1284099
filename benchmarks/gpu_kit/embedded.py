"""The embedded core on the device and on the CPU: a short CPPO run.

Sampling draws from each device's own random numbers, so that whole runs cannot agree. What can is compared: the logits
of one model, and one update of it from one rollout batch. Then both train a few steps, each with its own draws.
"""

import math
import statistics
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_kit.record import Record
from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.spec import MiniRun
from cppo_lab.sweep.compose import compose

# The warm start is trained once, on the CPU, and shared; it knows enough for some groups to have a signal.
SHORT = [
    "rule=cppo",
    "training.t_stop=10",
    "model.warm_start.target_accuracy=null",
    "model.warm_start.steps=200",
]
TINY = [
    "rule=cppo",
    "training.t_stop=10",
    "model.warm_start.target_accuracy=null",
    "model.warm_start.steps=60",
    "model.warm_start.batch=32",
    "model.architecture.width=32",
    "model.architecture.mlp_width=64",
    "model.architecture.layers=1",
    "data.operations=2",
    "data.validation_problems=4",
    "rollout.max_response_length=9",
    "batch.prompts=16",
    "batch.responses=8",
    "batch.minibatch_prompts=8",
]


def measure(device: str, record: Record) -> None:
    """Agreement of one update, then steps on each; on a CPU both sides are the CPU."""
    torch.set_num_threads(min(4, torch.get_num_threads()))
    spec = compose(SHORT if device == "cuda" else TINY).run
    assert isinstance(spec, MiniRun)
    with tempfile.TemporaryDirectory() as name:
        cpu, gpu = (
            Trainer(spec, Resources(Path(name), Path(name), device=place)) for place in ("cpu", device)
        )
        one_update(cpu, gpu, device, record)
        count = 10 if device == "cuda" else 2
        seconds = [steps(trainer, where, count, record) for where, trainer in (("cpu", cpu), ("device", gpu))]
    record.figure("device_step_over_cpu_step", seconds[1] / seconds[0], "x")
    record.note(f"a model of {sum(p.numel() for p in gpu.model.parameters()):,} weights, {spec.run_id}")


def one_update(cpu: Trainer, gpu: Trainer, device: str, record: Record) -> None:
    """One batch, sampled and graded on the CPU, through both; the weights were the same before."""
    batch = cpu.collect()
    record.figure("responses_with_a_signal", int(batch.keep.sum()), "responses")
    both = ((cpu, batch), (gpu, moved(batch, device)))
    with torch.no_grad():
        logits, other = (
            given.rollout.logits(trainer.model, trainer.tokenizer.pad) for trainer, given in both
        )
    difference = (other.cpu() - logits).abs().max() / logits.abs().max()
    record.figure("logits_difference", float(difference), "of the largest", at_most=1e-4)
    before = {key: value.detach().clone() for key, value in cpu.model.state_dict().items()}
    ours, theirs = (trainer.update(given) for trainer, given in both)
    for key in ("train/loss", "train/grad_norm", "rule/masked_fraction"):
        if key in ours:
            gap = abs(theirs[key] - ours[key]) / (1 + abs(ours[key]))
            record.figure(f"update_{key.partition('/')[2]}_difference", gap, "of 1 + |value|", at_most=1e-3)
    step = distance(before, cpu.model.state_dict())
    # Adam divides by the gradient's own size: where that is all rounding, a weight moves one way or the other.
    ratio = distance(cpu.model.state_dict(), gpu.model.state_dict()) / step if step else None
    absent = "" if step else "no group had a signal"
    record.figure("update_weights_difference", ratio, "of the step", absent=absent)


def distance(weights: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """Euclidean distance of two models."""
    return math.sqrt(sum(float((others[key].cpu() - value).square().sum()) for key, value in weights.items()))


def moved(batch: GradedRollout, device: str) -> GradedRollout:
    """A copy of the batch on another device."""

    def tensors(record: Any) -> dict[str, Any]:
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}

    return replace(batch, rollout=replace(batch.rollout, **tensors(batch.rollout)), **tensors(batch))


def steps(trainer: Trainer, where: str, count: int, record: Record) -> float:
    """Train `count` steps and validate once; the median seconds of a step, the first apart."""
    rows = [trainer.step() for _ in range(count + 1)]
    finite = all(math.isfinite(value) for row in [*rows, trainer.validate()] for value in row.values())
    record.figure(f"{where}_steps_not_finite", 0 if finite else 1, "", at_most=0)
    record.figure(f"{where}_mean_reward", statistics.mean(row["train/reward"] for row in rows), "")
    for part in ("rollout", "update", "step"):
        seconds = statistics.median(row[f"perf/{part}_seconds"] for row in rows[1:])
        record.figure(f"{where}_{part}", seconds, "s")
    return seconds
