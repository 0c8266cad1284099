"""CPPO with a soft weight instead of a 0/1 mask. Shapes: [B, T].

    keep_t = g(x_t) where A_t (rho_t - 1) > 0, else 1,     objective = keep_t rho_t A_t
    x_t = max(w_t D_t / delta,  S_t / (delta + delta_b W_{t-1}))

x <= 1 exactly where the hard mask keeps the token. A gate g is admissible if 0 <= g(x) <= min(1, 1/x): then
the weighted divergence g(x) w D never exceeds delta, nor g(x) S the budget, as under the hard mask.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cppo_lab.maths.budget import CAP, QUANTILE, SCALE, effective_delta_b
from cppo_lab.maths.checks import one_of, positive
from cppo_lab.maths.masks import budget_stats, threshold_tests
from cppo_lab.maths.output import RuleOutput, common_stats, tokens
from cppo_lab.maths.truncation import objective_and_stats
from cppo_lab.maths.weights import position_weights, prefix_weight

Gate = Callable[[Tensor], Tensor]


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


GATES: dict[str, Gate] = {"inverse": inverse, "sapo_admissible": sapo_admissible}


def admissible_gate(gate: str | Gate) -> Gate:
    """The gate of this name, or the given function after probing it on x in [0, 10^4].

    Raises:
        ValueError: unknown name, or a gate that leaves [0, min(1, 1/x)] at a probed score, or is NaN there.
    """
    if isinstance(gate, str):
        one_of("gate", gate, GATES)
        return GATES[gate]
    score = torch.cat(
        [torch.linspace(0, 1, 257, dtype=torch.float64), torch.logspace(0, 4, 4097, dtype=torch.float64)]
    )
    value = gate(score)
    bad = ~((value >= 0) & (value <= inverse(score) * (1 + 1e-9)))  # negated, so that NaN is bad
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"gate={getattr(gate, '__name__', gate)!r} is not admissible: g({float(score[first]):.6g}) = "
            f"{float(value[first]):.6g} exceeds [0, min(1, 1/x)]: use min(g(x), 1/x) or one of {list(GATES)}"
        )
    return gate


def cppo_soft(
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
    gate: str | Gate = "inverse",
    delta_b_cap: float = CAP,
    delta_b_quantile: float = QUANTILE,
    delta_b_scale: float = SCALE,
    span: int | None = None,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = None,
) -> RuleOutput:
    """CPPO with the weight g(x_t). Constants as `masks.cppo`, and `gate`, see `admissible_gate`.

    `masked` statistics are sums of the removed weight 1 - g.

    Raises:
        ValueError: as `masks.cppo`, or a gate that is unknown or not admissible.
    """
    positive("delta", delta)
    weigh = admissible_gate(gate)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    d = batch.required_divergence("cppo_soft")
    weights = position_weights(batch.valid, w_min, span, dtype=batch.logp.dtype)
    rate = effective_delta_b(
        d, batch.valid, delta_b, delta_b_mode, delta_b_cap, delta_b_quantile, delta_b_scale
    )
    score = violation_score(d, weights, batch.valid, delta, rate)
    away = batch.moves_away
    keep = torch.where(away, weigh(score).to(score.dtype).clamp(0, 1), 1.0) * batch.valid
    tests = threshold_tests(d, weights, batch.valid, delta, rate)
    removed = 1 - keep
    stats = common_stats(batch, keep) | budget_stats(batch, rate, delta_b)
    stats["masked_by_token"] = (removed * (away & tests.token_fails)).sum()
    stats["masked_by_prefix"] = (removed * (away & tests.prefix_fails & ~tests.token_fails)).sum()
    objective, truncated = objective_and_stats(batch, keep, ratio_cap, log_ratio_clamp)
    fails = {"threshold": away & tests.token_fails, "budget": away & tests.prefix_fails}
    return RuleOutput(objective, keep, stats | truncated, fails)


@torch.no_grad()
def violation_score(
    divergence: Tensor, weights: Tensor, valid: Tensor, delta: float, delta_b: Tensor
) -> Tensor:
    """x_t [B, T]: how far the token or its prefix exceeds its limit; <= 1 where the hard mask keeps it.

    Args:
        divergence, weights: [B, T].
        valid: [B, T] bool.
        delta: token threshold.
        delta_b: [B] budget rate per response; inf means no budget.
    """
    tests = threshold_tests(divergence, weights, valid, delta, delta_b)
    unlimited = torch.isinf(delta_b)[:, None]
    capacity = delta + torch.where(unlimited, 0.0, delta_b[:, None]) * prefix_weight(weights)
    # S_t / capacity = 1 + (S_t - capacity) / capacity, where the numerator is the hard mask's running sum.
    prefix = (1 + (tests.excess + tests.weighted - delta) / capacity).masked_fill(unlimited, 0.0)
    return torch.maximum(tests.weighted / delta, prefix) * valid
