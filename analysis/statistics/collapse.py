"""The probability that a run collapses, with intervals and tests.

A few runs without a collapse do not rule out rare collapses: after three such runs the 95 % interval of the probability
still reaches 56 %. So both the probability and the mean score that allows for unseen collapses have dedicated
intervals. Student's t, which uses the observed scores alone, has far too low a coverage for the mean of such scores
(docs/statistics.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from cppo_lab.analysis.grid import Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.aggregates import FloatArray, Share
from cppo_lab.analysis.statistics.estimate import Estimate, mean_estimate
from cppo_lab.analysis.statistics.survival import Z95, LogRank, RunTime, SurvivalPoint, kaplan_meier, logrank
from cppo_lab.analysis.statistics.values import RunValues, cell_runs

Counts = tuple[int, int]  # collapsed, runs
_FARTHEST = 10.0  # standard errors beyond which a p-value is 0


def wilson(collapsed: int, runs: int, z: float = Z95) -> Share:
    """The share `collapsed` / `runs` with Wilson's (1927) interval; `runs` >= 1."""
    low, high = _limits(np.array(collapsed / runs), np.array(runs), z)
    return Share(collapsed / runs, float(low), float(high))


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
    1998, method 10). The runs of all strata are treated as one sample. An interval from per-stratum limits claims a
    difference too often (docs/statistics.md); this one is merely conservative if strata differ.
    """
    squares = 0.0
    for sign, shares, runs in ((1, ours, n), (-1, theirs, m)):
        share, strata = shares.mean(-1), shares.shape[-1]
        # The effective sample size: the number of runs in one sample that gives the mean over strata its variance.
        together = strata**2 / (1 / np.broadcast_to(runs, strata)).sum()
        low, high = _limits(share, together, z)
        squares = squares + (high - share if sign == side else share - low) ** 2
    found: FloatArray = (ours - theirs).mean(-1) + side * np.sqrt(squares)
    return found


@dataclass(frozen=True)
class ShareDifference(Estimate):
    """The mean over strata of a difference of two shares, with the interval of `newcombe`. The p-values invert the
    interval: they are the level at which it ends at the null. `ours` and `theirs`: (collapsed, runs) of each stratum.
    """

    ours: tuple[Counts, ...] = ()
    theirs: tuple[Counts, ...] = ()

    @property
    def half(self) -> float | None:
        """None: the interval is not symmetric."""
        return None

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


def share_difference(ours: Sequence[Counts], theirs: Sequence[Counts]) -> ShareDifference:
    """The mean over strata of our share minus theirs. There are one or more strata, each with runs on both sides."""
    shares = [a / n - b / m for (a, n), (b, m) in zip(ours, theirs, strict=True)]
    runs = min(sum(n for _, n in ours), sum(m for _, m in theirs))
    return ShareDifference(math.fsum(shares) / len(shares), runs, ours=tuple(ours), theirs=tuple(theirs))


def counts_of(runs: tuple[RunValues, ...], model: str, variant: str) -> Counts:
    """(collapsed, finished) runs of a cell."""
    own = cell_runs(runs, model, variant)
    return sum(run.collapsed for run in own), len(own)


def run_times(runs: tuple[RunValues, ...], model: str, variant: str) -> tuple[RunTime, ...]:
    """When the finished runs of a cell collapsed or ended."""
    return tuple(RunTime(run.ended, run.collapsed) for run in cell_runs(runs, model, variant))


def mean_with_collapses(kept: Sequence[float], collapsed: Sequence[float]) -> Share | None:
    """The mean score over runs of which some collapse, with a 95 % interval that allows for unseen collapses.

    It is (1 - q) s + q c, where q is the probability of a collapse (Wilson's interval), s the mean score of the
    surviving runs (Student's t), and c that of the collapsed runs, taken as 0 if there is none. The distances of q and
    s from their limits are added in quadrature (Zou and Donner 2008). There is no interval with fewer than two
    surviving runs; None without runs.
    """
    n = len(kept) + len(collapsed)
    if not n:
        return None
    value = math.fsum([*kept, *collapsed]) / n
    surviving = mean_estimate(kept)
    if surviving is None or surviving.low is None or surviving.high is None:
        return Share(value, None, None)
    broken = math.fsum(collapsed) / len(collapsed) if collapsed else 0.0
    often = wilson(len(collapsed), n)
    assert often.low is not None and often.high is not None
    fall = max(0.0, surviving.value - broken)
    down = math.hypot(
        (1 - often.value) * (surviving.value - surviving.low), fall * (often.high - often.value)
    )
    up = math.hypot((1 - often.value) * (surviving.high - surviving.value), fall * (often.value - often.low))
    return Share(value, value - down, value + up)


@dataclass(frozen=True)
class CellCollapse:
    """One (model, variant), or a variant over all models (`model` is then "").

    `share`: probability of a collapse. `surviving`: mean final score of the runs that did not collapse. `mean`: mean
    over all runs, see `mean_with_collapses`; both are None over models. `test`: against the baseline; None for the
    baseline itself and without a collapse. `curve`: the survival curve; empty without a collapse.
    """

    model: str
    variant: str
    collapsed: int
    runs: int
    share: Share
    surviving: Estimate | None
    mean: Share | None
    test: LogRank | None
    curve: tuple[SurvivalPoint, ...]
    last_step: int


def cell_collapses(
    board: Scoreboard, runs: tuple[RunValues, ...], baseline: Baseline
) -> tuple[CellCollapse, ...]:
    """Every cell with a finished run; then, if there are several models, each variant over all models that have it."""
    cells = [pair for pair in board.cells if cell_runs(runs, *pair)]
    found = [_cell(runs, model, variant, [model], baseline) for model, variant in cells]
    if len(board.models) > 1:
        for variant in board.variants:
            models = [model for model in board.models if (model, variant) in cells]
            if models:
                found.append(_cell(runs, "", variant, models, baseline))
    return tuple(found)


def _cell(
    runs: tuple[RunValues, ...], model: str, variant: str, models: Sequence[str], baseline: Baseline
) -> CellCollapse:
    times = [run_times(runs, one, variant) for one in models]
    every = [run for of_model in times for run in of_model]
    collapsed = sum(run.collapsed for run in every)
    own = cell_runs(runs, model, variant)
    kept = [run.final for run in own if not run.collapsed]
    test, against = None, baseline.of(variant)
    if against is not None:
        test = logrank(
            [(mine, run_times(runs, one, against)) for mine, one in zip(times, models, strict=True)]
        )
    return CellCollapse(
        model=model,
        variant=variant,
        collapsed=collapsed,
        runs=len(every),
        share=wilson(collapsed, len(every)),
        surviving=mean_estimate(kept),
        mean=mean_with_collapses(kept, [run.final for run in own if run.collapsed]),
        test=test,
        curve=kaplan_meier(every),
        last_step=max(run.step for run in every),
    )
