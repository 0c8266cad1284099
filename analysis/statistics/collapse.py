"""Collapses of runs: the share of runs that has not collapsed by each training step, with the log-rank test of two
methods; and the probability that a run collapses, with its intervals and tests.

A collapse is dated by the last validation of the run that collapsed. A finished run is censored at its last step: it
had not collapsed until then.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.special import ndtr

from cppo_lab.analysis.inputs import Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Estimate, FloatArray, Interval, mean_estimate
from cppo_lab.analysis.statistics.values import FinishedRuns, RunValues, cell_runs

Z95 = 1.959963984540054  # of a two-sided 95 % interval
# Limit on the distinct sums in the exact distribution of the test: 24 runs of different lengths stay below it.
_MOST_SUMS = 20_000
_DIGITS = 12  # sums that differ by rounding alone are merged


@dataclass(frozen=True)
class SurvivalPoint:
    """A step at which `collapses` of the `at_risk` runs collapse, and the `share` that survives it.

    The share's limits are those of a 95 % interval; None if no run is left.
    """

    step: int
    at_risk: int
    collapses: int
    share: Interval


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of two methods. `p`: two-sided, from all assignments of the runs to the methods (`exact`), or
    from the normal approximation.
    """

    p: float
    exact: bool


def kaplan_meier(runs: Sequence[RunValues]) -> tuple[SurvivalPoint, ...]:
    """Kaplan and Meier (1958): the product over steps of the shares of runs at risk that do not collapse there.

    The interval is Greenwood's on the scale log(-log share) (Kalbfleisch and Prentice 1980). Empty without a collapse.
    """
    share, spread, points = 1.0, 0.0, []
    for step, at_risk, collapses in _ends(runs):
        if not collapses:
            continue
        share *= 1 - collapses / at_risk
        low = high = None
        if share > 0:
            spread += collapses / (at_risk * (at_risk - collapses))
            width = Z95 * math.sqrt(spread) / abs(math.log(share))
            low, high = share ** math.exp(width), share ** math.exp(-width)
        points.append(SurvivalPoint(step, at_risk, collapses, Interval(share, low, high)))
    return tuple(points)


def logrank(strata: Sequence[tuple[Sequence[RunValues], Sequence[RunValues]]]) -> LogRank | None:
    """The log-rank test (Mantel 1966) of the first of each pair against the second, stratified, as over models.

    Each run has a log-rank score: 1 if it collapsed, else 0, minus the cumulative hazard until its end. Observed minus
    expected collapses is the sum of the first side's scores, so its permutation distribution can be enumerated. None
    without a collapse, or if no stratum has runs on both sides.
    """
    whole = [(ours, theirs) for ours, theirs in strata if ours and theirs]
    if not any(run.collapsed for pair in whole for side in pair for run in side):
        return None
    difference = sum(math.fsum(_scores([*ours, *theirs])[: len(ours)]) for ours, theirs in whole)
    exact = _exact_p(whole, abs(difference))
    if exact is not None:
        return LogRank(exact, True)
    variance = 0.0  # of observed minus expected collapses, hypergeometric
    for ours, theirs in whole:
        for step, n, collapses in _ends([*ours, *theirs]):
            mine = sum(run.ended >= step for run in ours)
            variance += mine * (n - mine) * collapses * (n - collapses) / (n * n * max(1, n - 1))
    normal = 2 * float(ndtr(-abs(difference) / math.sqrt(variance))) if variance > 0 else 1.0
    return LogRank(normal, False)


def _scores(runs: Sequence[RunValues]) -> list[float]:
    hazard, before = 0.0, {}
    for step, at_risk, collapses in _ends(runs):
        hazard += collapses / at_risk
        before[step] = hazard
    return [run.collapsed - before[run.ended] for run in runs]


def _ends(runs: Sequence[RunValues]) -> list[tuple[int, int, int]]:
    """Each step at which a run ends, the runs that last until it, and how many of them collapse there."""
    return [
        (
            step,
            sum(run.ended >= step for run in runs),
            sum(run.ended == step and run.collapsed for run in runs),
        )
        for step in sorted({run.ended for run in runs})
    ]


def _exact_p(
    strata: Sequence[tuple[Sequence[RunValues], Sequence[RunValues]]], distance: float
) -> float | None:
    """The share of permutations whose sum is at least as far from 0; None if there are too many sums to enumerate."""
    whole = {0.0: 1.0}
    for ours, theirs in strata:
        # Number of runs and sum of their scores -> the ways to choose them.
        ways = Counter[tuple[int, float]]({(0, 0.0): 1})
        for score in _scores([*ours, *theirs]):
            for (count, total), number in list(ways.items()):
                if count < len(ours):
                    ways[count + 1, round(total + score, _DIGITS)] += number
            if len(ways) > _MOST_SUMS:
                return None
        choices = math.comb(len(ours) + len(theirs), len(ours))
        of_stratum = {
            total: number / choices for (count, total), number in ways.items() if count == len(ours)
        }
        if len(whole) * len(of_stratum) > _MOST_SUMS:
            return None
        joined = defaultdict[float, float](float)
        for (total, p), (further, q) in itertools.product(whole.items(), of_stratum.items()):
            joined[round(total + further, _DIGITS)] += p * q
        whole = dict(joined)
    far = math.fsum(p for total, p in whole.items() if abs(total) >= distance - 10 ** (3 - _DIGITS))
    return min(1.0, far)


# The probability that a run collapses, with intervals and tests.
#
# A few runs without a collapse do not rule out rare collapses: after three such runs the 95 % interval of the
# probability still reaches 56 %. So both the probability and the mean score that allows for unseen collapses have
# dedicated intervals. Student's t, which uses the observed scores alone, has far too low a coverage for the mean of
# such scores (docs/statistics.md).

CollapseCount = tuple[int, int]  # collapsed, runs
_FARTHEST = 10.0  # standard errors beyond which a p-value is 0


def wilson(collapsed: int, runs: int) -> Interval:
    """The share `collapsed` / `runs` with Wilson's (1927) interval; `runs` >= 1."""
    low, high = _limits(np.array(collapsed / runs), np.array(runs), Z95)
    return Interval(collapsed / runs, float(low), float(high))


def _limits(share: FloatArray, runs: FloatArray | float, z: float) -> tuple[FloatArray, FloatArray]:
    middle = (share + z * z / (2 * runs)) / (1 + z * z / runs)
    half = z * np.sqrt(share * (1 - share) / runs + z * z / (4 * runs * runs)) / (1 + z * z / runs)
    # Shares of 0 and 1 have the limits 0 and 1 exactly: rounding must not move them.
    return np.where(share == 0, 0.0, middle - half), np.where(share == 1, 1.0, middle + half)


def newcombe(
    ours: FloatArray, theirs: FloatArray, n: FloatArray | int, m: FloatArray | int, z: float, side: int
) -> FloatArray:
    """The lower (`side` -1) or upper (1) end of the interval of the mean difference of shares over strata (the last
    axis) from `n` and `m` runs: the distances of the mean shares from Wilson's limits, added in quadrature (Newcombe
    1998, method 10). The runs of all strata are treated as one sample, which is merely conservative if strata differ;
    an interval from per-stratum limits claims a difference too often (docs/statistics.md).
    """
    squares = 0.0
    for sign, shares, runs in ((1, ours, n), (-1, theirs, m)):
        share, strata = shares.mean(-1), shares.shape[-1]
        # The effective sample size: the number of runs in a single sample that gives the mean over strata its variance.
        together = strata**2 / (1 / np.broadcast_to(runs, strata)).sum()
        low, high = _limits(share, together, z)
        squares = squares + (high - share if sign == side else share - low) ** 2
    end: FloatArray = (ours - theirs).mean(-1) + side * np.sqrt(squares)
    return end


@dataclass(frozen=True)
class ShareDifference(Estimate):
    """The mean over strata of a difference of two shares, with the interval of `newcombe`, which has no half. The
    p-values invert the interval: they are the level at which it ends at the null. `ours` and `theirs`: (collapsed,
    runs) of each stratum.
    """

    ours: tuple[CollapseCount, ...] = ()
    theirs: tuple[CollapseCount, ...] = ()

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self._end(Z95, -1)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self._end(Z95, 1)

    def p_above(self, null: float = 0.0) -> float:
        """One-sided p-value against "the true difference is `null` or less"."""
        side = -1 if self.value > null else 1
        near, far = 0.0, _FARTHEST
        for _ in range(60):
            z = (near + far) / 2
            inside = side * (null - self._end(z, side)) >= 0
            near, far = (z, far) if inside else (near, z)
        return float(ndtr(side * near))

    def p_below(self, null: float = 0.0) -> float:
        """One-sided p-value against "the true difference is `null` or more"."""
        return 1 - self.p_above(null)

    def _end(self, z: float, side: int) -> float:
        ours, theirs = (np.array(counts, dtype=np.float64).T for counts in (self.ours, self.theirs))
        return float(newcombe(ours[0] / ours[1], theirs[0] / theirs[1], ours[1], theirs[1], z, side))


def share_difference(ours: Sequence[CollapseCount], theirs: Sequence[CollapseCount]) -> ShareDifference:
    """The mean over strata of our share minus theirs. There are one or more strata, each with runs on both sides."""
    shares = [a / n - b / m for (a, n), (b, m) in zip(ours, theirs, strict=True)]
    runs = min(sum(n for _, n in ours), sum(m for _, m in theirs))
    return ShareDifference(fmean(shares), runs, ours=tuple(ours), theirs=tuple(theirs))


def mean_with_collapses(survived: Sequence[float], collapsed: Sequence[float]) -> Interval | None:
    """The mean score over runs of which some collapse, with a 95 % interval that allows for unseen collapses.

    It is (1 - q) s + q c, where q is the probability of a collapse (Wilson's interval), s the mean score of the
    surviving runs (Student's t), and c that of the collapsed runs (Student's t, too; of a single one taken as known, of
    none as 0). The distances of q, s and c from their limits are added in quadrature (Zou and Donner 2008). There is no
    interval with fewer than two surviving runs; None without runs.
    """
    n = len(survived) + len(collapsed)
    if not n:
        return None
    value = fmean([*survived, *collapsed])
    surviving = mean_estimate(survived)
    if surviving is None or surviving.low is None or surviving.high is None:
        return Interval(value, None, None)
    broken = fmean(collapsed) if collapsed else 0.0
    often, fallen = wilson(len(collapsed), n), mean_estimate(collapsed)
    assert often.low is not None and often.high is not None
    below = above = broken
    if fallen is not None and fallen.low is not None and fallen.high is not None:
        below, above = fallen.low, fallen.high
    fall, survive = max(0.0, surviving.value - broken), 1 - often.value
    down = math.hypot(
        survive * (surviving.value - surviving.low),
        fall * (often.high - often.value),
        often.value * (broken - below),
    )
    up = math.hypot(
        survive * (surviving.high - surviving.value),
        fall * (often.value - often.low),
        often.value * (above - broken),
    )
    return Interval(value, max(0.0, value - down), min(1.0, value + up))


@dataclass(frozen=True)
class CellCollapse:
    """One (model, variant), or a variant over all models.

    `share`: probability of a collapse. `surviving`: mean final score of the runs that did not collapse. `mean`: mean
    over all runs, see `mean_with_collapses`; both are None over models. `test`: against the baseline; None for the
    baseline itself and without a collapse. `curve`: the survival curve; empty without a collapse.
    """

    collapsed: int
    runs: int
    share: Interval
    surviving: Estimate | None
    mean: Interval | None
    test: LogRank | None
    curve: tuple[SurvivalPoint, ...]
    last_step: int


def cell_collapses(
    board: Scoreboard, runs: FinishedRuns, baseline: Baseline
) -> dict[tuple[str, str], CellCollapse]:
    """(model, variant) -> the cell, of those with a finished run; then, if there are several models, ("", variant) ->
    the variant over all models that have it.
    """
    models_of = {pair: [pair[0]] for pair in board.cells if cell_runs(runs, *pair)}
    if len(board.models) > 1:
        for variant in board.variants:
            models = [model for model in board.models if (model, variant) in models_of]
            models_of |= {("", variant): models} if models else {}
    collapses = {}
    for (model, variant), models in models_of.items():
        every = [run for name in models for run in cell_runs(runs, name, variant)]
        of_cell, against = cell_runs(runs, model, variant), baseline.of(variant)
        survived = [run.final for run in of_cell if not run.collapsed]
        test = None
        if against is not None:
            test = logrank(
                [(cell_runs(runs, name, variant), cell_runs(runs, name, against)) for name in models]
            )
        collapsed = sum(run.collapsed for run in every)
        collapses[model, variant] = CellCollapse(
            collapsed=collapsed,
            runs=len(every),
            share=wilson(collapsed, len(every)),
            surviving=mean_estimate(survived),
            mean=mean_with_collapses(survived, [run.final for run in of_cell if run.collapsed]),
            test=test,
            curve=kaplan_meier(every),
            last_step=max(run.ended for run in every),
        )
    return collapses
