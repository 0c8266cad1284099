"""What a loss reports through verl, and how it becomes the metrics of our schema.

verl reduces a metric three times: over the data-parallel ranks (mean), over micro-batches (sum) and over minibatches
(mean; by "max" or "min" in the name: the maximum or minimum). A share reported as a share would be a mean of means. We
report sums, which those reductions divide by one common factor: (ranks x minibatches). A ratio of two of them is
exact. `loss` and `updates` are scaled by the number of ranks beforehand, so that of `updates` the share of minibatches
with a token is left, and of `loss` their sum over all minibatches.

Importing this module imports no verl.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cppo_lab.maths.metrics import relative_logprob_error, summarise

if TYPE_CHECKING:
    from verl.utils.metric import Metric

PREFIX = "rule_sums/"


@torch.no_grad()
def diagnostic_sums(
    logp: Tensor, rollout_logp: Tensor, valid: Tensor, entropy: Tensor | None
) -> dict[str, Tensor]:
    """Sums over the valid tokens of [B, T] that belong to no rule; `entropy` of pi, where it is known."""
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
        loss: what is differentiated: the micro-batch's part of the minibatch loss, times `dp_size`.
        minibatch_tokens: valid tokens of the minibatch on all ranks; 0 where all its rows pad.
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


def rule_metrics(reduced: Mapping[str, float]) -> dict[str, float]:
    """Metrics in the names of the schema from verl's reduced actor metrics of one training step.

    Keys may carry verl's prefix `actor/`. Empty if there are no sums of ours, or if no minibatch had a token.

    `train/entropy` is that of the policy under update, at the states of the rollouts: verl's sampling engines do not
    give the entropy of mu. The two are equal in the first minibatch of a step.
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
    metrics["train/loss"] = sums["loss"] / sums["updates"]
    if "grad_norm" in names:
        # A minibatch of padding alone has the norm 0, and is no update.
        metrics["train/grad_norm"] = float(reduced[names["grad_norm"]]) / sums["updates"]
    metrics["train/relative_logprob_error"] = (
        sums["logprob_difference"] / sums["logprob_scale"] if sums["logprob_scale"] else 0.0
    )
    metrics["train/mean_abs_probability_gap"] = sums["probability_gap"] / sums["tokens"]
    if "entropy" in sums:
        metrics["train/entropy"] = sums["entropy"] / sums["tokens"]
    return metrics
