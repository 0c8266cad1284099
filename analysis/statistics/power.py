"""The number of seeds that would decide a comparison.

The power of n runs per variant, for a true difference that lies `distance` beyond the limit to be excluded and a spread
`deviation` of one pair's difference, is about P(T <= distance sqrt(n) / deviation - t) with t the 97.5 % quantile and
T Student's t, both with n - 1 degrees of freedom. To refute one of several comparisons, the quantile is that of the
first step of Holm's procedure. Difference and spread are the observed ones. Over several models `n` is the number of
runs on each, and the degrees of freedom grow in proportion to n - 1. The scatter of models around a slope is taken as
it is: more runs do not make it smaller. Three seeds determine the spread only to a factor of about 0.5 to 6, so the
number of seeds is an order of magnitude, not a guarantee.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy.special import stdtr, stdtrit

from cppo_lab.analysis.statistics.estimate import Estimate, SlopeEstimate

POWER = 0.8
ALPHA = 0.025  # one-sided: each tail of a two-sided 95 % interval
MOST = 100  # seeds; larger numbers are only reported as "more than"


@dataclass(frozen=True)
class Seeds:
    """The number of seeds per variant at which the comparison is decided with probability POWER; None: more than MOST.

    If it cannot be computed, `unknown` says why, and `count` is None.
    """

    count: int | None
    unknown: str = ""

    def words(self) -> str:
        """`12 seeds`, `more than 100 seeds`, `not known`."""
        if self.unknown:
            return "not known"
        return f"more than {MOST} seeds" if self.count is None else f"{self.count} seeds"


@dataclass(frozen=True)
class Spread:
    """The `error` and `degrees` of freedom of an estimate from `runs` >= 2 of each variant and model.

    `models`: those of a slope by the scatter of its models, which more runs do not change; they count where their
    interval is wider.
    """

    error: float
    degrees: float
    runs: int
    models: tuple[float, float] | None = None

    def at(self, n: int) -> tuple[float, float]:
        """Error and degrees of freedom with `n` runs."""
        seeds = self.error * math.sqrt(self.runs / n), self.degrees * (n - 1) / (self.runs - 1)
        return seeds if self.models is None else max(seeds, self.models, key=_half)


def _half(of: tuple[float, float]) -> float:
    """Half the width of the 95 % interval with this error and these degrees of freedom."""
    return of[0] * float(stdtrit(of[1], 1 - ALPHA))


def power(distance: float, deviation: float, n: int, comparisons: int = 1) -> float:
    """Probability that n >= 2 pairs exclude a limit that lies `distance` away, at ALPHA / `comparisons`."""
    return _excluded(distance, Spread(deviation / math.sqrt(n), n - 1, n), n, comparisons)


def reached(distance: float, error: float, degrees: float) -> float:
    """Probability that an estimate with this error and these degrees of freedom shows a true `distance`."""
    return float(stdtr(degrees, distance / error - stdtrit(degrees, 1 - ALPHA)))


def shown(error: float, degrees: float) -> float:
    """The true distance that such an estimate shows with probability POWER."""
    return float(error * (stdtrit(degrees, 1 - ALPHA) + stdtrit(degrees, POWER)))


def _excluded(distance: float, spread: Spread, n: int, comparisons: int = 1) -> float:
    error, degrees = spread.at(n)
    t = float(stdtrit(degrees, 1 - ALPHA / comparisons))
    return float(stdtr(degrees, distance / error - t))


def equivalence_power(value: float, margin: float, deviation: float, n: int) -> float:
    """Probability that the interval of n >= 2 pairs lies inside (-margin, margin) if the difference is `value`."""
    return _inside(value, margin, Spread(deviation / math.sqrt(n), n - 1, n), n)


def _inside(value: float, margin: float, spread: Spread, n: int) -> float:
    return max(0.0, _excluded(margin - value, spread, n) + _excluded(margin + value, spread, n) - 1)


def seeds_for_superiority(
    found: Estimate, smallest: float, comparisons: int = 1, runs: int | None = None
) -> Seeds:
    """The seeds needed to show that the difference is above 0, or (as one of `comparisons`) below `smallest`, whichever
    takes fewer. The observed difference is taken as the true one.

    Always more than the `runs` of each variant and model behind `found` (None: its own `n`), which did not decide it.
    """
    spread = spread_of(found, runs)
    if spread is None:
        return Seeds(None, found.unknown)
    above, below = found.value, smallest - found.value
    return _fewest(
        spread.runs,
        lambda n: max(_excluded(above, spread, n), _excluded(below, spread, n, comparisons)),
    )


def seeds_for_equivalence(
    found: Estimate, margin: float, comparisons: int = 1, runs: int | None = None
) -> Seeds:
    """The seeds needed to show that the difference is inside the margin or, if the observed one is outside, that it is
    outside as one of `comparisons`. The observed difference is taken as the true one.

    Always more than the `runs` of each variant and model behind `found` (None: its own `n`), which did not decide it.
    """
    spread = spread_of(found, runs)
    if spread is None:
        return Seeds(None, found.unknown)
    outside = abs(found.value) - margin
    if outside >= 0:
        return _fewest(spread.runs, lambda n: _excluded(outside, spread, n, comparisons))
    return _fewest(spread.runs, lambda n: _inside(found.value, margin, spread, n))


def spread_of(found: Estimate, runs: int | None = None) -> Spread | None:
    """The spread of an estimate from `runs` of each variant and model (None: its own `n`); None if it has no error."""
    if found.error is None or found.degrees is None:
        return None
    # At least 2: one side of an unpaired comparison may be a single run, when all spread comes from the other side.
    count = max(2, found.n if runs is None else runs)
    if isinstance(found, SlopeEstimate) and found.seeds is not None and found.models is not None:
        seeds, models = spread_of(found.seeds, count), spread_of(found.models, count)
        if seeds is not None and models is not None:
            return replace(seeds, models=(models.error, models.degrees))
    return Spread(found.error, found.degrees, count)


def _fewest(present: int, reached: Callable[[int], float]) -> Seeds:
    return Seeds(next((n for n in range(max(2, present + 1), MOST + 1) if reached(n) >= POWER), None))
