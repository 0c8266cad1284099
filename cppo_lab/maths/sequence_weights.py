"""Rules that weight log pi by one number per response. Shapes: [B, T], T_i the length of response i.

    objective_t = stopgrad(f_i) A_t log pi(y_t),   w_i = prod_t rho_t

    Seq-TIS:   f = min(w, ratio_high)
    Seq-MIS:   f = w [ ratio_low <= w <= ratio_high ]
    Geo-Mask:  f = [ ratio_low <= w^(1/T_i) <= ratio_high ]
    VESPO:     f = e^lambda w^k e^(-lambda w),   k and lambda by the sign of A_t

Seq-TIS truncates the response's ratio, and Seq-MIS drops the response instead. Geo-Mask only filters: its bound does
not depend on the length, and kept responses are not reweighted. VESPO is smooth: 1 at w = 1, largest at w = k / lambda.
A tie keeps the response. A dropped response has objective 0 and stays in the denominators of `aggregate`.

Source: the blog "When Speed Kills Stability", richardli.xyz/rl-collapse, by authors of TRM (arXiv 2512.23075); verl
`docs/algo/rollout_corr_math.md` 3.3 with the presets of `trainer/config/algorithm.py`: Seq-TIS 2.0, Seq-MIS 0.5 to 2.0
(inclusive, in log space), Geo-Mask 0.999 to 1.001. verl's code bounds the inverse ratio, its documentation the ratio,
as here; they differ where one bound is not the other's inverse. prime-rl's Seq-MIS (pull request 3384) has the filter
of Geo-Mask and the weight w; it is not implemented here. VESPO, arXiv 2602.10693; TRL `trainer/grpo_trainer.py`
(`get_gamma_weights`): k 2, lambda 3 where A >= 0, else k 3, lambda 2; log rho is clipped to [-20, 20], log w to [log
1e-8, 20]. The rules need no divergence; one that is passed only enters the statistics.
"""

import math

import torch
from torch import Tensor

from cppo_lab.maths.checks import non_negative, positive, ratio_bounds, row_counts
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, tokens

LARGEST_LOG, LEAST_LOG_W = 20.0, math.log(1e-8)  # of VESPO


def seq_tis(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    ratio_high: float,
) -> RuleOutput:
    """Seq-TIS: the response's ratio, truncated at ratio_high, as a constant weight of its policy gradient.

    Raises:
        ValueError: ratio_high < 1, a weight that overflows, or as in `output.tokens`.
    """
    ratio_bounds(0.0, ratio_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    weight = _log_weight(batch).exp()
    keep = batch.valid.to(batch.logp.dtype)
    clipped = batch.active & (weight > ratio_high)
    output = _weighted(batch, weight.clamp_max(ratio_high), keep, {"response ratio": clipped})
    output.stats["clipped"] = row_counts(clipped).sum().to(keep.dtype)
    return output


def seq_mis(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    ratio_low: float,
    ratio_high: float,
) -> RuleOutput:
    """Seq-MIS: the response's ratio as a constant weight; the response is dropped if that is outside the bounds.

    Raises:
        ValueError: bounds that do not enclose 1, a weight that overflows, or as in `output.tokens`.
    """
    ratio_bounds(ratio_low, ratio_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    weight = _log_weight(batch)
    keep = (batch.valid & _within(weight, ratio_low, ratio_high)).to(batch.logp.dtype)
    tests = {"response ratio": keep == 0}
    return _weighted(batch, torch.where(keep > 0, weight, -math.inf).exp(), keep, tests)


def geo_mask(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    ratio_low: float,
    ratio_high: float,
) -> RuleOutput:
    """Geo-Mask: the plain policy gradient of the responses whose geometric-mean ratio is within the bounds.

    Raises:
        ValueError: bounds that do not enclose 1, or as in `output.tokens`.
    """
    ratio_bounds(ratio_low, ratio_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    mean = _log_weight(batch) / row_counts(batch.valid).clamp_min(1)[:, None]
    keep = (batch.valid & _within(mean, ratio_low, ratio_high)).to(batch.logp.dtype)
    return _weighted(batch, keep, keep, {"mean ratio": keep == 0})


def vespo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    k_positive: float,
    lambda_positive: float,
    k_negative: float,
    lambda_negative: float,
) -> RuleOutput:
    """VESPO: a gamma kernel on the response's ratio; `keep` is the kernel clipped to [0, 1], and 1 where A = 0.

    `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: k < 0, lambda <= 0, or as in `output.tokens`.
    """
    non_negative("k_positive", k_positive)
    non_negative("k_negative", k_negative)
    positive("lambda_positive", lambda_positive)
    positive("lambda_negative", lambda_negative)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    held = batch.log_ratio.detach().clamp(-LARGEST_LOG, LARGEST_LOG)
    log_w = held.sum(1, keepdim=True).clamp(LEAST_LOG_W, LARGEST_LOG).expand_as(held)
    negative = batch.advantages < 0
    k = torch.full_like(held, k_positive).masked_fill(negative, k_negative)
    rate = torch.full_like(held, lambda_positive).masked_fill(negative, lambda_negative)
    kernel = (k * log_w - rate * log_w.expm1()).exp()
    keep = torch.where(batch.active, kernel.clamp_max(1), 1.0) * batch.valid
    return _weighted(batch, kernel, keep, {"response ratio": keep < 1})


def _log_weight(batch: Tokens) -> Tensor:
    """log w at every token, [B, T]; 0 for an empty response."""
    return batch.log_ratio.detach().sum(1, keepdim=True).expand_as(batch.log_ratio)


def _within(log_ratio: Tensor, low: float, high: float) -> Tensor:
    """Whether the ratio is within its bounds, compared in log space, since a ratio may overflow."""
    return (log_ratio >= (math.log(low) if low else -math.inf)) & (log_ratio <= math.log(high))


def _weighted(batch: Tokens, weight: Tensor, keep: Tensor, tests: dict[str, Tensor]) -> RuleOutput:
    """stopgrad(weight) A log pi. Raises ValueError if the weight of a token with A != 0 overflows."""
    coefficient = torch.where(batch.active, weight, 0.0) * batch.advantages
    if bool((bad := ~coefficient.isfinite()).any()):
        row = int(bad.nonzero()[0, 0])
        total = float(batch.log_ratio.detach()[row].sum())
        raise ValueError(
            f"the weight of response {row} overflows (its log-ratios add up to {total:g}): see logp and rollout_logp "
            "there, or pass constants that bound it"
        )
    return RuleOutput(coefficient * batch.logp, keep, common_stats(batch, keep), tests)
