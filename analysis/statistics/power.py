"""The number of seeds that would decide a comparison, and the power that the finished runs have.

The power of n runs per variant, for a true difference that lies `distance` beyond the limit to be excluded and a spread
`deviation` of one pair's difference, is about P(T <= distance sqrt(n) / deviation - t) with t the 97.5 % quantile and
T Student's t, both with n - 1 degrees of freedom. To refute one of several comparisons, the quantile is that of the
first step of Holm's procedure. Difference and spread are the observed ones. Over several models `n` is the number of
runs on each, and the degrees of freedom grow in proportion to n - 1. The scatter of models around a slope is taken as
it is: more runs do not make it smaller. Three seeds determine the spread only to a factor of about 0.5 to 6, so the
number of seeds is an order of magnitude, not a guarantee.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import gammaincinv, ndtr, ndtri, stdtr, stdtrit

from cppo_lab.analysis.statistics.collapse import Z95, Counts, ShareDifference, newcombe
from cppo_lab.analysis.statistics.estimate import Estimate, FloatArray, SlopeEstimate

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


# The power of the runs behind a verdict, at a lead that was fixed beforehand.
#
# The lead is `Claim.lead`. The observed difference does not enter, since power at the observed difference only restates
# the p-value; only the spread of the runs does. The comparisons of a claim are treated as independent. They share a
# method and are positively correlated, so the true power is at least the reported one.


_PLACES = 400  # quadrature points of the distribution of the estimated error
STUDIES = 4000  # simulated studies of collapses: the standard error of a power is then at most 0.8 points
Chance = Callable[[int], float]  # runs of each variant and model -> probability


@dataclass(frozen=True)
class ReachedPower:
    """`power`: the probability that a claim comes out supported with these runs if every true difference is `lead`.
    `runs`: the smallest number of runs of any variant and model. `needed`: the number at which the power reaches
    `power.POWER`.
    """

    lead: float
    power: float
    runs: int
    needed: Seeds


class Tested(Protocol):
    """What a power depends on: the true difference, and the margin of an equivalence (None: superiority)."""

    @property
    def lead(self) -> float: ...

    @property
    def margin(self) -> float | None: ...


def reached_power(claim: Tested, estimates: Sequence[Estimate | None], runs: int) -> ReachedPower | None:
    """The power of a claim with these comparisons, from `runs` of each variant and model; None without a comparison.

    Without a spread, or with a missing side, nothing can be supported: the power is 0 and `needed` is unknown.
    """
    if not estimates:
        return None
    known = [found for found in estimates if found is not None]
    unknown = next((found.unknown for found in known if found.unknown), "")
    if len(known) < len(estimates) or unknown:
        why = unknown or "one side has no finished run"
        return ReachedPower(claim.lead, 0.0, runs, Seeds(None, why))
    chances = [_chance(claim, found, runs) for found in known]

    def all_hold(n: int) -> float:
        return float(np.prod([chance(n) for chance in chances]))

    return ReachedPower(claim.lead, all_hold(runs), runs, Seeds(fewest(all_hold)))


def fewest(chance: Chance) -> int | None:
    """The smallest number of runs, at least two, at which an increasing probability reaches POWER; None: more than
    MOST.
    """
    low, high = 1, MOST
    if chance(high) < POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= POWER else (middle, high)
    return high


def _chance(claim: Tested, found: Estimate, runs: int) -> Chance:
    if isinstance(found, ShareDifference):
        return lambda n: share_power(found.theirs, claim.lead, n)
    spread = spread_of(found, runs)
    assert spread is not None, "an estimate without an error says why"
    return lambda n: spread_power(claim.lead, claim.margin, spread, n)


def spread_power(lead: float, margin: float | None, spread: Spread, n: int) -> float:
    """The probability that the interval of `n` runs lies above 0, or inside the margin, if the difference is `lead`:
    averaged over the independent distributions of the mean and of its estimated standard error.
    """
    error, degrees = spread.at(n)
    half = float(stdtrit(degrees, 1 - ALPHA)) * _relative_errors(round(degrees, 2))
    if margin is None:
        return float(ndtr(lead / error - half).mean())
    room = ndtr((margin - lead) / error - half) - ndtr(-(margin + lead) / error + half)
    return float(np.maximum(room, 0.0).mean())


@lru_cache(maxsize=1024)
def _relative_errors(degrees: float) -> FloatArray:
    """Ratios of estimated to true standard error for these degrees of freedom, at points of equal probability."""
    places = (np.arange(_PLACES) + 0.5) / _PLACES
    found: FloatArray = np.sqrt(2 * gammaincinv(degrees / 2, places) / degrees)
    return found


def share_power(theirs: Sequence[Counts], lead: float, n: int) -> float:
    """The probability that `n` runs of each side and stratum show that a share is higher, by simulation.

    The true share of the other side is its pooled share over all strata; ours is higher by `lead`.
    """
    base = sum(collapsed for collapsed, _ in theirs) / sum(runs for _, runs in theirs)
    return shares_power([(min(1.0, base + lead), base)] * len(theirs), n)


def seeds_for_shares(found: ShareDifference, smallest: float, comparisons: int, runs: int) -> Seeds:
    """The runs needed to show that the shares differ or (as one of `comparisons`) that their difference is below
    `smallest`, whichever takes fewer; always more than the `runs` of each side and stratum that did not decide it. The
    observed shares are taken as the true ones.
    """
    pairs = [(a / n, b / m) for (a, n), (b, m) in zip(found.ours, found.theirs, strict=True)]
    z = -float(ndtri(ALPHA / comparisons))

    def decided(n: int) -> float:
        return max(shares_power(pairs, n), shares_power([(b, a) for a, b in pairs], n, -smallest, z))

    if decided(MOST) < POWER:
        return Seeds(None)
    return Seeds(max(runs + 1, fewest(decided) or MOST))


def shares_power(strata: Sequence[tuple[float, float]], n: int, null: float = 0.0, z: float = Z95) -> float:
    """The probability that the interval of the mean difference lies above `null`, for true shares (ours, theirs) of
    each stratum and `n` runs of each.
    """
    rng = np.random.default_rng(n)
    ours, theirs = (
        rng.binomial(n, [pair[side] for pair in strata], (STUDIES, len(strata))) / n for side in (0, 1)
    )
    return float((newcombe(ours, theirs, n, n, z, -1) > null).mean())
