"""Token masks from divergences: DPPO and CPPO with its ablations. Shapes: [B, T].

    M_t = [ A_t (rho_t - 1) <= 0  or  w_t D_t <= c_t ],     objective = M_t rho_t A_t
    DPPO:  w = 1, c_t = delta
    CPPO:  c_t = min(delta, delta + delta_b W_{t-1} - S_{t-1})
           S_t = sum_{j<=t} w_j D_j,   W_t = sum_{j<=t} w_j

A token that moves pi back toward mu is always kept; one that moves it away is kept while its weighted
divergence fits both the token threshold delta and what the prefix has left over. S runs over every token,
kept or masked; c_t may go negative. A tie keeps the token; so does A = 0, which carries no gradient and stays
out of mask statistics.

CPPO on KL or on the Binary TV is `cppo` with another `divergence` and other constants, not a rule of its own.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cppo_lab.maths.budget import effective_delta_b
from cppo_lab.maths.checks import positive, row_counts
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, importance_objective, tokens
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
) -> RuleOutput:
    """DPPO: keep iff A(rho - 1) <= 0 or D_t <= delta.

    Raises:
        ValueError: no divergence, delta <= 0, or arguments as in `output.tokens`.
    """
    positive("delta", delta)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    fails = (batch.required_divergence("dppo") > delta) & batch.moves_away
    return masked(batch, token_fails=fails)


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
    span: int | None = None,
    permutation: Tensor | None = None,
) -> RuleOutput:
    """CPPO: keep iff A(rho - 1) <= 0 or w_t D_t <= c_t, with position weights and prefix budget.

    Args:
        divergence: [B, T] D_t, required.
        delta: token threshold.
        delta_b: prefix-budget rate ("fixed") or its floor ("adaptive"); math.inf switches the budget off.
        w_min: last position weight, in (0, 1]; 1 switches the weighting off.
        delta_b_mode: "fixed" or "adaptive".
        span: fixed T of the weight equation; None takes each response's own length.
        permutation: [B, T] reorders each response's weights, see `weights.shuffled_weights`; None keeps them.

    Raises:
        ValueError: a constant out of range, no divergence, or arguments as in `output.tokens`.
    """
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    weights = _position_weights(batch, w_min, span, permutation)
    return _budgeted(batch, "cppo", weights, delta, delta_b, delta_b_mode)


def cppo_no_position_weight(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
    delta_b: float,
    delta_b_mode: str,
) -> RuleOutput:
    """CPPO with w = 1: the prefix budget alone. Arguments and errors as `cppo`."""
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    weights = batch.valid.to(batch.logp.dtype)
    return _budgeted(batch, "cppo_no_position_weight", weights, delta, delta_b, delta_b_mode)


def cppo_no_prefix_budget(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
    w_min: float,
    span: int | None = None,
) -> RuleOutput:
    """CPPO with delta_b = infinity: the position weight alone, w_t D_t <= delta. Arguments as `cppo`."""
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    weights = _position_weights(batch, w_min, span)
    return _weighted(batch, "cppo_no_prefix_budget", weights, delta)


def cppo_no_prefix_budget_shuffled(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
    w_min: float,
    permutation: Tensor,
    span: int | None = None,
) -> RuleOutput:
    """As `cppo_no_prefix_budget` with each response's weights permuted (see `weights.shuffled_weights`).

    Tells whether the order of the weights matters or only their distribution. The caller draws `permutation`
    [B, T] once per rollout and keeps it across the rollout's minibatches.
    """
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    weights = _position_weights(batch, w_min, span, permutation)
    return _weighted(batch, "cppo_no_prefix_budget_shuffled", weights, delta)


def masked(batch: Tokens, *, token_fails: Tensor, prefix_fails: Tensor | None = None) -> RuleOutput:
    """Drop the tokens that fail (both [B, T] bool, of tokens that move away); objective keep * rho * A."""
    dropped = token_fails if prefix_fails is None else token_fails | prefix_fails
    keep = (batch.valid & ~dropped).to(batch.logp.dtype)
    stats = common_stats(batch, keep) | {"masked_by_token": row_counts(token_fails).sum().to(keep.dtype)}
    if prefix_fails is not None:
        stats["masked_by_prefix"] = row_counts(prefix_fails & ~token_fails).sum().to(keep.dtype)
    return RuleOutput(importance_objective(batch, keep), keep, stats)


def _position_weights(
    batch: Tokens, w_min: float, span: int | None, permutation: Tensor | None = None
) -> Tensor:
    weights = position_weights(batch.valid, w_min, span, dtype=batch.logp.dtype)
    return weights if permutation is None else shuffled_weights(weights, batch.valid, permutation)


def _budgeted(
    batch: Tokens, rule: str, weights: Tensor, delta: float, delta_b: float, delta_b_mode: str
) -> RuleOutput:
    positive("delta", delta)
    divergence = batch.required_divergence(rule)
    rate = effective_delta_b(divergence, batch.valid, delta_b, delta_b_mode)
    tests = threshold_tests(divergence, weights, batch.valid, delta, rate)
    away = batch.moves_away
    output = masked(batch, token_fails=tests.token_fails & away, prefix_fails=tests.prefix_fails & away)
    output.stats.update(budget_stats(batch, rate, delta_b))
    return output


def _weighted(batch: Tokens, rule: str, weights: Tensor, delta: float) -> RuleOutput:
    positive("delta", delta)
    fails = (weights * batch.required_divergence(rule) > delta) & batch.moves_away
    return masked(batch, token_fails=fails)


def budget_stats(batch: Tokens, rate: Tensor, delta_b: float) -> dict[str, Tensor]:
    """Sum of the effective delta_b [B] over non-empty responses; nothing where the budget is off."""
    if math.isinf(delta_b):
        return {}
    return {"delta_b": torch.where(row_counts(batch.valid) > 0, rate, 0.0).sum()}
