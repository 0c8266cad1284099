"""How many seeds would decide a comparison.

The power of n runs per variant, for a true difference that lies `distance` beyond the limit to be excluded and a spread
`deviation` of one pair's difference, is about P(T <= distance sqrt(n) / deviation - t) with t the 97.5 % quantile and
T Student's t, both with n - 1 degrees of freedom. To refute one of several comparisons the quantile is that of the
first step of Holm's procedure. Difference and spread are the observed ones. From three seeds the spread is known to a
factor of about 0.5 to 6, so the number of seeds is an order of magnitude, not a promise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from cppo_lab.analysis.statistics.estimate import Estimate

POWER = 0.8
ALPHA = 0.025  # one-sided: what a two-sided 95 % interval leaves on each side
MOST = 100  # seeds; beyond it is only said that it takes more


@dataclass(frozen=True)
class Seeds:
    """Seeds per variant at which the comparison is decided with probability POWER; None: not even with MOST.

    `unknown` says why it cannot be told at all; `count` is None then too.
    """

    count: int | None
    unknown: str = ""

    def words(self) -> str:
        """`12 seeds`, `more than 100 seeds`, `not known`."""
        if self.unknown:
            return "not known"
        return f"more than {MOST} seeds" if self.count is None else f"{self.count} seeds"


def power(distance: float, deviation: float, n: int, comparisons: int = 1) -> float:
    """Probability that n >= 2 pairs exclude a limit that lies `distance` away, at ALPHA / `comparisons`."""
    t = float(stdtrit(n - 1, 1 - ALPHA / comparisons))
    return float(stdtr(n - 1, distance * math.sqrt(n) / deviation - t))


def equivalence_power(value: float, margin: float, deviation: float, n: int) -> float:
    """Probability that the interval of n >= 2 pairs lies inside (-margin, margin) if the difference is `value`."""
    return max(0.0, power(margin - value, deviation, n) + power(margin + value, deviation, n) - 1)


def seeds_for_superiority(found: Estimate, smallest: float, comparisons: int = 1) -> Seeds:
    """To find the observed difference to be above 0, or below `smallest` as one of so many, whichever takes fewer.

    More than those that `found` has, which did not decide it.
    """
    deviation = _deviation(found)
    if deviation is None:
        return Seeds(None, found.unknown)
    above, below = found.value, smallest - found.value
    return _fewest(
        found.n, lambda n: max(power(above, deviation, n), power(below, deviation, n, comparisons))
    )


def seeds_for_equivalence(found: Estimate, margin: float, comparisons: int = 1) -> Seeds:
    """To find the observed difference inside the margin if it is inside, else outside as one of so many.

    More than those that `found` has, which did not decide it.
    """
    deviation = _deviation(found)
    if deviation is None:
        return Seeds(None, found.unknown)
    outside = abs(found.value) - margin
    if outside >= 0:
        return _fewest(found.n, lambda n: power(outside, deviation, n, comparisons))
    return _fewest(found.n, lambda n: equivalence_power(found.value, margin, deviation, n))


def _deviation(found: Estimate) -> float | None:
    """Standard deviation of the difference of one pair of runs; from an unpaired comparison that of a pair at random.

    Its error is then sqrt(s_a^2 / n_a + s_b^2 / n_b); with as many runs on both sides this is exact, else close.
    """
    return None if found.error is None else found.error * math.sqrt(found.n)


def _fewest(present: int, reached: Callable[[int], float]) -> Seeds:
    return Seeds(next((n for n in range(max(2, present + 1), MOST + 1) if reached(n) >= POWER), None))
