"""The stratified bootstrap: runs are resampled within each task, and tasks are fixed.

With few runs the usual percentile interval is far too narrow: resampling n runs gives (n - 1) / n of the correct
variance, and percentiles ignore that the variance is itself an estimate. So the error here comes from rescaled
residuals, x* = mean + sqrt(n / (n - 1)) (x_i - mean), which makes the bootstrap variance of a mean exactly s^2 / n; and
the interval uses Student's t with Satterthwaite's degrees of freedom. For the mean this is the Student or Welch
interval; `docs/statistics.md` has the coverage for the other statistics.
"""

import math
from collections.abc import Sequence

import numpy as np

from cppo_lab.analysis.statistics.aggregates import FloatArray, Statistic
from cppo_lab.analysis.statistics.estimate import NO_SPREAD, ONE_RUN, Estimate, estimate

RESAMPLES = 2000


def resample(
    strata: Sequence[FloatArray], rng: np.random.Generator, resamples: int, rescale: bool = False
) -> list[FloatArray]:
    """`[resamples, runs]` per task, drawn with replacement; `rescale` widens the residuals (see the module
    docstring).
    """
    drawn = []
    for runs in strata:
        n = len(runs)
        source = runs
        if rescale and n > 1:
            source = runs.mean() + math.sqrt(n / (n - 1)) * (runs - runs.mean())
        drawn.append(source[rng.integers(0, n, size=(resamples, n))])
    return drawn


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
    squares = [(float(np.var(runs, ddof=1)) / len(runs), len(runs) - 1) for runs in strata]
    spread = math.fsum(square for square, _ in squares)
    if not spread:
        return Estimate(value, n, unknown=NO_SPREAD)
    degrees = spread**2 / math.fsum(square**2 / count for square, count in squares)
    error = float(np.std(statistic(resample(strata, rng, resamples, rescale=True)), ddof=1))
    return estimate(value, n, error, degrees)


def percentile_interval(
    strata: Sequence[FloatArray],
    statistic: Statistic,
    rng: np.random.Generator,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """The 95 % percentile interval of `rliable`, for comparison with published results."""
    low, high = np.quantile(statistic(resample(strata, rng, resamples)), [0.025, 0.975])
    return float(low), float(high)
