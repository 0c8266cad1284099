"""Slow float64 references of the comparison rules, one response at a time. They import nothing of the package.

Each returns, per token, the objective and its derivative in that token's log pi (GSPO and GMPO in the token form:
the response's value with the token's own gradient).
"""

import math


def gspo(
    log_ratio: list[float], advantage: list[float], *, clip_low: float, clip_high: float
) -> tuple[list[float], list[float]]:
    product = 1.0
    for value in log_ratio:
        product *= math.exp(value)
    ratio = product ** (1 / len(log_ratio))
    values, gradients = [], []
    for a in advantage:
        unclipped = ratio * a
        clipped = min(max(ratio, 1 - clip_low), 1 + clip_high) * a
        values.append(min(unclipped, clipped))
        gradients.append(unclipped if unclipped <= clipped else 0.0)
    return values, gradients


def geo_mean(
    log_ratio: list[float], advantage: list[float], *, log_clip_low: float, log_clip_high: float
) -> tuple[list[float], list[float]]:
    low, high = math.exp(-log_clip_low), math.exp(log_clip_high)
    product, own = 1.0, []
    for value, a in zip(log_ratio, advantage, strict=True):
        ratio = math.exp(value)
        bounded = min(max(ratio, low), high)
        # |min(rho A, clip(rho) A)| / |A|, the factor of the paper's product
        chosen = bounded if bounded * a < ratio * a else ratio
        product *= chosen
        own.append(chosen == ratio)
    mean = product ** (1 / len(log_ratio))
    values = [mean * a for a in advantage]
    return values, [value if kept else 0.0 for value, kept in zip(values, own, strict=True)]


def sapo(
    log_ratio: list[float], advantage: list[float], *, tau_positive: float, tau_negative: float
) -> tuple[list[float], list[float]]:
    values, gradients = [], []
    for value, a in zip(log_ratio, advantage, strict=True):
        tau = tau_positive if a > 0 else tau_negative
        ratio = math.exp(value)
        p = 1 / (1 + math.exp(-tau * (ratio - 1)))
        values.append(4 / tau * p * a)
        gradients.append(4 * p * (1 - p) * ratio * a)
    return values, gradients
