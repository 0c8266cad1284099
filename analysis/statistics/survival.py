"""Survival analysis of runs: the share that has not collapsed by each training step, and the log-rank test of two
methods.

A collapse is dated by the last validation of the run that collapsed. A finished run is censored at its last step: it
had not collapsed until then.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtr

from cppo_lab.analysis.statistics.aggregates import Share

Z95 = 1.959963984540054  # of a two-sided 95 % interval
# Limit on the distinct sums in the exact distribution of the test: 24 runs of different lengths stay below it.
MOST_SUMS = 20_000
_DIGITS = 9  # sums that differ by rounding alone are merged


@dataclass(frozen=True)
class RunTime:
    """The training step at which a run collapsed, or up to which it is known not to have collapsed."""

    step: int
    collapsed: bool


@dataclass(frozen=True)
class SurvivalPoint:
    """A step at which `collapses` of the `at_risk` runs collapse, and the `share` that survives it.

    The share's limits are those of a 95 % interval; None if no run or every run is left.
    """

    step: int
    at_risk: int
    collapses: int
    share: Share


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of two methods: `observed` and `expected` collapses of the first, the latter if both collapse
    equally often.

    `p`: two-sided, from all assignments of the runs to the methods (`exact`), or from the normal approximation.
    """

    observed: int
    expected: float
    p: float
    exact: bool


def kaplan_meier(runs: Sequence[RunTime]) -> tuple[SurvivalPoint, ...]:
    """Kaplan and Meier (1958): the product over steps of the shares of runs at risk that do not collapse there.

    The interval is Greenwood's on the scale log(-log share) (Kalbfleisch and Prentice 1980). Empty without a collapse.
    """
    share, spread, points = 1.0, 0.0, []
    for step in sorted({run.step for run in runs if run.collapsed}):
        at_risk = sum(run.step >= step for run in runs)
        collapses = sum(run.step == step and run.collapsed for run in runs)
        share *= 1 - collapses / at_risk
        low = high = None
        if share > 0:
            spread += collapses / (at_risk * (at_risk - collapses))
            width = Z95 * math.sqrt(spread) / abs(math.log(share))
            low, high = share ** math.exp(width), share ** math.exp(-width)
        points.append(SurvivalPoint(step, at_risk, collapses, Share(share, low, high)))
    return tuple(points)


def logrank(strata: Sequence[tuple[Sequence[RunTime], Sequence[RunTime]]]) -> LogRank | None:
    """The log-rank test (Mantel 1966) of the first of each pair against the second, stratified, as over models.

    Each run has a log-rank score: 1 if it collapsed, else 0, minus the cumulative hazard until its end. Observed minus
    expected collapses is the sum of the scores of one side, so its permutation distribution can be enumerated. None
    without a collapse, or if no stratum has runs on both sides.
    """
    kept = [(ours, theirs) for ours, theirs in strata if ours and theirs]
    if not any(run.collapsed for pair in kept for side in pair for run in side):
        return None
    difference, variance = 0.0, 0.0
    for ours, theirs in kept:
        scores = _scores([*ours, *theirs])
        difference += math.fsum(scores[: len(ours)])
        variance += _hypergeometric(ours, theirs)
    observed = sum(run.collapsed for ours, _ in kept for run in ours)
    p = _exact_p(kept, abs(difference))
    if p is not None:
        return LogRank(observed, observed - difference, p, True)
    normal = 2 * float(ndtr(-abs(difference) / math.sqrt(variance))) if variance > 0 else 1.0
    return LogRank(observed, observed - difference, normal, False)


def _scores(runs: Sequence[RunTime]) -> list[float]:
    hazard, before = 0.0, dict[int, float]()
    for step in sorted({run.step for run in runs}):
        collapses = sum(run.step == step and run.collapsed for run in runs)
        hazard += collapses / sum(run.step >= step for run in runs)
        before[step] = hazard
    return [run.collapsed - before[run.step] for run in runs]


def _hypergeometric(ours: Sequence[RunTime], theirs: Sequence[RunTime]) -> float:
    """The variance of observed minus expected collapses."""
    both, total = [*ours, *theirs], 0.0
    for step in {run.step for run in both if run.collapsed}:
        n, mine = sum(run.step >= step for run in both), sum(run.step >= step for run in ours)
        collapses = sum(run.step == step and run.collapsed for run in both)
        if n > 1:
            total += mine * (n - mine) * collapses * (n - collapses) / (n * n * (n - 1))
    return total


def _exact_p(kept: Sequence[tuple[Sequence[RunTime], Sequence[RunTime]]], distance: float) -> float | None:
    """The share of permutations whose sum is at least as far from 0; None if there are too many sums to enumerate."""
    whole = {0.0: 1.0}
    for ours, theirs in kept:
        own = _sums(_scores([*ours, *theirs]), len(ours))
        if own is None or len(whole) * len(own) > MOST_SUMS:
            return None
        joined = defaultdict[float, float](float)
        for (one, p), (other, q) in itertools.product(whole.items(), own.items()):
            joined[round(one + other, _DIGITS)] += p * q
        whole = dict(joined)
    far = math.fsum(p for total, p in whole.items() if abs(total) >= distance - 10**-_DIGITS * 10)
    return min(1.0, far)


def _sums(scores: Sequence[float], size: int) -> dict[float, float] | None:
    """Sum -> its probability over all choices of `size` of the scores; None if there are too many."""
    ways = Counter[tuple[int, float]]({(0, 0.0): 1})
    for score in scores:
        for (count, total), number in list(ways.items()):
            if count < size:
                ways[count + 1, round(total + score, _DIGITS)] += number
        if len(ways) > MOST_SUMS:
            return None
    choices = math.comb(len(scores), size)
    return {total: number / choices for (count, total), number in ways.items() if count == size}
