"""The embedded core on the device and on the CPU: a short CPPO run.

Sampling draws from each device's own random numbers, so that whole runs cannot agree. What can is compared: the logits
of one model, and one update of it from one rollout batch. Then both train a few steps, each with its own draws.
"""

import math
import statistics
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu_kit.record import Record
from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini.sampler import Rollout
from cppo_lab.cores.mini.trainer import GradedRollout, Trainer
from cppo_lab.spec import MiniRun
from cppo_lab.sweep.compose import compose

STEPS, TINY_STEPS = 10, 2
# The warm start is trained once, on the CPU, and shared; these know enough for some groups to have a signal.
SHORT = [
    "rule=cppo",
    "model.warm_start.steps=200",
    "model.warm_start.target_accuracy=null",
    "training.t_stop=10",
]
TINY = [
    *("rule=cppo", "model.architecture.width=32", "model.architecture.mlp_width=64"),
    *(
        "model.architecture.layers=1",
        "model.warm_start.steps=60",
        "model.warm_start.target_accuracy=null",
        "model.warm_start.batch=32",
    ),
    *("data.operations=2", "data.validation_problems=4", "rollout.max_response_length=9"),
    *("batch.prompts=16", "batch.responses=8", "batch.minibatch_prompts=8", "training.t_stop=10"),
]


def measure(device: str, record: Record) -> None:
    """Agreement of one update, then steps on each; on a CPU both sides are the CPU."""
    torch.set_num_threads(min(4, torch.get_num_threads()))
    tiny = device != "cuda"
    spec = compose(TINY if tiny else SHORT).run
    assert isinstance(spec, MiniRun)
    with tempfile.TemporaryDirectory() as name:
        there, here = (
            Trainer(spec, Resources(Path(name), Path(name), device=place)) for place in ("cpu", device)
        )
        _one_update(there, here, device, record)
        seconds = {}
        for where, trainer in (("cpu", there), ("device", here)):
            seconds[where] = _steps(trainer, where, TINY_STEPS if tiny else STEPS, record)
    record.figure("device_step_over_cpu_step", seconds["device"] / seconds["cpu"], "x")
    record.note(f"a model of {sum(p.numel() for p in here.model.parameters()):,} weights, {spec.run_id}")


def _one_update(there: Trainer, here: Trainer, device: str, record: Record) -> None:
    """One batch, sampled and graded on the CPU, through both; the weights were the same before."""
    batch = there.collect()
    kept = int(batch.keep.sum())
    record.figure("responses_with_a_signal", kept, "responses")
    moved = on(batch, device)
    with torch.no_grad():
        logits = [
            one.rollout.logits(trainer.model, trainer.tokenizer.pad)
            for trainer, one in ((there, batch), (here, moved))
        ]
    scale = float(logits[0].abs().max())
    difference = float((logits[1].cpu() - logits[0]).abs().max())
    record.figure("logits_difference", difference / scale, "of the largest", at_most=1e-4)
    before = {key: value.detach().clone() for key, value in there.model.state_dict().items()}
    metrics = [trainer.update(one) for trainer, one in ((there, batch), (here, moved))]
    for key in ("train/loss", "train/grad_norm", "rule/masked_fraction"):
        if key in metrics[0]:
            gap = abs(metrics[1][key] - metrics[0][key]) / (1 + abs(metrics[0][key]))
            record.figure(f"update_{key.partition('/')[2]}_difference", gap, "of 1 + |value|", at_most=1e-3)
    after, other = there.model.state_dict(), here.model.state_dict()
    step = math.sqrt(sum(float((after[key] - before[key]).square().sum()) for key in before))
    gap = math.sqrt(sum(float((other[key].cpu() - after[key]).square().sum()) for key in before))
    # Adam divides by the gradient's own size: where that is all rounding, a weight moves one way or the other.
    ratio, absent = (gap / step, "") if step else (None, "no group had a signal")
    record.figure("update_weights_difference", ratio, "of the step", absent=absent)


def on(batch: GradedRollout, device: str) -> GradedRollout:
    """A copy of the batch on another device."""
    moved = {}
    for field in fields(Rollout):
        value = getattr(batch.rollout, field.name)
        moved[field.name] = value.to(device) if isinstance(value, Tensor) else value
    permutation = None if batch.permutation is None else batch.permutation.to(device)
    return replace(
        batch,
        rollout=Rollout(**moved),
        advantages=batch.advantages.to(device),
        keep=batch.keep.to(device),
        permutation=permutation,
    )


def _steps(trainer: Trainer, where: str, steps: int, record: Record) -> float:
    """Train `steps` steps and validate once; the median seconds of a step, the first apart."""
    rows = [trainer.step() for _ in range(steps + 1)]
    score = trainer.validate()
    finite = all(math.isfinite(value) for row in [*rows, score] for value in row.values())
    record.figure(f"{where}_steps", len(rows), "steps")
    record.figure(f"{where}_steps_not_finite", 0 if finite else 1, "", at_most=0)
    for part in ("step", "rollout", "update"):
        seconds = statistics.median(row[f"perf/{part}_seconds"] for row in rows[1:])
        record.figure(f"{where}_{part}", seconds, "s")
    record.figure(f"{where}_mean_reward", statistics.mean(row["train/reward"] for row in rows), "")
    return statistics.median(row["perf/step_seconds"] for row in rows[1:])
