"""Slow float64 references of the rules of 2026. They import nothing of the package.

Each takes a whole minibatch as lists, a response as three lists (log pi, log mu, A), and returns for every token the
objective, its derivative in that token's log pi, and whether the rule keeps the token (or its weight in [0, 1]).
"""

import math

Response = tuple[list[float], list[float], list[float]]
Token = tuple[float, float, float]


def ratio(lp: float, mu: float) -> float:
    return math.exp(lp - mu)


def masked(keep: bool, lp: float, mu: float, a: float) -> Token:
    value = ratio(lp, mu) * a if keep else 0.0
    return value, value, float(keep)


def icepop(batch: list[Response], *, ratio_low: float, ratio_high: float) -> list[list[Token]]:
    return [
        [masked(ratio_low <= ratio(lp, mu) <= ratio_high, lp, mu, a) for lp, mu, a in zip(*one, strict=True)]
        for one in batch
    ]


def ipo(batch: list[Response], *, delta: float, kl_tau: float) -> list[list[Token]]:
    result = []
    for one in batch:
        result.append([])
        for lp, mu, a in zip(*one, strict=True):
            value, gradient, keep = masked(abs(math.exp(lp) - math.exp(mu)) <= delta, lp, mu, a)
            difference = lp - mu
            result[-1].append((value - kl_tau * difference**2, gradient - 2 * kl_tau * difference, keep))
    return result


def binary_kl(p: float, q: float) -> float:
    p, q = (min(max(x, 1e-6), 1 - 1e-6) for x in (p, q))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def kpop(batch: list[Response], *, delta: float) -> list[list[Token]]:
    result = []
    for one in batch:
        result.append([])
        for lp, mu, a in zip(*one, strict=True):
            p, q = math.exp(lp), math.exp(mu)
            within = binary_kl(p, q) <= delta and binary_kl(q, p) <= delta
            result[-1].append(masked(within, lp, mu, a))
    return result


def drpo(batch: list[Response], *, delta: float) -> list[list[Token]]:
    result = []
    for one in batch:
        result.append([])
        for lp, mu, a in zip(*one, strict=True):
            r, probability = ratio(lp, mu), math.exp(min(mu, 0.0))
            shift = probability * (r - 1)
            value = r * a - abs(a) * probability * (r - 1) ** 2 / (2 * delta)
            away = a * (r - 1) > 0
            weight = 1 - (abs(shift) if away else -abs(shift)) / delta
            keep = 1.0 if a == 0 else min(max(weight, 0.0), 1.0)
            result[-1].append((value, weight * r * a, keep))
    return result


def m2po(batch: list[Response], *, m2: float) -> list[list[Token]]:
    """One largest value after the other, each time with the whole mean anew."""
    left = [
        (i, t, (lp - mu) ** 2)
        for i, one in enumerate(batch)
        for t, (lp, mu, a) in enumerate(zip(*one, strict=True))
        if a * (lp - mu) > 0
    ]
    dropped = set()
    while left and math.fsum(v for *_, v in left) / len(left) > m2:
        worst = max(left, key=lambda entry: entry[2])
        left.remove(worst)
        dropped.add(worst[:2])
    return [
        [masked((i, t) not in dropped, lp, mu, a) for t, (lp, mu, a) in enumerate(zip(*one, strict=True))]
        for i, one in enumerate(batch)
    ]


def product(one: Response) -> float:
    result = 1.0
    for lp, mu in zip(one[0], one[1], strict=True):
        result *= ratio(lp, mu)
    return result


def scored(one: Response, weight: float, keep: float) -> list[Token]:
    return [(weight * a * lp, weight * a, keep) for lp, _, a in zip(*one, strict=True)]


def seq_tis(batch: list[Response], *, ratio_high: float) -> list[list[Token]]:
    return [scored(one, min(product(one), ratio_high), 1.0) for one in batch]


def seq_mis(batch: list[Response], *, ratio_low: float, ratio_high: float) -> list[list[Token]]:
    result = []
    for one in batch:
        w = product(one)
        keep = ratio_low <= w <= ratio_high
        result.append(scored(one, w if keep else 0.0, float(keep)))
    return result


def geo_mask(batch: list[Response], *, ratio_low: float, ratio_high: float) -> list[list[Token]]:
    result = []
    for one in batch:
        keep = not one[0] or ratio_low <= product(one) ** (1 / len(one[0])) <= ratio_high
        result.append(scored(one, float(keep), float(keep)))
    return result


def opsm(batch: list[Response], *, delta: float, clip_low: float, clip_high: float) -> list[list[Token]]:
    result = []
    for one in batch:
        drift = sum(mu - lp for lp, mu in zip(one[0], one[1], strict=True)) / max(len(one[0]), 1)
        result.append([])
        for lp, mu, a in zip(*one, strict=True):
            r = ratio(lp, mu)
            bounded = min(max(r, 1 - clip_low), 1 + clip_high)
            if a < 0 and drift > delta:
                result[-1].append((0.0, 0.0, 0.0))
            elif bounded * a < r * a:
                result[-1].append((bounded * a, 0.0, 0.0))
            else:
                result[-1].append((r * a, r * a, 1.0))
    return result


def vaco(batch: list[Response], *, delta: float) -> list[list[Token]]:
    result = []
    for one in batch:
        distance = sum(abs(math.expm1(lp - mu)) for lp, mu in zip(one[0], one[1], strict=True)) / max(
            len(one[0]), 1
        )
        result.append(
            [
                masked(not (distance > delta and a * (lp - mu) > 0), lp, mu, a)
                for lp, mu, a in zip(*one, strict=True)
            ]
        )
    return result


def vespo(
    batch: list[Response],
    *,
    k_positive: float,
    lambda_positive: float,
    k_negative: float,
    lambda_negative: float,
) -> list[list[Token]]:
    result = []
    for one in batch:
        total = sum(min(max(lp - mu, -20), 20) for lp, mu in zip(one[0], one[1], strict=True))
        w = min(max(math.exp(min(total, 20)), 1e-8), math.exp(20))
        result.append([])
        for lp, _, a in zip(*one, strict=True):
            k, rate = (k_negative, lambda_negative) if a < 0 else (k_positive, lambda_positive)
            kernel = math.exp(rate) * w**k * math.exp(-rate * w)
            result[-1].append((kernel * a * lp, kernel * a, 1.0 if a == 0 else min(kernel, 1.0)))
    return result
