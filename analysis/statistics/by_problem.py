"""The standard error of one evaluation for which the number of right answers to each problem is known.

Miller (2024), "Adding Error Bars to Evals" (arXiv 2411.00640): problems are the independent units, and the answers to
one problem are a cluster. Let s_i be the share of right answers among k answers to problem i, over n problems, and s
the mean of the s_i:

    other problems (clustered)     sum (s_i - s)^2 / (n (n - 1))
    other answers to these         sum s_i (1 - s_i) / (k - 1) / n^2

Both are unbiased; the second is the part of the first that more answers to each problem would remove. Benchmarks are
strata: the variances of their means are added and divided by the square of their number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.estimate import Estimate, combine, mean_estimate

Counts = NDArray[np.integer]


@dataclass(frozen=True)
class EvaluationVariance:
    """Variances of the unweighted mean over benchmarks. `answers`: over other answers to the same problems; None for
    one answer per problem. `problems`: over other problems; None if a benchmark has a single one. `between`: rho, the
    share of p (1 - p) that lies between problems; None if `answers` is None or nothing varies.
    """

    answers: float | None
    problems: float | None
    between: float | None


def strata_of(benchmark_of: Counts) -> list[NDArray[np.intp]]:
    """The problems of each benchmark, as indices, from the benchmark of each problem [P]."""
    return [np.flatnonzero(benchmark_of == number) for number in np.unique(benchmark_of)]


def within_problem(right: Counts, samples: int) -> FloatArray:
    """Unbiased estimate of p_i (1 - p_i) for each problem, the variance of one answer; `samples` is at least 2."""
    shares = np.asarray(right, dtype=np.float64) / samples
    return shares * (1 - shares) * samples / (samples - 1)


def evaluation_variance(right: Counts, samples: int, benchmark_of: Counts) -> EvaluationVariance:
    """The variances of one evaluation. `right` [P]: right answers of `samples`; `benchmark_of` [P]: each problem's
    benchmark number.
    """
    strata = strata_of(benchmark_of)
    shares = np.asarray(right, dtype=np.float64) / samples
    problems = None
    if all(len(own) > 1 for own in strata):
        problems = _over_strata([float(np.var(shares[own], ddof=1)) / len(own) for own in strata])
    if samples < 2:
        return EvaluationVariance(None, problems, None)
    inside = within_problem(right, samples)
    answers = _over_strata([float(inside[own].mean()) / (len(own) * samples) for own in strata])
    return EvaluationVariance(answers, problems, _between(shares, inside, samples, strata))


def _over_strata(variances: Sequence[float]) -> float:
    return math.fsum(variances) / len(variances) ** 2


def _between(
    shares: FloatArray, inside: FloatArray, samples: int, strata: Sequence[NDArray[np.intp]]
) -> float | None:
    """The observed variance of the s_i exceeds that of the p_i by p_i (1 - p_i) / k; means over benchmarks."""
    spread = math.fsum(float(np.var(shares[own]) - inside[own].mean() / samples) for own in strata)
    noise = math.fsum(float(inside[own].mean()) for own in strata)
    total = spread + noise
    return min(1.0, max(0.0, spread / total)) if total > 0 else None


def clustered_mean(shares: FloatArray, benchmark_of: Counts) -> Estimate:
    """The mean over benchmarks of shares or differences [P], with its error over other problems (t, Satterthwaite).

    `n` is the number of problems. There is no interval if a benchmark has one problem or nothing varies.
    """
    strata = strata_of(benchmark_of)
    parts = [part for own in strata if (part := mean_estimate([float(x) for x in shares[own]])) is not None]
    found = combine(parts, [1 / len(strata)] * len(strata))
    assert found is not None, "an evaluation has problems"
    return found
