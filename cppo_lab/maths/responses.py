"""Rules that decide or weigh by the whole response: TRM, GSPO, GMPO, Seq-TIS and others. Shapes: [B, T]."""

import math

import torch
from torch import Tensor

from cppo_lab.errors import NotFinite
from cppo_lab.maths.clips import check_clips, clip, clipped_surrogate, clipped_without
from cppo_lab.maths.masks import truncated
from cppo_lab.maths.tokens import (
    RuleOutput,
    Tokens,
    non_negative,
    positive,
    ratio_bounds,
    row_counts,
    row_means,
    rule_output,
    weight_of,
)

# Trust-region masking of whole responses (TRM):
#
#     trm_max:      response kept iff max_t D_t <= delta_max
#     trm_avg:      response kept iff mean_t D_t <= delta_avg
#     trm_max_avg:  both
#
# D is a KL divergence or its sample estimate (`divergence.k2`, `k3`). Objective M rho A, or its truncated form
# (`ratio_cap`, `log_ratio_clamp`: see `masks`); a rejected response has objective 0 and stays in the denominators
# of `aggregate`. A tie keeps the response.
#
# Source: TRM, arXiv 2512.23075.


def trm(
    tokens: Tokens,
    *,
    delta_max: float,
    delta_avg: float,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """Keep a response iff both its largest and its mean divergence are within their limits; math.inf is none.

    Raises:
        ValueError: delta_max or delta_avg <= 0, both infinite, no divergence.
    """
    positive("delta_max", delta_max, allow_inf=True)
    positive("delta_avg", delta_avg, allow_inf=True)
    if delta_max == delta_avg == math.inf:
        raise ValueError(
            f"{delta_max=} and {delta_avg=} are no limits: pass a finite value above 0 for one of them"
        )
    d, keep, tests = tokens.required_divergence, tokens.valid, {}
    # Padding holds 0, the smallest possible divergence.
    largest = d.amax(1, keepdim=True) if d.shape[1] else d.sum(1, keepdim=True)
    for name, value, limit in (
        ("largest divergence", largest, delta_max),
        ("mean divergence", row_means(d, tokens.valid), delta_avg),
    ):
        if limit < math.inf:
            # A = 0 needs no special case: such a token has no gradient, and mask statistics exclude it.
            tests[name] = (value > limit).expand_as(keep)
            keep = keep & ~tests[name]
    return truncated(tokens, keep, tests, ratio_cap, log_ratio_clamp)


# Rules on the geometric mean of a response's token ratios.
#
#     GSPO:  min(s_i A, clip(s_i, 1 - clip_low, 1 + clip_high) A),   s_i = exp(1/T_i sum_t log rho_t)
#     LUSPO: T_i times GSPO's
#     GMPO:  g_i A,   g_i = exp(1/T_i sum_t l_t),   l_t = min(log rho_t, log_clip_high)   where A > 0
#                                                   l_t = max(log rho_t, -log_clip_low)   where A < 0
#
# GSPO drops a response whose mean ratio left the clip range; GMPO clips token by token before it takes the mean.
# Both are objectives of a response. Token t carries the response's value with the gradient of its own log pi
# (GSPO-token: sg[s_i] pi_t / sg[pi_t]), so that a sum over tokens divided by T_i (seq-mean-token-mean, the mode of both
# papers) has the value and, if A is the same at every token, the gradient of the response's objective. Per-token
# advantages remain meaningful.
#
# Source: GSPO, arXiv 2507.18071, objective Eq. (5), with its GSPO-token form; GMPO, arXiv 2507.20673, whose clips are
# one-sided by the sign of A and are stated in log space; LUSPO, arXiv 2602.05261, with GSPO's clips and aggregation, in
# TRL's `trainer/grpo_trainer.py` the loss type `luspo`.
# A divergence is not needed; if passed, it only enters the statistics.


def gspo(
    tokens: Tokens,
    *,
    clip_low: float,
    clip_high: float,
) -> RuleOutput:
    """GSPO: PPO's clip on the response's geometric-mean ratio; `keep` is 1 where it is not clipped.

    The clips are two orders of magnitude below PPO's, since a mean over T tokens moves that much less than a single
    ratio.

    Raises:
        ValueError: clip_low outside [0, 1], clip_high < 0.
    """
    check_clips(clip_low, clip_high)
    mean = row_means(tokens.log_ratio.detach(), tokens.valid).expand_as(tokens.log_ratio)
    clipped, bound = clip(tokens, clip_low, clip_high, ratio=mean.exp())
    tests = {"mean ratio clip": clipped}
    return clipped_surrogate(tokens, ~clipped, clipped, bound, tests, _own_gradient(tokens, mean))


def luspo(tokens: Tokens, *, clip_low: float, clip_high: float) -> RuleOutput:
    """LUSPO: GSPO times the response's length, so that its mean over tokens weighs every token equally.

    Raises:
        ValueError: as `gspo`.
    """
    output = gspo(tokens, clip_low=clip_low, clip_high=clip_high)
    return output._replace(objective=output.objective * row_counts(tokens.valid)[:, None])


def geo_mean(
    tokens: Tokens,
    *,
    log_clip_low: float,
    log_clip_high: float,
) -> RuleOutput:
    """GMPO: the geometric mean of clipped token ratios; `keep` is 1 where the token's ratio is not clipped.

    A clipped token has no gradient and enters the mean with its bound.

    Args:
        log_clip_low, log_clip_high: clips of log rho, in nats: rho is held in [e^-low, e^high].

    Raises:
        ValueError: a clip that is negative or not finite.
    """
    non_negative("log_clip_low", log_clip_low)
    non_negative("log_clip_high", log_clip_high)
    log_ratio = tokens.log_ratio.detach()
    above = (tokens.advantages > 0) & (log_ratio > log_clip_high)
    below = (tokens.advantages < 0) & (log_ratio < -log_clip_low)
    limited = log_ratio.masked_fill(above, log_clip_high).masked_fill(below, -log_clip_low)
    mean = row_means(limited, tokens.valid).expand_as(limited)
    clipped = above | below
    return clipped_surrogate(
        tokens, ~clipped, clipped, mean.exp(), {"ratio clip": clipped}, _own_gradient(tokens, mean)
    )


def _own_gradient(tokens: Tokens, log_ratio: Tensor) -> Tensor:
    """`log_ratio` with the gradient of each token's own log pi."""
    return log_ratio + (tokens.logp - tokens.logp.detach())


# Rules that weight log pi by a number per response.
#
#     objective_t = stopgrad(f_i) A_t log pi(y_t),   w_i = prod_t rho_t
#
#     Seq-TIS:   f = min(w, ratio_high)
#     Seq-MIS:   f = w [ ratio_low <= w <= ratio_high ]
#     Geo-Mask:  f = [ ratio_low <= w^(1/T_i) <= ratio_high ]
#     TOPR:      f = min(w, ratio_high) where A_t < 0, else 1
#     VESPO:     f = e^lambda w^k e^(-lambda w),   k and lambda by the sign of A_t
#
# Seq-TIS truncates the response's ratio, and Seq-MIS drops the response instead. Geo-Mask only filters: its bound does
# not depend on the length, and kept responses are not reweighted. VESPO is smooth: 1 at w = 1, largest at w = k /
# lambda. A tie keeps the response. A dropped response has objective 0 and stays in the denominators of `aggregate`.
#
# Source: the blog "When Speed Kills Stability", richardli.xyz/rl-collapse, by authors of TRM (arXiv 2512.23075); verl
# `docs/algo/rollout_corr_math.md` 3.3 with the presets of `trainer/config/algorithm.py`: Seq-TIS 2.0, Seq-MIS 0.5 to
# 2.0 (inclusive, in log space), Geo-Mask 0.999 to 1.001. verl's code bounds the inverse ratio, its documentation the
# ratio, as here; they differ where the bounds are not each other's inverse. prime-rl's Seq-MIS (pull request 3384) has
# the filter of Geo-Mask and the weight w; it is not implemented here. TOPR, arXiv 2503.14286, ratio_high = 1; w is the
# product of ratios, as in ROLL (`use_topr_loss`), while verl's TOPR has their geometric mean. VESPO, arXiv 2602.10693;
# TRL `trainer/grpo_trainer.py` (`get_gamma_weights`): k 2, lambda 3 where A >= 0, else k 3, lambda 2; log rho is held
# in [-20, 20], log w to [log 1e-8, 20]. A divergence is not needed; if passed, it only enters the statistics.

LARGEST_LOG, LEAST_LOG_W = 20.0, math.log(1e-8)  # of VESPO


def seq_tis(
    tokens: Tokens,
    *,
    ratio_high: float,
) -> RuleOutput:
    """Seq-TIS: the response's ratio, truncated at ratio_high, as a constant weight of its policy gradient.

    Raises:
        ValueError: ratio_high < 1, a weight that overflows.
    """
    ratio_bounds(0.0, ratio_high)
    weight = _log_weight(tokens).exp()
    clipped = tokens.active & (weight > ratio_high)
    return _weighted(
        tokens, weight.clamp_max(ratio_high), tokens.valid, {"response ratio": clipped}, clipped=clipped
    )


def seq_mis(
    tokens: Tokens,
    *,
    ratio_low: float,
    ratio_high: float,
) -> RuleOutput:
    """Seq-MIS: the response's ratio as a constant weight; the response is dropped if that is outside the bounds.

    Raises:
        ValueError: bounds that do not enclose 1, a weight that overflows.
    """
    ratio_bounds(ratio_low, ratio_high)
    weight = _log_weight(tokens)
    keep = tokens.valid & _within(weight, ratio_low, ratio_high)
    return _weighted(tokens, torch.where(keep, weight, -math.inf).exp(), keep, {"response ratio": ~keep})


def geo_mask(
    tokens: Tokens,
    *,
    ratio_low: float,
    ratio_high: float,
) -> RuleOutput:
    """Geo-Mask: the plain policy gradient of the responses whose geometric-mean ratio is within the bounds.

    Raises:
        ValueError: bounds that do not enclose 1.
    """
    ratio_bounds(ratio_low, ratio_high)
    mean = row_means(tokens.log_ratio.detach(), tokens.valid)
    keep = tokens.valid & _within(mean, ratio_low, ratio_high)
    return _weighted(tokens, weight_of(tokens, keep), keep, {"mean ratio": ~keep})


def topr(tokens: Tokens, *, ratio_high: float) -> RuleOutput:
    """TOPR: the plain policy gradient where A >= 0; where A < 0, weighted by the response's truncated ratio.

    `keep` is that weight clipped to [0, 1]; `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: ratio_high < 1, a weight that overflows.
    """
    ratio_bounds(0.0, ratio_high)
    punished = tokens.advantages < 0
    ratio = _log_weight(tokens).exp()
    weight = torch.where(punished, ratio.clamp_max(ratio_high), 1.0)
    keep = weight.clamp_max(1) * tokens.valid
    clipped = punished & (ratio > ratio_high)
    return _weighted(tokens, weight, keep, {"response ratio": keep < 1}, clipped=clipped)


def vespo(
    tokens: Tokens,
    *,
    k_positive: float,
    lambda_positive: float,
    k_negative: float,
    lambda_negative: float,
) -> RuleOutput:
    """VESPO: a gamma kernel on the response's ratio; `keep` is the kernel clipped to [0, 1], and 1 where A = 0.

    `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: k < 0, lambda <= 0.
    """
    non_negative("k_positive", k_positive)
    non_negative("k_negative", k_negative)
    positive("lambda_positive", lambda_positive)
    positive("lambda_negative", lambda_negative)
    held = tokens.log_ratio.detach().clamp(-LARGEST_LOG, LARGEST_LOG)
    log_w = held.sum(1, keepdim=True).clamp(LEAST_LOG_W, LARGEST_LOG).expand_as(held)
    negative = tokens.advantages < 0
    k = torch.full_like(held, k_positive).masked_fill(negative, k_negative)
    rate = torch.full_like(held, lambda_positive).masked_fill(negative, lambda_negative)
    kernel = (k * log_w - rate * log_w.expm1()).exp()
    keep = torch.where(tokens.active, kernel.clamp_max(1), 1.0) * tokens.valid
    return _weighted(tokens, kernel, keep, {"response ratio": keep < 1})


def _log_weight(tokens: Tokens) -> Tensor:
    """log w at every token, [B, T]; 0 for an empty response."""
    return tokens.log_ratio.detach().sum(1, keepdim=True).expand_as(tokens.log_ratio)


def _within(log_ratio: Tensor, low: float, high: float) -> Tensor:
    """Whether the ratio is within its bounds, compared in log space, since a ratio may overflow."""
    return (log_ratio >= (math.log(low) if low else -math.inf)) & (log_ratio <= math.log(high))


def _weighted(
    tokens: Tokens, weight: Tensor, keep: Tensor, tests: dict[str, Tensor], clipped: Tensor | None = None
) -> RuleOutput:
    """stopgrad(weight) A log pi. Raises NotFinite if the weight of a token with A != 0 overflows."""
    coefficient = torch.where(tokens.active, weight, 0.0) * tokens.advantages
    if bool((bad := ~coefficient.isfinite()).any()):
        row = int(bad.nonzero()[0, 0])
        total = float(tokens.log_ratio.detach()[row].sum())
        raise NotFinite(
            f"the weight of response {row} overflows (its log-ratios add up to {total:g}): see logp and rollout_logp "
            "there, or pass constants that bound it"
        )
    return rule_output(tokens, keep, tests, coefficient * tokens.logp, clipped=clipped)


# M2PO: a bound on the second moment of a whole minibatch.
#
#     H = { t of any response: A_t (rho_t - 1) > 0 },   v_t = (log rho_t)^2
#     drop the v_t of H, the largest first, until the mean of v over the rest of H is at most m2
#     objective_t = M_t rho_t A_t
#
# A token that moves pi back toward mu is always kept. Among tokens with equal v, the last ones of the batch are dropped
# first. Unlike for every other rule, a decision depends on all responses of the minibatch, so the rule cannot be
# applied to micro-batches separately.
#
# Source: M2PO, arXiv 2510.01161, m2 = 0.04; H as in the authors' code (github.com/Infini-AI-Lab/M2PO,
# `verl/trainer/ppo/core_algos.py`). Public implementations bound different means: the authors' code bounds the mean of
# min(v, tau^2) over all of H and clips at tau; AReaL `trainer/ppo/actor.py` drops until the mean of the rest is within
# the limit, as here, but H has all tokens, whatever A is. Both use one micro-batch. A divergence is not needed;
# if passed, it only enters the statistics.


def m2po(
    tokens: Tokens,
    *,
    m2: float,
) -> RuleOutput:
    """M2PO on a whole minibatch.

    Args:
        m2: largest mean of (log rho)^2 over the kept tokens that move away; math.inf drops none.

    Raises:
        ValueError: m2 <= 0.
    """
    positive("m2", m2, allow_inf=True)
    log_ratio = tokens.log_ratio.detach()
    away = tokens.advantages * log_ratio > 0
    ascending, order = log_ratio.square()[away].double().sort(stable=True)
    # The mean of the n smallest values increases with n, so all n with a mean within the limit come first.
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, device=order.device)
    outliers = torch.zeros_like(order, dtype=torch.bool)
    outliers[order] = means > m2
    dropped = torch.zeros_like(away).masked_scatter(away, outliers)
    return rule_output(tokens, ~dropped, {"second moment": dropped})


# VACO's directional filter on the divergence of a whole response.
#
#     D_i = 1/T_i sum_t abs(rho_t - 1)
#     M_t = 0  if  D_i > delta  and  A_t log(rho_t) > 0,  else 1
#     objective_t = M_t rho_t A_t
#
# D_i estimates twice the mean total variation between pi and mu over the response. Beyond delta a response keeps the
# tokens whose gradient moves pi back towards mu. A tie keeps the token. It is TRM-Avg with DPPO's directional test.
#
# Source: VACO, arXiv 2603.01365, as implemented for language models in open-instruct (`grpo_utils.py`,
# `rho_mask_tv_divergence`, pull request 1681). PAPER: open-instruct has no default for delta, and we have not looked up
# the paper's value for language models; 0.2 is our choice. open-instruct bounds log rho to [-10, 10] and caps the
# weight at 2; here rho is not limited. A divergence is not needed; if passed, it only enters
# the statistics.


def vaco(
    tokens: Tokens,
    *,
    delta: float,
) -> RuleOutput:
    """Mask the tokens that move a response further from mu if its mean abs(rho - 1) exceeds delta; math.inf masks
    nothing.

    Raises:
        ValueError: delta <= 0.
    """
    positive("delta", delta, allow_inf=True)
    log_ratio = tokens.log_ratio.detach()
    distance = row_means(log_ratio.expm1().abs(), tokens.valid)
    masked = (tokens.advantages * log_ratio > 0) & (distance > delta)
    return rule_output(tokens, ~masked, {"mean distance": masked})


# The off-policy sequence mask of DeepSeek-V3.2 on GRPO's clip.
#
#     M_t = 0  if  A_t < 0  and  1/T_i sum_t log(mu(y_t) / pi(y_t)) > delta,  else 1
#     objective_t = M_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)
#
# Only responses with a negative advantage are dropped, and only those that are less likely under pi than under mu. A
# tie keeps the response. A dropped response has objective 0 and stays in the denominators of `aggregate`.
#
# Source: DeepSeek-V3.2, arXiv 2512.02556, Eq. (9); slime `utils/ppo_utils.py` (`compute_opsm_mask`), TRL
# `trainer/grpo_trainer.py` (`get_off_policy_mask`). PAPER: delta and the clips are not disclosed. For delta, slime's
# default is 1e-4; TRL shows 0.5, and Trinity-RFT found 0.05 to 0.2. A divergence is not needed; if passed, it only
# enters the statistics.


def opsm(
    tokens: Tokens,
    *,
    delta: float,
    clip_low: float,
    clip_high: float,
) -> RuleOutput:
    """GRPO's clipped surrogate without off-policy responses of negative advantage; delta = math.inf drops none.

    `keep` is 1 where the response is kept and the unclipped branch is taken; `clipped` counts only tokens of kept
    responses.

    Raises:
        ValueError: delta <= 0, clip_low outside [0, 1], clip_high < 0.
    """
    positive("delta", delta, allow_inf=True)
    check_clips(clip_low, clip_high)
    drift = row_means(-tokens.log_ratio.detach(), tokens.valid)
    dropped = (tokens.advantages < 0) & (drift > delta)
    return clipped_without(tokens, dropped, "mean log-ratio", clip_low, clip_high)
