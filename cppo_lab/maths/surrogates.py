"""Ratio-clipping rules. Shapes: [B, T]. rho_t = pi(y_t) / mu(y_t), mu the rollout engine's own probabilities.

The rules need no divergence; one that is passed only enters the statistics.

Source: PPO, arXiv 1707.06347; GRPO, arXiv 2402.03300, with the Clip-Higher of DAPO, arXiv 2503.14476; Dr. GRPO, arXiv
2503.20783.
"""

import math

import torch
from torch import Tensor

from cppo_lab.maths.checks import non_negative, row_counts
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, importance_objective, tokens


def grpo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> RuleOutput:
    """Clipped surrogate: min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).

    `dual_clip` = c bounds it from below where A < 0: max(., c A), so that rho > c adds no gradient.
    clip_high > clip_low is GRPO's Clip-Higher, clip_high = clip_low is PPO.

    `keep` is 1 where the unclipped branch, which carries the gradient, is taken (a tie keeps the token).

    Raises:
        ValueError: clip_low outside [0, 1], clip_high < 0, dual_clip <= 1, or as in `output.tokens`.
    """
    check_clips(clip_low, clip_high)
    if dual_clip is not None and not 1 < dual_clip < math.inf:
        raise ValueError(f"dual_clip={dual_clip!r} must be above 1 and finite: pass None to switch it off")
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    clipped, bound = clip(batch, clip_low, clip_high, dual_clip)
    keep = (batch.valid & ~clipped).to(batch.logp.dtype)
    # One branch by selection: torch.minimum would halve the gradient at a tie.
    objective = torch.where(clipped, bound * batch.advantages, importance_objective(batch, keep))
    stats = common_stats(batch, keep) | {"clipped": row_counts(clipped).sum().to(keep.dtype)}
    return RuleOutput(objective, keep, stats, {"ratio clip": clipped})


def check_clips(clip_low: float, clip_high: float) -> None:
    """Raise ValueError unless 0 <= clip_low <= 1 and clip_high is finite and >= 0."""
    non_negative("clip_high", clip_high)
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low={clip_low!r} must lie in [0, 1]: the ratio is clipped at 1 - clip_low")


def clip(
    batch: Tokens, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """[B, T] bool, where the clipped branch is taken; and the ratio's bound there."""
    ratio = batch.log_ratio.detach().exp()
    above = (batch.advantages > 0) & (ratio > 1 + clip_high)
    below = (batch.advantages < 0) & (ratio < 1 - clip_low)
    bound = torch.full_like(ratio, 1 - clip_low).masked_fill(above, 1 + clip_high)
    if dual_clip is not None:
        dual = (batch.advantages < 0) & (ratio > dual_clip)
        bound = bound.masked_fill(dual, dual_clip)
        below = below | dual
    return above | below, bound
