"""Rules that clip or bend the ratio: PPO, GRPO, Dr. GRPO, ESTR, PSPO, SAPO, CISPO, MinPRO, DRPO and CFPO.

Shapes: [B, T].
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cppo_lab.maths.tokens import (
    RuleOutput,
    Tokens,
    importance_objective,
    non_negative,
    positive,
    refuse_overflow,
    rule_output,
    weight_of,
)

# Ratio-clipping rules: rho_t = pi(y_t) / mu(y_t), mu the rollout engine's own probabilities.
#
# A divergence is not needed; if passed, it only enters the statistics.
#
# Source: PPO, arXiv 1707.06347; GRPO, arXiv 2402.03300, with the Clip-Higher of DAPO, arXiv 2503.14476; Dr. GRPO, arXiv
# 2503.20783.


def grpo(
    tokens: Tokens,
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
        ValueError: clip_low outside [0, 1], clip_high < 0, dual_clip <= 1.
    """
    check_clips(clip_low, clip_high)
    if dual_clip is not None and not 1 < dual_clip < math.inf:
        raise ValueError(f"dual_clip={dual_clip!r} must be above 1 and finite: pass None to switch it off")
    clipped, bound = clip(tokens, clip_low, clip_high, dual_clip)
    return clipped_surrogate(tokens, ~clipped, clipped, bound, {"ratio clip": clipped})


def clipped_surrogate(
    tokens: Tokens,
    keep: Tensor,
    clipped: Tensor,
    bound: Tensor,
    tests: Mapping[str, Tensor],
    log_ratio: Tensor | None = None,
) -> RuleOutput:
    """bound * A where `clipped`, else keep * rho * A."""
    # One branch by selection: torch.minimum would halve the gradient at a tie.
    surrogate = importance_objective(tokens, weight_of(tokens, keep), log_ratio)
    objective = torch.where(clipped, bound * tokens.advantages, surrogate)
    return rule_output(tokens, keep, tests, objective, clipped=clipped)


def clipped_without(
    tokens: Tokens, dropped: Tensor, test: str, clip_low: float, clip_high: float
) -> RuleOutput:
    """The clipped surrogate of the tokens that are not `dropped` [B, T] by a test of this name."""
    clipped, bound = clip(tokens, clip_low, clip_high)
    clipped = clipped & ~dropped
    tests = {test: dropped, "ratio clip": clipped}
    return clipped_surrogate(tokens, ~clipped & ~dropped, clipped, bound, tests)


def check_clips(clip_low: float | None, clip_high: float, *, open_below: bool = False) -> None:
    """Raise ValueError unless 0 <= clip_low <= 1, or it is None and `open_below`, and clip_high is finite and >= 0."""
    non_negative("clip_high", clip_high)
    if not (open_below if clip_low is None else 0 <= clip_low <= 1):
        remedy = ", or be None for no lower clip" if open_below else ": the ratio is clipped at 1 - clip_low"
        raise ValueError(f"clip_low={clip_low!r} must lie in [0, 1]{remedy}")


def clip(
    tokens: Tokens,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """[B, T] bool, where the clipped branch is taken; and the bound there of the ratio, each token's own if None."""
    ratio = tokens.log_ratio.detach().exp() if ratio is None else ratio
    above = (tokens.advantages > 0) & (ratio > 1 + clip_high)
    below = (tokens.advantages < 0) & (ratio < 1 - clip_low)
    bound = torch.full_like(ratio, 1 - clip_low).masked_fill(above, 1 + clip_high)
    if dual_clip is not None:
        dual = (tokens.advantages < 0) & (ratio > dual_clip)
        bound = bound.masked_fill(dual, dual_clip)
        below = below | dual
    return above | below, bound


# ESTR: GRPO's clip on the tokens whose log-ratio is small for the entropy of mu at their state.
#
#     M_t = [ (log rho_t)^2 / (H_t + FLOOR) <= tau ],   FLOOR = 0.01
#     objective_t = M_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)
#
# The mask ignores the sign of A. A tie keeps the token. H_t is the entropy over all tokens; with core=verl, over mu's
# Top-K and the rest as one token, which is at most that.
#
# Source: arXiv 2607.22186, read in two independent notes, which agree. PAPER: tau was in neither; 1 is our choice.

ENTROPY_FLOOR = 0.01


def estr(tokens: Tokens, *, tau: float, clip_low: float, clip_high: float) -> RuleOutput:
    """ESTR; tau = math.inf leaves GRPO's clip alone. `clipped` counts only tokens that the mask keeps.

    Raises:
        ValueError: tau <= 0, clip_low outside [0, 1], clip_high < 0, no entropy.
    """
    positive("tau", tau, allow_inf=True)
    check_clips(clip_low, clip_high)
    assert tokens.rollout_entropy is not None  # the record has checked it
    dropped = tokens.log_ratio.detach().square() > tau * (tokens.rollout_entropy + ENTROPY_FLOOR)
    return clipped_without(tokens, dropped, "log-ratio for its entropy", clip_low, clip_high)


# PSPO: pi is smoothed toward mu in place of a clip.
#
#     objective_t = r_t A_t,   r_t = ((1 - smoothing) pi(y_t) + smoothing mu(y_t)) / mu(y_t)
#                                  = (1 - smoothing) rho_t + smoothing
#
# Its gradient in log pi(y_t) is (1 - smoothing) rho_t A_t.
#
# Source: arXiv 2509.21282; TRL pull request 4548, whose smoothing is 0.1.


def pspo(tokens: Tokens, *, smoothing: float) -> RuleOutput:
    """PSPO; `keep` is 1 - smoothing, and 1 where A = 0.

    `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: smoothing outside [0, 1), a ratio that overflows.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing!r} must lie in [0, 1): pass 0 to switch it off")
    dtype = tokens.logp.dtype
    keep = tokens.valid.to(dtype) - smoothing * tokens.active.to(dtype)
    objective = importance_objective(tokens, keep) + smoothing * tokens.advantages
    return rule_output(tokens, keep, {"smoothing": keep < 1}, objective)


# SAPO: a sigmoid of the ratio in place of a clip.
#
#     objective_t = 4 / tau sigmoid(tau (rho_t - 1)) A_t,   tau = tau_positive where A_t > 0, else tau_negative
#
# Its gradient in log pi(y_t) is keep_t rho_t A_t with keep_t = 4 p (1 - p), p = sigmoid(tau (rho_t - 1)): 1 on policy,
# falling to 0 on both sides, faster for a larger tau. The paper takes tau_negative > tau_positive, because a negative
# advantage raises the logits of all the tokens that were not sampled.
#
# Source: SAPO, arXiv 2511.20347; tau_positive = 1.0, tau_negative = 1.05. On policy the objective is 2 A / tau, not A.
# A divergence is not needed; if passed, it only enters the statistics.


def sapo(
    tokens: Tokens,
    *,
    tau_positive: float,
    tau_negative: float,
) -> RuleOutput:
    """SAPO's soft clip; `keep` is the weight 4 p (1 - p), and 1 where A = 0.

    `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: a temperature that is not positive.
    """
    positive("tau_positive", tau_positive)
    positive("tau_negative", tau_negative)
    tau = torch.full_like(tokens.advantages, tau_negative).masked_fill(tokens.advantages > 0, tau_positive)
    # The gate saturates long before rho overflows; without the clamp its gradient would be 0 * inf.
    largest = math.log(torch.finfo(tokens.logp.dtype).max) / 2
    p = torch.sigmoid(tau * torch.expm1(tokens.log_ratio.clamp_max(largest)))
    weight = 4 * p.detach() * (1 - p.detach())
    keep = torch.where(tokens.active, weight, 1.0) * tokens.valid
    return rule_output(tokens, keep, {"soft clip": keep < 1}, 4 / tau * p * tokens.advantages)


# Rules that weight log pi by a clipped importance coefficient and mask nothing.
#
#     objective_t = stopgrad(clip(coefficient_t, 1 - clip_low, 1 + clip_high)) A_t log pi(y_t)
#     CISPO:   coefficient_t = rho_t
#     MinPRO:  coefficient_t = rho_t min_{i<t} rho_i,   the empty prefix counts as 1
#
# Every token keeps a gradient; clipping bounds its size. `clip_low=None` leaves the lower side open.
# PAPER: the clips are not disclosed. Ours, for both: a cap of 5.0 (clip_high = 4), the lower side open.
#
# Source: CISPO, arXiv 2506.13585; MinPRO, arXiv 2601.22718.


def cispo(
    tokens: Tokens,
    *,
    clip_high: float,
    clip_low: float | None = None,
) -> RuleOutput:
    """CISPO: the clipped ratio as a constant weight of the policy gradient. `divergence` is for statistics only.

    Raises:
        ValueError: clip_high < 0, clip_low outside [0, 1].
    """
    check_clips(clip_low, clip_high, open_below=True)
    return _weighted_logp(tokens, tokens.log_ratio.detach().exp(), clip_low, clip_high)


def minpro(
    tokens: Tokens,
    *,
    clip_high: float,
    clip_low: float | None = None,
) -> RuleOutput:
    """MinPRO: the ratio times the smallest ratio of the prefix, clipped. `divergence` is for statistics only.

    Raises:
        ValueError: as `cispo`.
    """
    check_clips(clip_low, clip_high, open_below=True)
    log_ratio = tokens.log_ratio.detach()
    prefix = torch.zeros_like(log_ratio)  # log 1 for the empty prefix, which does not enter longer prefixes
    prefix[:, 1:] = log_ratio[:, :-1].cummin(1).values
    return _weighted_logp(tokens, (log_ratio + prefix).exp(), clip_low, clip_high)


def _weighted_logp(
    tokens: Tokens, coefficient: Tensor, clip_low: float | None, clip_high: float
) -> RuleOutput:
    clipped = coefficient.clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)
    beyond = (clipped != coefficient) & tokens.active
    objective = clipped * tokens.advantages * tokens.logp
    return rule_output(tokens, tokens.valid, {"coefficient clip": beyond}, objective, clipped=beyond)


# DRPO: a quadratic penalty on the probability's shift in place of a mask.
#
#     objective_t = rho_t A_t - |A_t| mu(y_t) (rho_t - 1)^2 / (2 delta)
#
# Its gradient in log pi(y_t) is g_t rho_t A_t with g_t = 1 - sign(A_t (rho_t - 1)) |pi(y_t) - mu(y_t)| / delta: below 1
# where the token moves away, negative beyond delta, above 1 where it moves back. With delta >= 1 no token turns around.
#
# Source: DRPO, arXiv 2606.09821, Eq. (8); UniRL `unirl/algorithms/drpo.py`, which clamps log rho to [-20, 20], while
# here a ratio that overflows is an error. The paper's delta is 12.5. A divergence is not needed; if passed, it only
# enters the statistics.


def drpo(
    tokens: Tokens,
    *,
    delta: float,
) -> RuleOutput:
    """DRPO; `keep` is g clipped to [0, 1], and 1 where A = 0.

    `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: delta <= 0, a ratio that overflows.
    """
    return _pulled_back(tokens, delta, tokens.rollout_logp.clamp_max(0).exp(), "probability shift")


# CFPO: a quadratic penalty on the ratio in place of a clip.
#
#     objective_t = rho_t A_t - |A_t| (rho_t - 1)^2 / (2 delta)
#
# Its gradient in log pi(y_t) is g_t rho_t A_t with g_t = 1 - sign(A_t) (rho_t - 1) / delta. DRPO without the factor
# mu(y_t), so that delta is a width of the ratio, as a clip's.
#
# Source: arXiv 2601.22801, Eq. (7); verl pull request 5252. delta is the epsilon of the clip that it replaces.


def cfpo(tokens: Tokens, *, delta: float) -> RuleOutput:
    """CFPO; `keep` and the statistics as those of `drpo`.

    Raises:
        ValueError: delta <= 0, a ratio that overflows.
    """
    output = _pulled_back(tokens, delta, torch.ones_like(tokens.rollout_logp), "ratio shift")
    # rho itself may be finite.
    refuse_overflow(output.objective, tokens.log_ratio, "squared probability ratio")
    return output


def _pulled_back(tokens: Tokens, delta: float, scale: Tensor, test: str) -> RuleOutput:
    """rho A - |A| scale (rho - 1)^2 / (2 delta), with `scale` [B, T]."""
    positive("delta", delta)
    surrogate = importance_objective(tokens, tokens.valid.to(tokens.logp.dtype))
    change = torch.expm1(tokens.log_ratio)
    shift = scale * change  # of DRPO pi - mu, which cannot overflow: its square over mu could
    gate = 1 - (tokens.advantages.sign() * shift.detach() / delta).clamp(0, 1)
    keep = gate * tokens.valid
    objective = surrogate - tokens.advantages.abs() * (shift * change) / (2 * delta)
    return rule_output(tokens, keep, {test: keep < 1}, objective)
