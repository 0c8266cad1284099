"""Trust-region masking of whole responses (TRM). Shapes: [B, T].

    trm_max:      response kept iff max_t D_t <= delta_max
    trm_avg:      response kept iff mean_t D_t <= delta_avg
    trm_max_avg:  both

D is a KL divergence or its sample estimate (`divergence.k2`, `k3`). Objective M rho A, or its truncated form
(`ratio_cap`, `log_ratio_clamp`: see `truncation`); a rejected response has objective 0 and stays in the denominators
of `aggregate`. A tie keeps the response.

Source: TRM, arXiv 2512.23075.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import positive, row_counts
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, tokens
from cppo_lab.maths.truncation import objective_and_stats


def trm_max(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta_max: float,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """Keep a response iff its largest divergence is at most delta_max.

    Raises:
        ValueError: delta_max <= 0, no divergence, or as in `output.tokens`.
    """
    positive("delta_max", delta_max)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    fails = {"largest divergence": _largest(batch.required_divergence("trm_max")) > delta_max}
    return _responses(batch, fails, ratio_cap, log_ratio_clamp)


def trm_avg(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta_avg: float,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """Keep a response iff its mean divergence is at most delta_avg.

    Raises:
        ValueError: delta_avg <= 0, no divergence, or as in `output.tokens`.
    """
    positive("delta_avg", delta_avg)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    fails = {"mean divergence": _mean(batch.required_divergence("trm_avg"), batch.valid) > delta_avg}
    return _responses(batch, fails, ratio_cap, log_ratio_clamp)


def trm_max_avg(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta_max: float,
    delta_avg: float,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """Keep a response iff both its largest and its mean divergence are within their limits.

    Raises:
        ValueError: delta_max or delta_avg <= 0, no divergence, or as in `output.tokens`.
    """
    positive("delta_max", delta_max)
    positive("delta_avg", delta_avg)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    d = batch.required_divergence("trm_max_avg")
    fails = {
        "largest divergence": _largest(d) > delta_max,
        "mean divergence": _mean(d, batch.valid) > delta_avg,
    }
    return _responses(batch, fails, ratio_cap, log_ratio_clamp)


def _largest(divergence: Tensor) -> Tensor:
    """[B, T] -> [B]; padding holds 0, the smallest possible divergence."""
    return divergence.amax(1) if divergence.shape[1] else divergence.sum(1)


def _mean(divergence: Tensor, valid: Tensor) -> Tensor:
    """[B, T] -> [B] over valid tokens; 0 for an empty response."""
    return divergence.sum(1) / row_counts(valid).clamp_min(1)


def _responses(
    batch: Tokens, fails: dict[str, Tensor], ratio_cap: float | None, log_ratio_clamp: float | None
) -> RuleOutput:
    """`fails` holds [B] bool for each test of a response."""
    # A = 0 needs no special case: such a token has no gradient, and mask statistics exclude it.
    tests = {name: failed[:, None].expand_as(batch.valid) for name, failed in fails.items()}
    keep = (batch.valid & ~torch.stack(list(fails.values())).any(0)[:, None]).to(batch.logp.dtype)
    objective, truncated = objective_and_stats(batch, keep, ratio_cap, log_ratio_clamp)
    return RuleOutput(objective, keep, common_stats(batch, keep) | truncated, tests)
