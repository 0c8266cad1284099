"""Rules that weight log pi by a clipped importance coefficient and mask nothing. Shapes: [B, T].

    objective_t = stopgrad(clip(coefficient_t, 1 - clip_low, 1 + clip_high)) A_t log pi(y_t)
    CISPO:   coefficient_t = rho_t
    MinPRO:  coefficient_t = rho_t min_{i<t} rho_i,   the empty prefix counts as 1

Every token keeps a gradient; clipping bounds its size. `clip_low=None` leaves the lower side open.
PAPER: the clips are not disclosed. Ours, for both: a cap of 5.0 (clip_high = 4), the lower side open.

Source: CISPO, arXiv 2506.13585; MinPRO, arXiv 2601.22718.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import non_negative, row_counts
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, tokens


def cispo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    clip_high: float,
    clip_low: float | None = None,
) -> RuleOutput:
    """CISPO: the clipped ratio as a constant weight of the policy gradient. `divergence` is for statistics only.

    Raises:
        ValueError: clip_high < 0, clip_low outside [0, 1], or as in `output.tokens`.
    """
    _check_clips(clip_low, clip_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    return _weighted_logp(batch, batch.log_ratio.detach().exp(), clip_low, clip_high)


def minpro(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    clip_high: float,
    clip_low: float | None = None,
) -> RuleOutput:
    """MinPRO: the ratio times the smallest ratio of the prefix, clipped. `divergence` is for statistics only.

    Raises:
        ValueError: as `cispo`.
    """
    _check_clips(clip_low, clip_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    log_ratio = batch.log_ratio.detach()
    prefix = torch.zeros_like(log_ratio)  # log 1 for the empty prefix, which does not enter longer prefixes
    if log_ratio.shape[1] > 1:
        prefix[:, 1:] = log_ratio[:, :-1].cummin(1).values
    return _weighted_logp(batch, (log_ratio + prefix).exp(), clip_low, clip_high)


def _weighted_logp(
    batch: Tokens, coefficient: Tensor, clip_low: float | None, clip_high: float
) -> RuleOutput:
    clipped = coefficient.clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)
    keep = batch.valid.to(batch.logp.dtype)
    stats = common_stats(batch, keep)
    beyond = (clipped != coefficient) & batch.active
    stats["clipped"] = row_counts(beyond).sum().to(keep.dtype)
    return RuleOutput(clipped * batch.advantages * batch.logp, keep, stats, {"coefficient clip": beyond})


def _check_clips(clip_low: float | None, clip_high: float) -> None:
    non_negative("clip_high", clip_high)
    if clip_low is not None and not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low={clip_low!r} must lie in [0, 1], or be None for no lower clip")
