"""The statistics that a loss reports through verl, converted to the metrics of our schema.

verl reduces a metric three times: over the data-parallel ranks (mean), over micro-batches (sum) and over minibatches
(mean; by "max" or "min" in the name: the maximum or minimum). A share would become a mean of means. So we
report sums, which those reductions divide by the same factor (ranks x minibatches): the ratio of two of them is
exact. `loss` and `updates` are scaled by the number of ranks beforehand, so that `updates` becomes the share of
minibatches with a token, and `loss` the sum over all minibatches.

Importing this module imports no verl.
"""

from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cppo_lab import schema
from cppo_lab.maths import mismatch
from cppo_lab.maths.metrics import relative_logprob_error, summarise

if TYPE_CHECKING:
    from verl.utils.metric import Metric

PREFIX = "rule_sums/"
GAP = f"{PREFIX}gap/"  # + third / part of MismatchSums / place in it


@torch.no_grad()
def diagnostic_sums(
    logp: Tensor, rollout_logp: Tensor, valid: Tensor, entropy: Tensor | None
) -> dict[str, Tensor]:
    """Rule-independent sums over the valid tokens of [B, T]; `entropy` of pi, if known."""
    difference, scale = relative_logprob_error(logp, rollout_logp, valid)
    gap = (logp.float().exp() - rollout_logp.float().exp()).abs()
    sums = {
        "logprob_difference": difference,
        "logprob_scale": scale,
        "probability_gap": torch.where(valid, gap, 0.0).sum(),
    }
    return sums if entropy is None else sums | {"entropy": torch.where(valid, entropy.float(), 0.0).sum()}


def report(
    stats: Mapping[str, Tensor], *, loss: Tensor, minibatch_tokens: float, dp_size: int
) -> "dict[str, Metric]":
    """The micro-batch's `stats` (sums; `*_max`: maxima) and loss as verl metrics.

    Args:
        stats: among them `tokens`, the valid tokens of this micro-batch.
        loss: the differentiated value: the micro-batch's part of the minibatch loss, times `dp_size`.
        minibatch_tokens: valid tokens of the minibatch on all ranks; 0 if all its rows are padding.
        dp_size: data-parallel ranks.
    """
    from verl.utils.metric import AggregationType, Metric

    values = dict(stats) | {"loss": loss, "updates": stats["tokens"] * dp_size / max(minibatch_tokens, 1)}
    # One transfer from the device for all of them.
    numbers = torch.stack([value.detach().double() for value in values.values()]).tolist()
    kinds = [AggregationType.MAX if name.endswith("_max") else AggregationType.SUM for name in values]
    return {
        PREFIX + name: Metric(kind, number) for name, kind, number in zip(values, kinds, numbers, strict=True)
    }


def report_mismatch(sums: mismatch.MismatchSums) -> "dict[str, Metric]":
    """The micro-batch's sums as verl metrics: one number each, since verl reduces only scalars."""
    from verl.utils.metric import AggregationType, Metric

    numbers = torch.cat([part.flatten() for part in sums]).tolist()  # one transfer from the device
    return {
        name: Metric(AggregationType.MAX if "/largest/" in name else AggregationType.SUM, number)
        for name, number in zip(_names(), numbers, strict=True)
    }


@cache
def _names() -> tuple[str, ...]:
    """The names of the numbers in MismatchSums, in order."""
    widths = {"sums": len(mismatch.FIELDS), "largest": 1, "counts": mismatch.BINS}
    return tuple(
        f"{GAP}{third}/{part}/{place}"
        for part, width in widths.items()
        for third in schema.THIRDS
        for place in range(width)
    )


def summarise_mismatch(metrics: MutableMapping[str, Any]) -> None:
    """Replace the sums of a training step by the metrics `mismatch/*`, if there are any.

    Args:
        metrics: name -> one number per minibatch of the step, in order, reduced over ranks and micro-batches, as
        returned
            by verl's `train_mini_batch`. verl has divided the sums of each minibatch by the number of ranks.
    """
    if _names()[0] not in metrics:
        return
    values = torch.tensor([metrics.pop(name) for name in _names()], dtype=torch.float64)
    updates = [_mismatch_sums(column) for column in values.unbind(1)]
    updates = [sums for sums in updates if sums.sums[:, 0].any()]  # padding alone makes no update
    for found in (mismatch.metrics(updates), mismatch.metrics(updates[:1], before_update=True)):
        metrics.update({name: [value] for name, value in found.items()})


def _mismatch_sums(numbers: Tensor) -> mismatch.MismatchSums:
    """MismatchSums from the numbers in the order of `_names`."""
    thirds = mismatch.THIRDS
    sums, largest, counts = numbers.split([thirds * len(mismatch.FIELDS), thirds, thirds * mismatch.BINS])
    return mismatch.MismatchSums(sums.view(thirds, -1), largest, counts.view(thirds, -1))


def rule_metrics(reduced: Mapping[str, float]) -> dict[str, float]:
    """Metrics in the names of the schema from verl's reduced actor metrics of one training step.

    Keys may carry verl's prefix `actor/`. Empty if our sums are missing, or if no minibatch had a token.

    `train/entropy` is that of the policy being updated, at the states of the rollouts, since verl's sampling engines do
    not return the entropy of mu. The two are equal in the first minibatch of a step.
    """
    names = {key.removeprefix("actor/"): key for key in reduced}
    sums = {
        name.removeprefix(PREFIX): float(reduced[key])
        for name, key in names.items()
        if name.startswith(PREFIX)
    }
    if not sums.get("updates"):
        return {}
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in sums.items()}
    metrics = {f"rule/{name}": value for name, value in summarise(tensors).items()}
    metrics |= {name: float(reduced[key]) for name, key in names.items() if name.startswith(schema.MISMATCH)}
    metrics["train/loss"] = sums["loss"] / sums["updates"]
    if "grad_norm" in names:
        # A minibatch of padding only has norm 0 and makes no update.
        metrics["train/grad_norm"] = float(reduced[names["grad_norm"]]) / sums["updates"]
    metrics["train/relative_logprob_error"] = (
        sums["logprob_difference"] / sums["logprob_scale"] if sums["logprob_scale"] else 0.0
    )
    metrics["train/mean_abs_probability_gap"] = sums["probability_gap"] / sums["tokens"]
    if "entropy" in sums:
        metrics["train/entropy"] = sums["entropy"] / sums["tokens"]
    return metrics
