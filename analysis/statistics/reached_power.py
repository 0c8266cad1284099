"""The power of the runs behind a verdict, at a lead that was fixed beforehand.

The lead is `Claim.lead`. The observed difference does not enter, since power at the observed difference only restates
the p-value; only the spread of the runs does. The comparisons of a claim are treated as independent. They share a
method and are positively correlated, so the true power is at least the reported one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import gammaincinv, ndtr, ndtri, stdtrit

from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.collapse import Counts, ShareDifference, newcombe
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.power import ALPHA, MOST, POWER, Seeds, Spread, spread_of
from cppo_lab.analysis.statistics.survival import Z95

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
