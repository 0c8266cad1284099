"""Slow references in plain Python, one token at a time. They import nothing of the package."""

import math

from tests.oracles.authors import quantile


def cppo_response(
    log_ratio: list[float],
    advantage: list[float],
    divergence: list[float],
    *,
    delta: float,
    delta_b: float,
    w_min: float,
    adaptive: bool,
) -> tuple[list[int], int, int]:
    """CPPO on one response: the mask, tokens the token test masks, tokens the prefix test alone masks."""
    length = len(divergence)
    if adaptive and length:
        delta_b = min(max(quantile(divergence, 0.9), delta_b), 2 * delta_b)
    mask, by_token, by_prefix = [], 0, 0
    spent = allowed = 0.0
    for t in range(length):
        weight = 1.0 if length == 1 else 1 - (1 - w_min) / (length - 1) * t
        weighted = weight * divergence[t]
        limit = min(delta, delta + delta_b * allowed - spent)
        keep = advantage[t] * (math.exp(log_ratio[t]) - 1) <= 0 or weighted <= limit
        mask.append(int(keep))
        by_token += not keep and weighted > delta
        by_prefix += not keep and weighted <= delta
        spent += weighted
        allowed += weight
    return mask, by_token, by_prefix


def reversed_weights_response(
    log_ratio: list[float],
    advantage: list[float],
    divergence: list[float],
    *,
    delta: float,
    w_min: float,
    span: int | None = None,
) -> list[int]:
    """The mask of position weights alone, the last token's first, on one response; `span`: T of the weights."""
    length = len(divergence)
    last = (span or length) - 1
    weights = [1 - (1 - w_min) * t / last if last else 1.0 for t in range(length)]
    mask = []
    for ratio, a, d in zip(log_ratio, advantage, divergence, strict=True):
        weight = weights.pop()
        mask.append(int(a * (math.exp(ratio) - 1) <= 0 or weight * d <= delta))
    return mask
