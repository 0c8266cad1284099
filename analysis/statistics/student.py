"""Student's t with any real number of degrees of freedom, as Satterthwaite's approximation needs it.

P(T <= t) = 1 - I_x(nu / 2, 1 / 2) / 2 for t >= 0, with x = nu / (nu + t^2) and I the regularised incomplete beta
function, evaluated by its continued fraction (Abramowitz and Stegun 26.5.8) with the modified Lentz algorithm.
"""

import math
from functools import lru_cache
from statistics import NormalDist

_TINY, _CLOSE, _TERMS = 1e-300, 1e-15, 1000
_NORMAL_BEYOND = 1e7  # degrees of freedom; t and normal then agree to 1e-7


def t_cdf(t: float, degrees: float) -> float:
    """P(T <= t) for `degrees` > 0. Raises ValueError for other degrees."""
    if not degrees > 0:
        raise ValueError(f"degrees of freedom must be above 0, not {degrees}")
    if degrees > _NORMAL_BEYOND:
        return NormalDist().cdf(t)
    tail = _beta_share(degrees / 2, 0.5, degrees, t * t) / 2
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: float) -> float:
    """The t with P(T <= t) = `probability`, by bisection. Raises ValueError unless 0 < probability < 1."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, not {probability}")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _beta_share(a: float, b: float, first: float, second: float) -> float:
    """I_x(a, b) at x = first / (first + second): given as two parts, so that neither x nor 1 - x loses digits."""
    x, rest = first / (first + second), second / (first + second)
    if rest == 0:
        return 1.0
    if x == 0:
        return 0.0
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log(rest))
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
