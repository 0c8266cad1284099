"""Slow float64 references of the comparison rules, one token at a time. They import nothing of the package.

Each takes a response as three lists (log pi, log mu, A), `estr` with the entropy of mu as a fourth, `m2po` alone a
whole minibatch of them, and returns for every token the objective, its derivative in that token's log pi, and whether
the rule keeps the token (or its weight in [0, 1]). GSPO and GMPO are in the token form: the response's value with the
token's own gradient.
"""

import math
from collections.abc import Callable

Response = tuple[list[float], ...]
Token = tuple[float, float, float]


def by_token(rule: Callable[..., Token]) -> Callable[..., list[Token]]:
    """A rule of one token, (log pi, log mu, A), on each of a response."""
    return lambda response, **constants: [rule(*token, **constants) for token in zip(*response, strict=True)]


def masked(keep: bool, lp: float, mu: float, a: float) -> Token:
    value = math.exp(lp - mu) * a if keep else 0.0
    return value, value, float(keep)


def product(response: Response) -> float:
    return math.prod(math.exp(lp - mu) for lp, mu in zip(response[0], response[1], strict=True))


def clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def gspo(response: Response, *, clip_low: float, clip_high: float) -> list[Token]:
    ratio = product(response) ** (1 / max(len(response[0]), 1))
    tokens = []
    for a in response[2]:
        unclipped, clipped = ratio * a, clamp(ratio, 1 - clip_low, 1 + clip_high) * a
        keep = unclipped <= clipped
        tokens.append((min(unclipped, clipped), unclipped if keep else 0.0, float(keep)))
    return tokens


def geo_mean(response: Response, *, log_clip_low: float, log_clip_high: float) -> list[Token]:
    low, high = math.exp(-log_clip_low), math.exp(log_clip_high)
    mean, free = 1.0, []
    for lp, mu, a in zip(*response, strict=True):
        ratio = math.exp(lp - mu)
        bounded = clamp(ratio, low, high)
        # |min(rho A, clip(rho) A)| / |A|, the factor of the paper's product
        chosen = bounded if bounded * a < ratio * a else ratio
        mean *= chosen ** (1 / len(response[0]))
        free.append(chosen == ratio)
    return [(mean * a, mean * a * keep, float(keep)) for a, keep in zip(response[2], free, strict=True)]


@by_token
def sapo(lp: float, mu: float, a: float, *, tau_positive: float, tau_negative: float) -> Token:
    tau = tau_positive if a > 0 else tau_negative
    ratio = math.exp(lp - mu)
    p = 1 / (1 + math.exp(-tau * (ratio - 1)))
    weight = 4 * p * (1 - p)
    return 4 / tau * p * a, weight * ratio * a, weight if a else 1.0


@by_token
def icepop(lp: float, mu: float, a: float, *, ratio_low: float, ratio_high: float) -> Token:
    return masked(ratio_low <= math.exp(lp - mu) <= ratio_high, lp, mu, a)


@by_token
def ipo(lp: float, mu: float, a: float, *, delta: float, kl_tau: float) -> Token:
    value, gradient, keep = masked(abs(math.exp(lp) - math.exp(mu)) <= delta, lp, mu, a)
    return value - kl_tau * (lp - mu) ** 2, gradient - 2 * kl_tau * (lp - mu), keep


def binary_kl(p: float, q: float) -> float:
    p, q = clamp(p, 1e-6, 1 - 1e-6), clamp(q, 1e-6, 1 - 1e-6)
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@by_token
def kpop(lp: float, mu: float, a: float, *, delta: float) -> Token:
    p, q = math.exp(lp), math.exp(mu)
    return masked(binary_kl(p, q) <= delta and binary_kl(q, p) <= delta, lp, mu, a)


@by_token
def drpo(lp: float, mu: float, a: float, *, delta: float) -> Token:
    ratio, probability = math.exp(lp - mu), math.exp(min(mu, 0.0))
    shift = probability * (ratio - 1)
    value = ratio * a - abs(a) * probability * (ratio - 1) ** 2 / (2 * delta)
    weight = 1 - (abs(shift) if a * (ratio - 1) > 0 else -abs(shift)) / delta
    return value, weight * ratio * a, clamp(weight, 0.0, 1.0) if a else 1.0


def clipped(lp: float, mu: float, a: float, clip_low: float, clip_high: float) -> Token:
    """min(rho A, clip(rho) A)."""
    ratio = math.exp(lp - mu)
    bounded = clamp(ratio, 1 - clip_low, 1 + clip_high)
    return (bounded * a, 0.0, 0.0) if bounded * a < ratio * a else (ratio * a, ratio * a, 1.0)


@by_token
def estr(
    lp: float, mu: float, a: float, entropy: float, *, tau: float, clip_low: float, clip_high: float
) -> Token:
    kept = (lp - mu) ** 2 / (entropy + 0.01) <= tau
    return clipped(lp, mu, a, clip_low, clip_high) if kept else (0.0, 0.0, 0.0)


def m2po(batch: list[Response], *, m2: float) -> list[list[Token]]:
    """One largest value after the other, each time with the whole mean anew."""
    left = [
        (i, t, (lp - mu) ** 2)
        for i, response in enumerate(batch)
        for t, (lp, mu, a) in enumerate(zip(*response, strict=True))
        if a * (lp - mu) > 0
    ]
    dropped = set()
    while left and math.fsum(v for *_, v in left) / len(left) > m2:
        worst = max(left, key=lambda entry: entry[2])
        left.remove(worst)
        dropped.add(worst[:2])
    return [
        [masked((i, t) not in dropped, *token) for t, token in enumerate(zip(*response, strict=True))]
        for i, response in enumerate(batch)
    ]


def scored(response: Response, weight: float, keep: float) -> list[Token]:
    return [(weight * a * lp, weight * a, keep) for lp, _, a in zip(*response, strict=True)]


def seq_tis(response: Response, *, ratio_high: float) -> list[Token]:
    return scored(response, min(product(response), ratio_high), 1.0)


def seq_mis(response: Response, *, ratio_low: float, ratio_high: float) -> list[Token]:
    weight = product(response)
    keep = ratio_low <= weight <= ratio_high
    return scored(response, weight if keep else 0.0, float(keep))


def geo_mask(response: Response, *, ratio_low: float, ratio_high: float) -> list[Token]:
    keep = float(ratio_low <= product(response) ** (1 / max(len(response[0]), 1)) <= ratio_high)
    return scored(response, keep, keep)


def opsm(response: Response, *, delta: float, clip_low: float, clip_high: float) -> list[Token]:
    drift = sum(mu - lp for lp, mu in zip(response[0], response[1], strict=True)) / max(len(response[0]), 1)
    return [
        (0.0, 0.0, 0.0) if a < 0 and drift > delta else clipped(lp, mu, a, clip_low, clip_high)
        for lp, mu, a in zip(*response, strict=True)
    ]


def vaco(response: Response, *, delta: float) -> list[Token]:
    shifts = [abs(math.expm1(lp - mu)) for lp, mu in zip(response[0], response[1], strict=True)]
    far = sum(shifts) / max(len(shifts), 1) > delta
    return [masked(not (far and a * (lp - mu) > 0), lp, mu, a) for lp, mu, a in zip(*response, strict=True)]


def luspo(response: Response, *, clip_low: float, clip_high: float) -> list[Token]:
    length = len(response[0])
    tokens = gspo(response, clip_low=clip_low, clip_high=clip_high)
    return [(length * value, length * gradient, keep) for value, gradient, keep in tokens]


def topr(response: Response, *, ratio_high: float) -> list[Token]:
    """A per token, so that one response may have both signs."""
    tokens = []
    for lp, a in zip(response[0], response[2], strict=True):
        weight = min(product(response), ratio_high) if a < 0 else 1.0
        tokens.append((weight * a * lp, weight * a, min(weight, 1.0)))
    return tokens


@by_token
def pspo(lp: float, mu: float, a: float, *, smoothing: float) -> Token:
    smooth = (1 - smoothing) * math.exp(lp) + smoothing * math.exp(mu)
    slope = (1 - smoothing) * math.exp(lp - mu)
    return smooth / math.exp(mu) * a, slope * a, 1 - smoothing * (a != 0)


@by_token
def cfpo(lp: float, mu: float, a: float, *, delta: float) -> Token:
    ratio = math.exp(lp - mu)
    value = ratio * a - abs(a) / (2 * delta) * (ratio - 1) ** 2
    slope = a - abs(a) / delta * (ratio - 1)  # in the ratio, whose own derivative is itself
    return value, ratio * slope, clamp(slope / a, 0, 1) if a else 1.0


def vespo(
    response: Response,
    *,
    k_positive: float,
    lambda_positive: float,
    k_negative: float,
    lambda_negative: float,
) -> list[Token]:
    total = sum(clamp(lp - mu, -20, 20) for lp, mu in zip(response[0], response[1], strict=True))
    w = clamp(math.exp(min(total, 20)), 1e-8, math.exp(20))
    tokens = []
    for lp, _, a in zip(*response, strict=True):
        k, rate = (k_negative, lambda_negative) if a < 0 else (k_positive, lambda_positive)
        kernel = math.exp(rate) * w**k * math.exp(-rate * w)
        tokens.append((kernel * a * lp, kernel * a, min(kernel, 1.0) if a else 1.0))
    return tokens
