"""Rules on the geometric mean of a response's token ratios. Shapes: [B, T], T_i the length of response i.

    GSPO:  min(s_i A, clip(s_i, 1 - clip_low, 1 + clip_high) A),   s_i = exp(1/T_i sum_t log rho_t)
    GMPO:  g_i A,   g_i = exp(1/T_i sum_t l_t),   l_t = min(log rho_t, log_clip_high)   where A > 0
                                                  l_t = max(log rho_t, -log_clip_low)   where A < 0

GSPO drops a response whose mean ratio left the clip range; GMPO clips token by token before it takes the mean.
Both are objectives of a response. Token t carries the response's value with the gradient of its own log pi
(GSPO-token: sg[s_i] pi_t / sg[pi_t]), so that a sum over tokens divided by T_i (seq-mean-token-mean, the mode of both
papers) has the value and, if A is the same at every token, the gradient of the response's objective. Per-token
advantages remain meaningful.

Source: GSPO, arXiv 2507.18071, objective Eq. (5), with its GSPO-token form; GMPO, arXiv 2507.20673, whose clips are
one-sided by the sign of A and are stated in log space.
The rules need no divergence; one that is passed only enters the statistics.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import non_negative
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, importance_objective, tokens


def gspo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    clip_low: float,
    clip_high: float,
) -> RuleOutput:
    """GSPO: PPO's clip on the response's geometric-mean ratio; `keep` is 1 where it is not clipped.

    The clips are two orders of magnitude below PPO's, since a mean over T tokens moves that much less than a single
    ratio.

    Raises:
        ValueError: clip_low outside [0, 1], clip_high < 0, or as in `output.tokens`.
    """
    non_negative("clip_high", clip_high)
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low={clip_low!r} must lie in [0, 1]: the ratio is clipped at 1 - clip_low")
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    mean = _mean(batch.log_ratio.detach(), batch.valid)
    ratio = mean.exp()
    above = (batch.advantages > 0) & (ratio > 1 + clip_high)
    below = (batch.advantages < 0) & (ratio < 1 - clip_low)
    keep = (batch.valid & ~above & ~below).to(batch.logp.dtype)
    bound = torch.full_like(ratio, 1 - clip_low).masked_fill(above, 1 + clip_high)
    kept = importance_objective(_with_log_ratio(batch, mean), keep)
    return _output(batch, torch.where(above | below, bound * batch.advantages, kept), keep, "mean ratio clip")


def geo_mean(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    log_clip_low: float,
    log_clip_high: float,
) -> RuleOutput:
    """GMPO: the geometric mean of clipped token ratios; `keep` is 1 where the token's ratio is not clipped.

    A clipped token has no gradient and enters the mean with its bound.

    Args:
        log_clip_low, log_clip_high: clips of log rho, in nats: rho is held in [e^-low, e^high].

    Raises:
        ValueError: a clip that is negative or not finite, or as in `output.tokens`.
    """
    non_negative("log_clip_low", log_clip_low)
    non_negative("log_clip_high", log_clip_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    log_ratio = batch.log_ratio.detach()
    above = (batch.advantages > 0) & (log_ratio > log_clip_high)
    below = (batch.advantages < 0) & (log_ratio < -log_clip_low)
    mean = _mean(log_ratio.masked_fill(above, log_clip_high).masked_fill(below, -log_clip_low), batch.valid)
    keep = (batch.valid & ~above & ~below).to(batch.logp.dtype)
    kept = importance_objective(_with_log_ratio(batch, mean), keep)
    return _output(batch, torch.where(above | below, mean.exp() * batch.advantages, kept), keep, "ratio clip")


def _mean(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """Mean over each response's tokens at every token, [B, T] -> [B, T]; 0 for an empty response."""
    mean = log_ratio.sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp_min(1)
    return mean.expand_as(log_ratio)


def _with_log_ratio(batch: Tokens, value: Tensor) -> Tokens:
    """The batch with log-ratios of this value, and the gradient of each token's own log pi."""
    return batch._replace(log_ratio=value + (batch.logp - batch.logp.detach()))


def _output(batch: Tokens, objective: Tensor, keep: Tensor, test: str) -> RuleOutput:
    clipped = keep == 0
    count = (batch.valid & clipped).sum().to(keep.dtype)
    return RuleOutput(objective, keep, common_stats(batch, keep) | {"clipped": count}, {test: clipped})
