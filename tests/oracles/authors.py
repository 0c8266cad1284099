"""The loss of the CPPO authors' released code, one token at a time in plain floats, from its equations.

D_t = abs(pi - mu) of the sampled token; T is the width of the padded batch, t from 1:

    w_t     = (w_min + (1 - w_min) (T - t) / max(T - 1, 1))
    delta_b = clip(scale quantile(D, q), floor, cap floor)
    keep    = A (rho - 1) <= 0  or  w_t D_t <= min(delta, delta + delta_b W_{t-1} - S_{t-1})
    rho     = exp(clip(log pi - log mu, -20, 20))
    loss    = - sum_i sum_t keep A stopgrad(min(rho, 20)) log pi / (T B'),   B' responses with a token

Imports nothing of the package.
"""

import math
from typing import NamedTuple


class AuthorsLoss(NamedTuple):
    """The loss, its derivative in each log pi, and the mask; both [response][token]."""

    loss: float
    gradient: list[list[float]]
    mask: list[list[int]]


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between order statistics at position q (n - 1)."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def authors_loss(
    logp: list[list[float]],
    rollout_logp: list[list[float]],
    advantages: list[float],
    *,
    width: int,
    delta: float,
    delta_b: float,
    w_min: float,
    cap: float = 5.0,
    q: float = 0.9,
    scale: float = 1.0,
    ratio_cap: float = 20.0,
    clamp: float = 20.0,
    adaptive: bool = True,
) -> AuthorsLoss:
    """Rows are responses of their own lengths; `width` is what they are padded to."""
    rows = sum(1 for row in logp if row)
    total, gradient, mask = 0.0, [], []
    for now, then, advantage in zip(logp, rollout_logp, advantages, strict=True):
        gaps = [abs(math.exp(a) - math.exp(b)) for a, b in zip(now, then, strict=True)]
        rate = delta_b
        if adaptive and gaps:
            rate = min(max(scale * quantile(gaps, q), delta_b), cap * delta_b)
        spent = allowed = 0.0
        gradient.append([])
        mask.append([])
        for t, gap in enumerate(gaps, start=1):
            weight = w_min + (1 - w_min) * (width - t) / max(width - 1, 1)
            ratio = math.exp(min(max(now[t - 1] - then[t - 1], -clamp), clamp))
            limit = min(delta, delta + rate * allowed - spent)
            keep = advantage * (ratio - 1) <= 0 or weight * gap <= limit
            factor = -keep * advantage * min(ratio, ratio_cap) / (width * rows)
            total += factor * now[t - 1]
            gradient[-1].append(factor)
            mask[-1].append(int(keep))
            spent += weight * gap
            allowed += weight
    return AuthorsLoss(total, gradient, mask)
