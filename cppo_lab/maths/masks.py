"""Masks of tokens: DPPO, PDM, CPPO and its soft form; IcePop, IPO and KPop. Shapes: [B, T].

The objective of rules that keep or drop tokens, and its truncated form:

    objective_t = keep_t rho_t A_t                                                               the paper's
    objective_t = keep_t stopgrad(min(exp(clip(log rho_t, -L, L)), C)) A_t log pi(y_t)           truncated

C is `ratio_cap`, L is `log_ratio_clamp`; None and math.inf switch either off, and with both off the first form holds.
The gradients in log pi(y_t) are keep rho A and keep min(rho, C) A. They are equal if no token is beyond the limits,
although the values of the two forms differ.

Source of the truncated form: verl's DPPO (`dppo_tv`) and the CPPO authors' loss (verl's pull request 6731), both with
C = L = 20; DPPO, arXiv 2602.04879, section 5.4.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cppo_lab.errors import NotFinite
from cppo_lab.maths.tokens import (
    RuleOutput,
    Tokens,
    non_negative,
    one_of,
    positive,
    ratio_bounds,
    row_counts,
    rule_output,
    weight_of,
)
from cppo_lab.maths.weights import (
    CAP,
    QUANTILE,
    SCALE,
    effective_delta_b,
    exclusive_sum,
    own_order,
    position_weights,
    prefix_excess,
)


def truncated(
    tokens: Tokens,
    keep: Tensor,
    tests: Mapping[str, Tensor],
    ratio_cap: float | None,
    log_ratio_clamp: float | None,
) -> RuleOutput:
    """The output of a rule with this `keep`. With a limit, `clipped` counts the kept tokens with A != 0 beyond it.

    Raises:
        ValueError: ratio_cap < 1, log_ratio_clamp <= 0, or as in `importance_objective`.
    """
    cap, clamp = (math.inf if limit is None else limit for limit in (ratio_cap, log_ratio_clamp))
    if not cap >= 1:
        raise ValueError(f"ratio_cap={ratio_cap!r} must be at least 1: pass math.inf to switch it off")
    positive("log_ratio_clamp", clamp, allow_inf=True)
    if math.isinf(cap) and math.isinf(clamp):
        return rule_output(tokens, keep, tests)
    keep = weight_of(tokens, keep)
    log_ratio = tokens.log_ratio.detach()
    # The cap as a limit of the log-ratio, so that no exponential overflows.
    limited = log_ratio.clamp(-clamp, min(clamp, math.log(cap)))
    ratio = torch.where(keep > 0, limited, 0.0).exp()
    if tokens.overflows and not bool(ratio.isfinite().all()):
        raise NotFinite(
            f"the probability ratio of a kept token overflows: lower log_ratio_clamp={log_ratio_clamp!r} or set "
            "ratio_cap"
        )
    beyond = (limited != log_ratio) & tokens.active & (keep > 0)
    return rule_output(tokens, keep, tests, keep * ratio * tokens.advantages * tokens.logp, clipped=beyond)


# Token masks from divergences: DPPO and CPPO.
#
#     M_t = [ A_t (rho_t - 1) <= 0  or  w_t D_t <= c_t ],     objective = M_t rho_t A_t
#     DPPO:  w = 1, c_t = delta
#     CPPO:  c_t = min(delta, delta + delta_b W_{t-1} - S_{t-1})
#            S_t = sum_{j<=t} w_j D_j,   W_t = sum_{j<=t} w_j
#
# A token that moves pi back toward mu is always kept; a token that moves pi away is kept if its weighted divergence
# is within both the token threshold delta and what the prefix leaves over. S runs over every token, kept or masked; c_t
# may go negative. A tie keeps the token. A token with A = 0 is also kept; it has no gradient and is excluded from mask
# statistics.
#
# CPPO on KL or on the Binary TV is `cppo` with another `divergence`. Its ablations are `cppo` with a constant fixed
# (cppo_lab/rules.py): w_min = 1 leaves the prefix budget alone, delta_b = infinity the position weight alone.
#
# Source: CPPO, arXiv 2606.10968; DPPO, arXiv 2602.04879.


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
    tokens: Tokens,
    *,
    delta: float,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """DPPO: keep iff A(rho - 1) <= 0 or D_t <= delta. `ratio_cap` and `log_ratio_clamp`: see above.

    Raises:
        ValueError: no divergence, delta <= 0, or limits below 1 and 0.
    """
    positive("delta", delta)
    fails = (tokens.required_divergence > delta) & tokens.moves_away
    return masked(tokens, token_fails=fails, ratio_cap=ratio_cap, log_ratio_clamp=log_ratio_clamp)


# DPPO's mask with the direction of the divergence itself (predictive divergence mask, PDM).
#
#     M_t = [ A_t dD_t <= 0  or  D_t <= delta ],     objective = M_t rho_t A_t
#
# dD_t is the change of D_t, to first order, if this token's gradient alone moves the softmax at its state
# (`divergence.drift`). DPPO has log rho_t in its place, the part of the sampled token: probabilities that the softmax
# takes from all others may change D the other way. With the divergence of the sampled token and the rest, the two are
# equal.
#
# Source: arXiv 2607.10848, read in notes of others: the mask, its forward KL (the local term pi_y - mu_y and the global
# term sum pi (mu - pi)), and the tail as one cell. The same for TV is our derivation; the tail as equal tokens, the
# paper's other estimate, is not here. There K = 20 and delta = 0.15, with KL.


def pdm(
    tokens: Tokens,
    *,
    delta: float,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """PDM: keep iff A dD <= 0 or D_t <= delta. `ratio_cap` and `log_ratio_clamp`: see above.

    Raises:
        ValueError: no divergence, no drift, delta <= 0, or limits below 1 and 0.
    """
    positive("delta", delta)
    assert tokens.drift is not None  # the record has checked it
    fails = (tokens.required_divergence > delta) & (tokens.advantages * tokens.drift > 0)
    return masked(tokens, token_fails=fails, ratio_cap=ratio_cap, log_ratio_clamp=log_ratio_clamp)


def cppo(
    tokens: Tokens,
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
    random_mask: bool = False,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """CPPO: keep iff A(rho - 1) <= 0 or w_t D_t <= c_t, with position weights and prefix budget.

    Needs the divergence; `tokens.permutation` reorders each response's weights, or (`random_mask`) its mask.

    Args:
        delta: token threshold.
        delta_b: prefix-budget rate ("fixed") or its floor ("adaptive"); math.inf switches the budget off.
        w_min: last position weight, in (0, 1]; 1 switches the weighting off.
        delta_b_mode: "fixed" or "adaptive".
        delta_b_cap, delta_b_quantile, delta_b_scale: of the adaptive rate, see `effective_delta_b`.
        span: fixed T of the weight equation; None takes each response's own length.
        reverse: gives each response its weights in reverse order, the lightest first.
        random_mask: a control: drops as many of each response's tokens that move away, in the order of
        `tokens.permutation`.
        ratio_cap, log_ratio_clamp: limits of the ratio in the objective, see above; they do not affect the
        masks.

    Raises:
        ValueError: a constant out of range, no divergence, no permutation for a random mask.
    """
    order = tokens.permutation
    if random_mask and order is None:
        raise ValueError("random_mask needs tokens.permutation")
    weights = position_weights(
        tokens.valid,
        w_min,
        span,
        reverse=reverse,
        permutation=None if random_mask else order,
        dtype=tokens.logp.dtype,
    )
    positive("delta", delta)
    d = tokens.required_divergence
    away = tokens.moves_away
    rate = effective_delta_b(
        d, tokens.valid, delta_b, delta_b_mode, delta_b_cap, delta_b_quantile, delta_b_scale
    )
    tests, limited = threshold_tests(d, weights, tokens.valid, delta, rate), delta_b < math.inf
    token_fails, prefix_fails = tests.token_fails & away, tests.prefix_fails & away
    if random_mask and order is not None:
        drawn = _first(away, own_order(tokens.valid, order), (token_fails | prefix_fails).sum(1))
        output = truncated(tokens, ~drawn, {"random place": drawn}, ratio_cap, log_ratio_clamp)
    else:
        output = masked(
            tokens,
            token_fails=token_fails,
            prefix_fails=prefix_fails if limited else None,  # without a budget, no statistics of it
            ratio_cap=ratio_cap,
            log_ratio_clamp=log_ratio_clamp,
        )
    if limited:
        output.stats["delta_b"] = budget_sum(tokens, rate)
    return output


def _first(among: Tensor, order: Tensor, count: Tensor) -> Tensor:
    """[B, T] bool: the first `count` [B] tokens of each response `among` those marked, in a random `order` [B, T]."""
    drawn = among.gather(1, order)
    return torch.zeros_like(among).scatter(1, order, drawn & (drawn.cumsum(1) <= count[:, None]))


def masked(
    tokens: Tokens,
    *,
    token_fails: Tensor,
    prefix_fails: Tensor | None = None,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """Drop the tokens that fail (both [B, T] bool, of tokens that move away); objective keep * rho * A, or its
    truncated form.
    """
    tests, dropped, counts = {"threshold": token_fails}, token_fails, {"masked_by_token": token_fails}
    if prefix_fails is not None:
        tests["budget"], dropped = prefix_fails, token_fails | prefix_fails
        counts["masked_by_prefix"] = prefix_fails & ~token_fails
    output = truncated(tokens, ~dropped, tests, ratio_cap, log_ratio_clamp)
    output.stats.update((name, part.count_nonzero().to(output.keep.dtype)) for name, part in counts.items())
    return output


def budget_sum(tokens: Tokens, rate: Tensor) -> Tensor:
    """Sum of the effective delta_b [B] over non-empty responses."""
    return torch.where(row_counts(tokens.valid) > 0, rate, 0.0).sum()


# CPPO with a soft weight instead of a 0/1 mask.
#
#     keep_t = g(x_t) where A_t (rho_t - 1) > 0, else 1,     objective = keep_t rho_t A_t
#     x_t = max(w_t D_t / delta,  S_t / (delta + delta_b W_{t-1}))
#
# x <= 1 exactly where the hard mask keeps the token. A gate g is admissible if 0 <= g(x) <= min(1, 1/x): then
# the weighted divergence g(x) w D never exceeds delta, nor g(x) S the budget, as under the hard mask.


def inverse(score: Tensor) -> Tensor:
    """g(x) = min(1, 1/x): the largest admissible gate."""
    return 1 / score.clamp_min(1)


def sapo(score: Tensor) -> Tensor:
    """SAPO's gate: 4 s (1 - s), s = sigmoid(x - 1), where x > 1. Not admissible: x g(x) reaches 1.575."""
    sigmoid = torch.sigmoid(score.clamp_min(1) - 1)
    return 4 * sigmoid * (1 - sigmoid)


def sapo_admissible(score: Tensor) -> Tensor:
    """min(SAPO's gate, 1/x): the admissible part of SAPO's gate."""
    return torch.minimum(sapo(score), inverse(score))


GATES: dict[str, Callable[[Tensor], Tensor]] = {"inverse": inverse, "sapo_admissible": sapo_admissible}


def cppo_soft(
    tokens: Tokens,
    *,
    delta: float,
    delta_b: float,
    w_min: float,
    delta_b_mode: str,
    gate: str = "inverse",
    delta_b_cap: float = CAP,
    delta_b_quantile: float = QUANTILE,
    delta_b_scale: float = SCALE,
    span: int | None = None,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """CPPO with the weight g(x_t). Constants as `masks.cppo`, and `gate`, a name of GATES.

    `masked` statistics are sums of the removed weight 1 - g.

    Raises:
        ValueError: as `masks.cppo`, or an unknown gate.
    """
    positive("delta", delta)
    one_of("gate", gate, GATES)
    d = tokens.required_divergence
    weights = position_weights(tokens.valid, w_min, span, dtype=tokens.logp.dtype)
    rate = effective_delta_b(
        d, tokens.valid, delta_b, delta_b_mode, delta_b_cap, delta_b_quantile, delta_b_scale
    )
    tests = threshold_tests(d, weights, tokens.valid, delta, rate)
    score = violation_score(tests, weights, tokens.valid, delta, rate)
    away = tokens.moves_away
    keep = torch.where(away, GATES[gate](score), 1.0) * tokens.valid
    by_token, by_prefix = away & tests.token_fails, away & tests.prefix_fails
    output = truncated(tokens, keep, {"threshold": by_token, "budget": by_prefix}, ratio_cap, log_ratio_clamp)
    removed = 1 - keep
    if delta_b != math.inf:
        output.stats["delta_b"] = budget_sum(tokens, rate)
    output.stats["masked_by_token"] = (removed * by_token).sum()
    output.stats["masked_by_prefix"] = (removed * (by_prefix & ~by_token)).sum()
    return output


@torch.no_grad()
def violation_score(
    tests: ThresholdTests, weights: Tensor, valid: Tensor, delta: float, delta_b: Tensor
) -> Tensor:
    """x_t [B, T]: how far the token or its prefix exceeds its limit; <= 1 where the hard mask keeps it.

    Args:
        tests: those of `threshold_tests` with the same arguments.
        weights: [B, T].
        valid: [B, T] bool.
        delta: token threshold.
        delta_b: [B] budget rate per response; inf means no budget.
    """
    unlimited = torch.isinf(delta_b)[:, None]
    capacity = delta + torch.where(unlimited, 0.0, delta_b[:, None]) * exclusive_sum(weights)
    # S_t / capacity = 1 + (S_t - capacity) / capacity, where the numerator is the hard mask's running sum.
    prefix = (1 + (tests.excess + tests.weighted - delta) / capacity).masked_fill(unlimited, 0.0)
    return torch.maximum(tests.weighted / delta, prefix) * valid


# Token masks that ignore the sign of A: IcePop, IPO and KPop.
#
#     IcePop:  M_t = [ ratio_low <= rho_t <= ratio_high ]
#     IPO:     M_t = [ |pi(y_t) - mu(y_t)| <= delta ]
#     KPop:    M_t = [ KL_B(mu, pi) <= delta  and  KL_B(pi, mu) <= delta ]
#              KL_B(p, q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))
#
#     objective_t = M_t rho_t A_t   (IPO: - kl_tau (log rho_t)^2, at every token, masked or not, whatever A is)
#
# DPPO and CPPO keep every token that moves back toward mu; these rules drop it like any other token beyond the bound.
# The probabilities are those of the sampled token, so a divergence is not needed, and only enters the statistics.
# A tie keeps the token. Masked tokens stay in the denominators of `aggregate`.
#
# Source: IcePop, arXiv 2510.18855, in the form of prime-rl's `icepop` loss (with bounds 0.2 and 5) and of verl's
# `rollout_corr_helper.py` with bounds "0.5_5.0"; those of rule/icepop.yaml are 0.5 and 5. There rho is a constant
# factor of log pi; the gradient, M rho A, is the same. slime's IcePop (`backends/megatron_utils/loss.py`) is
# another loss: PPO's clipped loss, weighted by the ratio of the trainer's old policy to the rollout policy where that
# ratio is within the bounds. IPO, prime-rl `trainer/rl/loss.py` (its penalty: Kimi K2.5, arXiv 2602.02276). KPop, the
# blog ringtech.notion.site/kpop (AReaL `utils/functional/functional.py`, prime-rl pull request 3283, which adds IPO's
# penalty; not here).


# Probabilities are clipped to [FLOOR, 1 - FLOOR] before KPop's logarithms, as in prime-rl: float32 cannot represent 1 -
# 1e-8.
FLOOR = 1e-6


def icepop(
    tokens: Tokens,
    *,
    ratio_low: float,
    ratio_high: float,
) -> RuleOutput:
    """IcePop: keep iff ratio_low <= rho <= ratio_high. 0 and math.inf leave a side open.

    Raises:
        ValueError: bounds that do not enclose 1.
    """
    ratio_bounds(ratio_low, ratio_high)
    ratio = tokens.log_ratio.detach().exp()
    within = (ratio >= ratio_low) & (ratio <= ratio_high)
    return rule_output(tokens, within, {"ratio bounds": ~within})


def ipo(
    tokens: Tokens,
    *,
    delta: float,
    kl_tau: float,
) -> RuleOutput:
    """IPO: keep iff |pi - mu| <= delta; minus kl_tau (log rho)^2 at every token, which also pulls masked ones back.

    Raises:
        ValueError: delta <= 0, kl_tau < 0.
    """
    positive("delta", delta)
    non_negative("kl_tau", kl_tau)
    within = (tokens.logp.detach().exp() - tokens.rollout_logp.exp()).abs() <= delta
    output = rule_output(tokens, within, {"probability shift": ~within})
    return output._replace(objective=output.objective - kl_tau * tokens.log_ratio.square())


def kpop(
    tokens: Tokens,
    *,
    delta: float,
) -> RuleOutput:
    """KPop: keep iff the binary KL is at most delta in both directions.

    Raises:
        ValueError: delta <= 0.
    """
    positive("delta", delta)
    forth = back = torch.zeros_like(tokens.logp.detach())
    for pi, mu in zip(_cells(tokens.logp.detach()), _cells(tokens.rollout_logp), strict=True):
        log_ratio = pi.log() - mu.log()
        forth, back = forth + pi * log_ratio, back - mu * log_ratio
    within = torch.maximum(forth, back) <= delta
    return rule_output(tokens, within, {"binary KL": ~within})


def _cells(logp: Tensor) -> tuple[Tensor, Tensor]:
    """p and 1 - p of log p [B, T], each at least FLOOR; -expm1 keeps the digits of 1 - p near p = 1."""
    return logp.exp().clamp(FLOOR, 1 - FLOOR), torch.expm1(logp).neg_().clamp(FLOOR, 1 - FLOOR)


# A rule's decision on each token, and the test behind it. Shapes: [B, T] in, [N] out: the valid tokens row by row.

OTHER_TEST = "rule"  # the reason if a rule does not name its tests


class TokenDecisions(NamedTuple):
    """keep [N]: the mask or weight. reason [N] uint8: 0 if no test masked or reduced the token, else 1 + the index in
    `tests` of the first that did.
    """

    tests: tuple[str, ...]
    keep: Tensor
    reason: Tensor


@torch.no_grad()
def decisions(output: RuleOutput, valid: Tensor) -> TokenDecisions:
    """The decisions in a rule's output on the tokens of `valid` [B, T] bool."""
    keep = output.keep[valid].detach()
    tests = {name: failed[valid] for name, failed in output.tests.items()}
    if not tests:
        tests = {OTHER_TEST: keep < 1}
    reason = torch.zeros(len(keep), dtype=torch.uint8, device=keep.device)
    for number, failed in reversed(list(enumerate(tests.values(), 1))):
        reason[failed] = number
    return TokenDecisions(tuple(tests), keep, reason)


class Limits(NamedTuple):
    """The position weights [B, T] and budget rates [B] of a rule, and CPPO's tests with them."""

    weights: Tensor
    rate: Tensor
    tests: ThresholdTests


@torch.no_grad()
def limits_of(
    constants: Mapping[str, Any], divergence: Tensor, valid: Tensor, permutation: Tensor | None = None
) -> Limits:
    """The limits of `cppo`; of `constants` only delta is required."""
    weights = position_weights(
        valid,
        constants.get("w_min", 1.0),
        constants.get("span"),
        reverse=constants.get("reverse", False),
        permutation=None if constants.get("random_mask") else permutation,
        dtype=divergence.dtype,
    )
    names = ("mode", "cap", "quantile", "scale")
    adaptive = {name: constants[f"delta_b_{name}"] for name in names if f"delta_b_{name}" in constants}
    rate = effective_delta_b(divergence, valid, constants.get("delta_b", math.inf), **adaptive)
    return Limits(weights, rate, threshold_tests(divergence, weights, valid, constants["delta"], rate))


class BudgetTerms(NamedTuple):
    """What CPPO's tests compare at each token, [B, T], 0 at padding: w_t, S_{t-1} = sum_{j<t} w_j D_j, and the limit
    c_t = min(delta, delta + delta_b W_{t-1} - S_{t-1}) of w_t D_t.
    """

    weight: Tensor
    prefix_sum: Tensor
    limit: Tensor


def budget_terms(tokens: Tokens, constants: Mapping[str, Any]) -> BudgetTerms:
    """The terms of `cppo` with these constants. Raises ValueError if any is out of range."""
    divergence, valid, delta = tokens.required_divergence, tokens.valid, constants["delta"]
    weights, rate, tests = limits_of(constants, divergence, valid, tokens.permutation)
    prefix_sum = prefix_excess(weights, divergence, valid, torch.zeros_like(rate))
    limit = (delta - tests.excess).clamp_max(delta).masked_fill(~valid, 0.0)
    return BudgetTerms(weights, prefix_sum, limit)
