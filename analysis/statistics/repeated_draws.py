"""Answers drawn with repeated sampling seeds: the dependence between the errors of two evaluations of the same
problems.

Both cores draw the answers of every validation with the same sampling seeds, whatever the step, training seed or method
(the embedded core from one generator, verl's with a seed per request). So answer j to problem i shares its random
numbers between evaluations. The closer the policies are, the more often such answers are right or wrong together; equal
policies give equal answers. Let phi be their correlation, given both probabilities of being right:

    difference of two evaluations        var(a) + var(b) - 2 phi sd(a) sd(b)       less than for fresh answers
    mean of L evaluations (or of runs)   (1 - phi) sum var / L^2 + phi (sum sd / L)^2    more than for fresh answers

Comparisons use the first: assuming phi = 0 makes their standard errors too large, never too small. The second concerns
the level of a score: more steps and more seeds remove only the share 1 - phi of the sampling error, and the variance
over seeds does not contain the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.by_problem import Counts, within_problem

Graded = NDArray[np.bool_]
Evaluations = Sequence[
    tuple[float, float]
]  # (weight, variance over other answers) of each evaluation; the weights sum to 1


@dataclass(frozen=True)
class DrawCorrelation:
    """phi with its standard error (jackknife over problems; None if only a single problem varies)."""

    value: float
    error: float | None
    problems: int

    @property
    def dependent(self) -> bool:
        """Whether phi exceeds 0 by more than two standard errors."""
        return self.error is not None and self.value > 2 * self.error


def draw_correlation(ours: Graded, theirs: Graded) -> DrawCorrelation | None:
    """phi from two evaluations graded answer by answer, [P, k] each with k > 1: the covariance of answers with the same
    draw within problems, over the variance within problems. None if no problem varies in both.
    """
    a, b = (x.astype(np.float64) - x.mean(axis=1, keepdims=True) for x in (ours, theirs))
    together = (a * b).sum(axis=1)
    return _ratio(together, ((a * a).sum(axis=1) + (b * b).sum(axis=1)) / 2)


def least_correlation(right: Counts, samples: int) -> DrawCorrelation | None:
    """A lower bound of phi for neighbouring evaluations from counts alone, `right` [V, P] of `samples` > 1.

    Two evaluations with independent answers differ by at least the two within-problem variances. Counts that differ by
    less share their draws: phi >= 1 - E (R_a - R_b)^2 / (k (w_a + w_b)). Movement of the policy in between lowers the
    bound.
    """
    counts = np.asarray(right, dtype=np.float64)
    if samples < 2 or len(counts) < 2:
        return None
    inside = within_problem(right, samples) * samples
    fresh = (inside[1:] + inside[:-1]).sum(axis=0)
    return _ratio(fresh - (np.diff(counts, axis=0) ** 2).sum(axis=0), fresh)


def _ratio(above: FloatArray, below: FloatArray) -> DrawCorrelation | None:
    """sum(above) / sum(below) over problems, with its jackknife standard error."""
    varied = below > 0
    above, below, n = above[varied], below[varied], int(varied.sum())
    if not n:
        return None
    value = float(above.sum() / below.sum())
    if n == 1:
        return DrawCorrelation(value, None, 1)
    without = (above.sum() - above) / (below.sum() - below)
    error = math.sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    return DrawCorrelation(value, error, n)


def mean_variance(evaluations: Evaluations, correlation: float = 0.0) -> float:
    """Variance over other answers of a weighted mean of evaluations of the same problems, with correlation phi between
    any two.
    """
    apart = math.fsum(weight**2 * variance for weight, variance in evaluations)
    return (1 - correlation) * apart + correlation * _together(evaluations) ** 2


def difference_variance(ours: Evaluations, theirs: Evaluations, correlation: float = 0.0) -> float:
    """Variance over other answers of the difference of two such means."""
    shared = 2 * correlation * _together(ours) * _together(theirs)
    return max(0.0, mean_variance(ours, correlation) + mean_variance(theirs, correlation) - shared)


def _together(evaluations: Evaluations) -> float:
    return math.fsum(weight * math.sqrt(variance) for weight, variance in evaluations)
