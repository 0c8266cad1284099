"""The difference of two methods, paired by problem.

Both methods answer the same problems, and problems that are hard for one are mostly hard for the other. So the standard
error of the difference over other problems is that of the mean of d_i = s_i(ours) - s_i(theirs), far below that of two
separate evaluations (Miller 2024, section 4.2). It is conditional on these trained runs. For other seeds and other
problems at once, seeds and problems are crossed random effects: their variances add up, minus the interaction of seed
and problem, which both contain:

    var = var over seeds + var over problems - var of the interaction

With few seeds the interaction may be overestimated, so the result is never taken below either part. The interval adds
the squared half-widths of the parts, each with its own Student's t. Satterthwaite's degrees of freedom would trust
three seeds too much whenever they happen to agree (91 % coverage instead of 95).
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.by_problem import Counts, clustered_mean, strata_of
from cppo_lab.analysis.statistics.estimate import LEVEL, Estimate, estimate


@dataclass(frozen=True)
class ProblemDifference:
    """`problems`: the difference with its standard error over other problems, for these runs. `both`: with its error
    over other seeds and other problems; it has no interval if `seeds` (the error over seeds, for these problems) has
    none. `correlation`: of the two methods' shares by problem (None if one does not vary); near 1, pairing removes most
    of the error.
    """

    problems: Estimate
    seeds: Estimate
    both: Estimate
    correlation: float | None


def problem_difference(
    ours: FloatArray, theirs: FloatArray, benchmark_of: Counts, seeds: Estimate, paired: bool
) -> ProblemDifference:
    """The difference of two methods from their shares by run and problem, [S, P] each. `seeds` is their difference over
    seeds; `paired` says that row r of both has the same seed.
    """
    mine, other = ours.mean(axis=0), theirs.mean(axis=0)
    problems = clustered_mean(mine - other, benchmark_of)
    if paired:
        interaction = _interaction(ours - theirs, benchmark_of)
    else:
        interaction = _interaction(ours, benchmark_of) + _interaction(theirs, benchmark_of)
    return ProblemDifference(problems, seeds, _both(seeds, problems, interaction), _correlation(mine, other))


def _interaction(values: FloatArray, benchmark_of: Counts) -> float:
    """Variance of the mean over benchmarks that comes from the interaction of run and problem: mean square / (S P)."""
    runs, found, strata = len(values), 0.0, strata_of(benchmark_of)
    if runs < 2:
        return 0.0
    for own in strata:
        if len(own) < 2:
            continue
        part = values[:, own]
        rest = part - part.mean(axis=0) - part.mean(axis=1, keepdims=True) + part.mean()
        square = float((rest**2).sum()) / ((runs - 1) * (len(own) - 1))
        found += square / (runs * len(own)) / len(strata) ** 2
    return found


def _both(seeds: Estimate, problems: Estimate, interaction: float) -> Estimate:
    if seeds.error is None or problems.error is None or seeds.degrees is None or problems.degrees is None:
        return Estimate(problems.value, seeds.n, unknown=seeds.unknown or problems.unknown)
    over_seeds, over_problems = seeds.error**2, problems.error**2
    alone = max(over_problems - interaction, 0.0)  # problems alone, without the interaction with runs
    error = math.sqrt(max(over_seeds + alone, over_problems))
    half = math.hypot(_quantile(seeds.degrees) * seeds.error, _quantile(problems.degrees) * math.sqrt(alone))
    return estimate(problems.value, seeds.n, error, _degrees(half / error, seeds.degrees, problems.degrees))


def _quantile(degrees: float) -> float:
    return float(stdtrit(degrees, (1 + LEVEL) / 2))


def _degrees(quantile: float, one: float, other: float) -> float:
    """The degrees of freedom between `one` and `other` at which t has this quantile."""
    low, high = sorted((one, other))
    for _ in range(60):  # the quantile falls as the degrees rise
        middle = (low + high) / 2
        low, high = (middle, high) if _quantile(middle) > quantile else (low, middle)
    return (low + high) / 2


def _correlation(one: FloatArray, other: FloatArray) -> float | None:
    a, b = one - one.mean(), other - other.mean()
    scale = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return float(np.clip((a * b).sum() / scale, -1, 1)) if scale > 0 else None
