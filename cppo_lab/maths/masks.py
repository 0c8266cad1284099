"""Token masks from divergences: DPPO and CPPO. Shapes: [B, T].

    M_t = [ A_t (rho_t - 1) <= 0  or  w_t D_t <= c_t ],     objective = M_t rho_t A_t
    DPPO:  w = 1, c_t = delta
    CPPO:  c_t = min(delta, delta + delta_b W_{t-1} - S_{t-1})
           S_t = sum_{j<=t} w_j D_j,   W_t = sum_{j<=t} w_j

A token that moves pi back toward mu is always kept; one that moves it away is kept if its weighted divergence is within
both the token threshold delta and what the prefix leaves over. S runs over every token, kept or masked; c_t may go
negative. A tie keeps the token. A token with A = 0 is also kept; it has no gradient and is excluded from mask
statistics.

CPPO on KL or on the Binary TV is `cppo` with another `divergence`. Its ablations are `cppo` with a constant fixed
(cppo_lab/rules/built_in.py): w_min = 1 leaves the prefix budget alone, delta_b = infinity the position weight alone.

Source: CPPO, arXiv 2606.10968; DPPO, arXiv 2602.04879.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from cppo_lab.maths.budget import CAP, QUANTILE, SCALE, effective_delta_b
from cppo_lab.maths.checks import positive, row_counts
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, tokens
from cppo_lab.maths.truncation import objective_and_stats
from cppo_lab.maths.weights import position_weights, prefix_excess, shuffled_weights


class ThresholdTests(NamedTuple):
    """CPPO's two tests at every token, [B, T]: w_t D_t, the prefix excess, and which of the tests fail."""

    weighted: Tensor
    excess: Tensor
    token_fails: Tensor
    prefix_fails: Tensor


def threshold_tests(
    divergence: Tensor, weights: Tensor, valid: Tensor, delta: float, delta_b: Tensor
) -> ThresholdTests:
    """Compare w_t D_t with delta, and with delta minus what the prefix overspent. `delta_b` is [B]."""
    weighted = weights * divergence
    excess = prefix_excess(weights, divergence, valid, delta_b)
    return ThresholdTests(weighted, excess, (weighted > delta) & valid, (weighted > delta - excess) & valid)


def dppo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """DPPO: keep iff A(rho - 1) <= 0 or D_t <= delta. `ratio_cap` and `log_ratio_clamp`: see `truncation`.

    Raises:
        ValueError: no divergence, delta <= 0, or arguments as in `output.tokens` and `truncation`.
    """
    positive("delta", delta)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    fails = (batch.required_divergence("dppo") > delta) & batch.moves_away
    return masked(batch, token_fails=fails, ratio_cap=ratio_cap, log_ratio_clamp=log_ratio_clamp)


def cppo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
    delta_b: float,
    w_min: float,
    delta_b_mode: str,
    delta_b_cap: float = CAP,
    delta_b_quantile: float = QUANTILE,
    delta_b_scale: float = SCALE,
    span: int | None = None,
    reverse: bool = False,
    permutation: Tensor | None = None,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """CPPO: keep iff A(rho - 1) <= 0 or w_t D_t <= c_t, with position weights and prefix budget.

    Args:
        divergence: [B, T] D_t, required.
        delta: token threshold.
        delta_b: prefix-budget rate ("fixed") or its floor ("adaptive"); math.inf switches the budget off.
        w_min: last position weight, in (0, 1]; 1 switches the weighting off.
        delta_b_mode: "fixed" or "adaptive".
        delta_b_cap, delta_b_quantile, delta_b_scale: of the adaptive rate, see `budget`.
        span: fixed T of the weight equation; None takes each response's own length.
        reverse: gives each response its weights in reverse order, the lightest first.
        permutation: [B, T] reorders each response's weights, see `weights.shuffled_weights`; None keeps them.
        ratio_cap, log_ratio_clamp: limits of the ratio in the objective, see `truncation`; they do not affect the
        masks.

    Raises:
        ValueError: a constant out of range, no divergence, or arguments as in `output.tokens`.
    """
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    weights = position_weights(batch.valid, w_min, span, reverse=reverse, dtype=batch.logp.dtype)
    if permutation is not None:
        weights = shuffled_weights(weights, batch.valid, permutation)
    positive("delta", delta)
    d = batch.required_divergence("cppo")
    rate = effective_delta_b(
        d, batch.valid, delta_b, delta_b_mode, delta_b_cap, delta_b_quantile, delta_b_scale
    )
    away = batch.moves_away
    finish = functools.partial(masked, batch, ratio_cap=ratio_cap, log_ratio_clamp=log_ratio_clamp)
    if math.isinf(delta_b):  # no prefix test, and no statistics of it
        return finish(token_fails=(weights * d > delta) & away)
    tests = threshold_tests(d, weights, batch.valid, delta, rate)
    output = finish(token_fails=tests.token_fails & away, prefix_fails=tests.prefix_fails & away)
    output.stats.update(budget_stats(batch, rate, delta_b))
    return output


def masked(
    batch: Tokens,
    *,
    token_fails: Tensor,
    prefix_fails: Tensor | None = None,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """Drop the tokens that fail (both [B, T] bool, of tokens that move away); objective keep * rho * A, or its
    truncated form.
    """
    dropped = token_fails if prefix_fails is None else token_fails | prefix_fails
    keep = (batch.valid & ~dropped).to(batch.logp.dtype)
    stats = common_stats(batch, keep) | {"masked_by_token": row_counts(token_fails).sum().to(keep.dtype)}
    if prefix_fails is not None:
        stats["masked_by_prefix"] = row_counts(prefix_fails & ~token_fails).sum().to(keep.dtype)
    objective, truncated = objective_and_stats(batch, keep, ratio_cap, log_ratio_clamp)
    tests = {"threshold": token_fails} | ({} if prefix_fails is None else {"budget": prefix_fails})
    return RuleOutput(objective, keep, stats | truncated, tests)


def budget_stats(batch: Tokens, rate: Tensor, delta_b: float) -> dict[str, Tensor]:
    """Sum of the effective delta_b [B] over non-empty responses; empty if the budget is off."""
    if math.isinf(delta_b):
        return {}
    return {"delta_b": torch.where(row_counts(batch.valid) > 0, rate, 0.0).sum()}
