"""A rule's decision on each token, and the test behind it. Shapes: [B, T] in, [N] out: the valid tokens row by row."""

from typing import NamedTuple

import torch
from torch import Tensor

from cppo_lab.maths.budget import CAP, QUANTILE, SCALE, effective_delta_b
from cppo_lab.maths.output import RuleOutput
from cppo_lab.maths.weights import position_weights, prefix_excess, shuffled_weights

OTHER_TEST = "rule"  # the reason if a rule does not name its tests


class Decisions(NamedTuple):
    """keep [N]: the mask or weight. reason [N] uint8: 0 if no test masked or reduced the token, else 1 + the index in
    `tests` of the first that did.
    """

    tests: tuple[str, ...]
    keep: Tensor
    reason: Tensor


@torch.no_grad()
def decisions(output: RuleOutput, valid: Tensor) -> Decisions:
    """The decisions in a rule's output on the tokens of `valid` [B, T] bool."""
    keep = output.keep[valid].detach()
    tests = {name: failed[valid] for name, failed in output.tests.items()}
    if not tests:
        tests = {OTHER_TEST: keep < 1}
    reason = torch.zeros(len(keep), dtype=torch.uint8, device=keep.device)
    for number, failed in reversed(list(enumerate(tests.values(), 1))):
        reason[failed] = number
    return Decisions(tuple(tests), keep, reason)


class BudgetTerms(NamedTuple):
    """What CPPO's tests compare at each token, [B, T], 0 at padding: w_t, S_{t-1} = sum_{j<t} w_j D_j, and the limit
    c_t = min(delta, delta + delta_b W_{t-1} - S_{t-1}) of w_t D_t.
    """

    weight: Tensor
    prefix_sum: Tensor
    limit: Tensor


@torch.no_grad()
def budget_terms(
    divergence: Tensor,
    valid: Tensor,
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
) -> BudgetTerms:
    """The terms of `masks.cppo` with the same constants, for `divergence` [B, T] of the tokens `valid` [B, T].

    Raises ValueError for a constant out of range.
    """
    weight = position_weights(valid, w_min, span, reverse=reverse, dtype=divergence.dtype)
    if permutation is not None:
        weight = shuffled_weights(weight, valid, permutation)
    rate = effective_delta_b(
        divergence, valid, delta_b, delta_b_mode, delta_b_cap, delta_b_quantile, delta_b_scale
    )
    excess = prefix_excess(weight, divergence, valid, rate)
    nothing_allowed = torch.zeros_like(rate)
    prefix_sum = prefix_excess(weight, divergence, valid, nothing_allowed)
    limit = (delta - excess).clamp_max(delta).masked_fill(~valid, 0.0)
    return BudgetTerms(weight, prefix_sum, limit)
