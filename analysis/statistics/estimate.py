"""Estimates with their standard errors and 95 % intervals, or the reason why there are none: means, sums and
differences by Student's t, aggregates over tasks by the bootstrap, probabilities of improvement, and bands around
curves; and Holm's adjustment of p-values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from cppo_lab import schema

LEVEL = 0.95
ONE_RUN = "a single run does not show how much seeds differ"
NO_SPREAD = "without any spread between runs there is no standard error"
_SAME = 1e-9  # fractions closer than this differ by rounding alone


@dataclass(frozen=True)
class Estimate:
    """`value` over `n` runs (or pairs of runs), with `error` and `degrees` of freedom of Student's t.

    If the runs do not determine a standard error, `error` and `degrees` are None and `unknown` says why. `level`: of
    this interval alone; above LEVEL (`look_level`) it holds together with those of the other looks at a growing study,
    and p-values are adjusted in proportion. `most`: the largest distance from 0 that is possible, where the interval
    ends at the latest.
    """

    value: float
    n: int
    error: float | None = None
    degrees: float | None = None
    unknown: str = ""
    level: float = LEVEL
    most: float = math.inf

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval, before it is cut at `most`."""
        if self.error is None or self.degrees is None:
            return None
        return t_quantile(self.degrees, self.level) * self.error

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval."""
        return None if self.half is None else max(self.value - self.half, -self.most)

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval."""
        return None if self.half is None else min(self.value + self.half, self.most)

    def p_above(self, null: float = 0.0) -> float | None:
        """One-sided p-value against "the true value is `null` or less"; below 0.025 iff `low` > `null`."""
        return self._adjusted(-1, null)

    def p_below(self, null: float = 0.0) -> float | None:
        """One-sided p-value against "the true value is `null` or more"."""
        return self._adjusted(1, null)

    def _adjusted(self, side: int, null: float) -> float | None:
        if self.error is None or self.degrees is None:
            return None
        above = float(stdtr(self.degrees, -(self.value - null) / self.error))
        return min(1.0, (above if side < 0 else 1 - above) * ((1 - LEVEL) / (1 - self.level)))

    def p_value(self) -> float | None:
        """Two-sided p-value against "the true value is 0"; below 0.05 iff the interval excludes 0."""
        above, below = self.p_above(), self.p_below()
        return None if above is None or below is None else min(1.0, 2 * min(above, below))


@dataclass(frozen=True)
class SlopeEstimate(Estimate):
    """A slope over `n` models, with the error and the degrees of freedom of the wider of two intervals: by the spread
    over `seeds` alone, and by the scatter of the `models` around the line.
    """

    seeds: Estimate | None = None
    models: Estimate | None = None


def t_quantile(degrees: float, level: float = LEVEL) -> float:
    """How many standard errors the interval of this level extends to each side."""
    return float(stdtrit(degrees, (1 + level) / 2))


def estimate(value: float, n: int, error: float, degrees: float) -> Estimate:
    """An estimate with this error, or without any if the error is zero up to rounding."""
    return Estimate(value, n, unknown=NO_SPREAD) if error < _SAME else Estimate(value, n, error, degrees)


def mean_estimate(values: Sequence[float]) -> Estimate | None:
    """As `mean_of`; None for no values."""
    return mean_of(values) if values else None


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean, with error s / sqrt n and n - 1 degrees of freedom."""
    n, mean = len(values), fmean(values)
    if n == 1:
        return Estimate(mean, 1, unknown=ONE_RUN)
    return estimate(mean, n, math.sqrt(variance(values) / n), n - 1)


def combine(parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """The weighted sum of independent estimates; its degrees of freedom are Satterthwaite's.

    A part without spread adds no error. There is no interval if any part is a single run.
    """
    value = math.fsum(weight * part.value for weight, part in zip(weights, parts, strict=True))
    n = sum(part.n for part in parts)
    if any(part.unknown == ONE_RUN for part in parts):
        return Estimate(value, n, unknown=ONE_RUN)
    total, degrees = _satterthwaite(
        [
            ((weight * part.error) ** 2, part.degrees)
            for weight, part in zip(weights, parts, strict=True)
            if part.error is not None and part.degrees is not None
        ]
    )
    return estimate(value, n, math.sqrt(total), degrees)


def _satterthwaite(variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The sum of independent (variance, degrees of freedom), with its degrees of freedom; (0, 0) if nothing varies."""
    total = math.fsum(variance for variance, _ in variances)
    if not total:
        return 0.0, 0.0
    return total, total**2 / math.fsum(variance**2 / degrees for variance, degrees in variances)


def variance(values: Sequence[float]) -> float:
    """Sample variance of at least two values."""
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


_STUDIES = 100_000  # simulated: the level of all looks together then has a standard error of 0.07 points


@cache
def look_level(seeds: int) -> float:
    """The level of the interval at each look at a study of at most `seeds` seeds (a look after each from
    schema.FIRST_LOOK on), at which all intervals hold the true mean at once with LEVEL.

    Pocock's boundary (1977), which has the same nominal level at all looks, and repeated confidence intervals (Jennison
    and Turnbull, 1989). It is found for Student's t with few seeds, where the boundary for normal means is too low, by
    simulation; Student's t does not depend on the mean or the spread of the values.
    """
    values = np.random.default_rng(seeds).standard_normal((_STUDIES, seeds))
    counts = np.arange(1, seeds + 1)
    means = values.cumsum(1) / counts
    squares = np.maximum((values**2).cumsum(1) - counts * means**2, 0.0)
    looks = slice(schema.FIRST_LOOK - 1, None)
    errors = np.sqrt(squares / counts / np.maximum(counts - 1, 1))
    t = np.abs(means[:, looks]) / errors[:, looks]
    least = (2 * stdtr(counts[looks] - 1, -t)).min(1)
    return 1 - float(np.quantile(least, 1 - LEVEL))


# Aggregates of the scores of several tasks, as `rliable` defines them (Agarwal et al., 2021, arXiv 2108.13264).
#
# A task is a model with its benchmarks. `strata` holds an array `[..., runs]` per task; leading axes are resamples and
# are kept. If tasks have different numbers of runs, `iqm` gives every run the same weight, the other aggregates every
# task.

FloatArray: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Sequence[FloatArray]], FloatArray]
_TRIMMED = 0.25  # share cut off at each end for the interquartile mean


def mean(strata: Sequence[FloatArray]) -> FloatArray:
    """Mean over tasks of the mean over runs."""
    return np.asarray(np.mean(_task_means(strata), axis=-1))


def median(strata: Sequence[FloatArray]) -> FloatArray:
    """Median over tasks of the mean over runs; with one task this is the mean."""
    return np.asarray(np.median(_task_means(strata), axis=-1))


def iqm(strata: Sequence[FloatArray]) -> FloatArray:
    """Interquartile mean: the mean of the middle half of the runs of all tasks together."""
    runs = np.sort(np.concatenate(strata, axis=-1), axis=-1)
    cut = int(_TRIMMED * runs.shape[-1])
    return np.asarray(np.mean(runs[..., cut : runs.shape[-1] - cut], axis=-1))


AGGREGATES: Mapping[str, Statistic] = {"mean": mean, "iqm": iqm, "median": median}


def _task_means(strata: Sequence[FloatArray]) -> FloatArray:
    return np.stack([runs.mean(axis=-1) for runs in strata], axis=-1)


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95 % interval; None where the runs do not determine them."""

    value: float
    low: float | None
    high: float | None


def probability_of_improvement(ours: Sequence[FloatArray], theirs: Sequence[FloatArray]) -> Interval:
    """P(a run of ours scores higher than a run of theirs), averaged over tasks; a tie counts half.

    Per task it is the Mann-Whitney statistic U / (n m). The interval is Newcombe's (2006, method 5): all theta with
    |theta - estimate| <= t sqrt(V(theta)), where V is the variance of U / (n m) for exponential scores and t is
    Student's quantile with the sum of n + m - 2 degrees of freedom. Unlike a bootstrap interval it does not shrink to a
    point when every run of one side beats every run of the other.
    """
    sizes = [(len(a), len(b)) for a, b in zip(ours, theirs, strict=True)]
    differences = [a[:, None] - b for a, b in zip(ours, theirs, strict=True)]
    value = float(np.mean([np.mean((of_task > 0) + 0.5 * (of_task == 0)) for of_task in differences]))
    if any(min(size) < 2 for size in sizes):
        return Interval(value, None, None)
    low = _limit(value, sizes)
    return Interval(value, low, 1 - _limit(1 - value, [(m, n) for n, m in sizes]))


def _limit(value: float, sizes: Sequence[tuple[int, int]]) -> float:
    """The smallest theta <= `value` that is at most t standard errors below `value`, by bisection."""
    t = t_quantile(sum(n + m - 2 for n, m in sizes))
    low, high = 0.0, value
    for _ in range(60):
        theta, variance = (low + high) / 2, 0.0
        for n, m in sizes:
            half = (n + m) / 2
            inner = 1 + (half - 1) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
            variance += theta * (1 - theta) * inner / (n * m)
        far = value - theta > t * math.sqrt(variance / len(sizes) ** 2)
        low, high = (theta, high) if far else (low, theta)
    return (low + high) / 2


# Multiple comparisons: Holm's adjustment of p-values.
#
# Holm's method (1979) controls the family-wise error rate under any dependence between the comparisons; those here are
# dependent, because they share a baseline. A bootstrap of the largest t would be more powerful with many runs, but with
# few it loses control, because it ignores the uncertainty of the standard deviations: among six equally good methods it
# finds a difference in 52 % of studies with three seeds and in 17 % with ten, Holm in 4 and 5 % (docs/statistics.md).


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The adjusted p-values in the given order; reject where they are at most the level."""
    p = np.array(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * p[order]))
    return tuple(adjusted.tolist())


# The stratified bootstrap: runs are resampled within each task, and tasks are fixed.
#
# With few runs the usual percentile interval is far too narrow: resampling n runs gives (n - 1) / n of the correct
# variance, and percentiles ignore that the variance is itself an estimate. So the error here comes from rescaled
# residuals, x* = mean + sqrt(n / (n - 1)) (x_i - mean), which makes the bootstrap variance of a mean exactly s^2 / n;
# and the interval uses Student's t with Satterthwaite's degrees of freedom. For the mean this is the Student or Welch
# interval; `docs/statistics.md` has the coverage for the other statistics.

RESAMPLES = 2000


def bootstrap(
    strata: Sequence[FloatArray],
    statistic: Statistic,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
) -> Estimate:
    """The statistic with its bootstrap standard error. There is no interval if a task has a single run."""
    value, n = float(statistic(strata)), sum(len(runs) for runs in strata)
    if any(len(runs) < 2 for runs in strata):
        return Estimate(value, n, unknown=ONE_RUN)
    _, degrees = _satterthwaite([(float(np.var(runs, ddof=1)) / len(runs), len(runs) - 1) for runs in strata])
    if not degrees:
        return Estimate(value, n, unknown=NO_SPREAD)
    drawn = []  # [resamples, runs] of each task
    for runs in strata:
        size = len(runs)
        widened = runs.mean() + math.sqrt(size / (size - 1)) * (runs - runs.mean())
        drawn.append(widened[rng.integers(0, size, size=(resamples, size))])
    return estimate(value, n, float(np.std(statistic(drawn), ddof=1)), degrees)


def jackknife_error(without: FloatArray) -> float:
    """The standard error from the values that each leave out a unit."""
    n = len(without)
    return math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))


# The band around a mean curve: the pointwise uncertainty of the mean over runs.

INTERVAL = "interval"  # the 95 % interval of the mean (Student's t)
RANGE = "range"  # from the lower to the higher of two runs
FEWEST_RUNS = (
    3  # runs for an interval; with two it extends 12.7 standard errors to each side and shows nothing
)


def score_limits(
    estimate: Estimate, unit: float = 1, share: bool = True
) -> tuple[float, float] | tuple[None, None]:
    """The 95 % interval of a cell's mean score, a `share`, within 0 to 1, times `unit`; of two runs their range, as in
    a band: each of two values is the mean's standard error away from the mean. None if the runs determine no interval.
    """
    half = estimate.error if estimate.n < FEWEST_RUNS else estimate.half
    if half is None:
        return None, None
    least, most = (0.0, 1.0) if share else (-estimate.most, estimate.most)
    return unit * max(estimate.value - half, least), unit * min(estimate.value + half, most)


@dataclass(frozen=True)
class Band:
    """The mean over the runs at each step, and the band from `low` to `high` around it.

    `band`: its kind, INTERVAL or RANGE, or empty for a single run. It has zero width for a single run, and at steps
    with too few runs for its kind.
    """

    band: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def band(table: pd.DataFrame, least: float = -math.inf, most: float = math.inf) -> Band:
    """The band of a table with a row per step and a column per run; NaN where a run has no value.

    The interval is clipped to [`least`, `most`], the range of possible values; a limit beyond which a value lies is
    none.
    """
    # Sorted, so that the result does not depend on the order of the runs in the store, not even in the last digit.
    values = np.sort(table.to_numpy(dtype=np.float64), axis=1)
    runs = int(table.notna().any(axis=0).sum())
    mean = np.nanmean(values, axis=1)
    count = (~np.isnan(values)).sum(axis=1)
    low, high, kind = mean, mean, ""
    if np.nanmin(values, initial=least) < least:
        least = -math.inf
    if np.nanmax(values, initial=most) > most:
        most = math.inf
    if runs == 2:
        low, high, kind = np.nanmin(values, axis=1), np.nanmax(values, axis=1), RANGE
    elif runs >= FEWEST_RUNS:
        kind = INTERVAL
        times = np.where(count >= FEWEST_RUNS, stdtrit(np.maximum(count - 1, 1), (1 + LEVEL) / 2), 0.0)
        squares = np.nansum((values - mean[:, None]) ** 2, axis=1)
        half = times * np.sqrt(squares / np.maximum(count - 1, 1) / count)
        low, high = np.maximum(mean - half, least), np.minimum(mean + half, most)
    return Band(kind, *(tuple(map(float, part)) for part in (mean, low, high)))
