"""The problems that separate two methods, and the performance profile of a method over problems.

For each problem, Fisher's exact test compares the right answers of the two methods, over all runs of each. Holm's
adjustment over the problems bounds the probability of any false finding by the level. The result is conditional on
these trained runs. It extends to other seeds only if every run of one method is above every run of the other, and with
few seeds even that happens by chance (with three seeds each, for one in ten problems of equal methods).

Answers drawn with repeated seeds (`repeated_draws`) make the test conservative, because the shared part of two
evaluations cancels in their difference. This also holds with several seeds per method, since both methods share the
draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np

from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.by_problem import Counts, clustered_mean
from cppo_lab.analysis.statistics.estimate import LEVEL, Estimate
from cppo_lab.analysis.statistics.multiplicity import holm


@dataclass(frozen=True)
class Separation:
    """One problem (its index) under two methods: their shares of right answers, Fisher's two-sided p-value, the same
    after Holm's adjustment over the problems, and whether every run of one is above every run of the other.
    """

    problem: int
    ours: float
    theirs: float
    p: float
    adjusted: float
    every_run: bool

    @property
    def separates(self) -> bool:
        """Whether the adjusted test is significant."""
        return self.adjusted <= 1 - LEVEL


def separations(ours: Counts, theirs: Counts, samples: int) -> tuple[Separation, ...]:
    """The separation of every problem, in order, from the right answers [S, P] (of `samples`) of each run of both
    methods.
    """
    answers = [samples * len(runs) for runs in (ours, theirs)]
    counts = [np.asarray(runs).sum(axis=0, dtype=np.int64) for runs in (ours, theirs)]
    p_values = [
        fisher(int(a), answers[0], int(b), answers[1]) for a, b in zip(counts[0], counts[1], strict=True)
    ]
    apart = (ours.min(axis=0) > theirs.max(axis=0)) | (theirs.min(axis=0) > ours.max(axis=0))
    return tuple(
        Separation(index, float(a) / answers[0], float(b) / answers[1], p, adjusted, bool(every))
        for index, (a, b, p, adjusted, every) in enumerate(
            zip(counts[0], counts[1], p_values, holm(p_values), apart, strict=True)
        )
    )


@cache
def fisher(right_a: int, answers_a: int, right_b: int, answers_b: int) -> float:
    """Fisher's exact two-sided p-value: the total probability of the tables with these margins that are no likelier
    than the observed one.
    """
    right = right_a + right_b
    ways = [
        comb(answers_a, count) * comb(answers_b, right - count)
        for count in range(max(0, right - answers_b), min(answers_a, right) + 1)
    ]
    seen = comb(answers_a, right_a) * comb(answers_b, right_b)
    return sum(way for way in ways if way <= seen) / sum(ways)


def solved_by_one(ours: Counts, theirs: Counts, samples: int) -> tuple[int, ...]:
    """Indices of the problems that a run of ours solved (at least half of its answers right at one validation) and that
    no run of theirs ever answered right. `ours`, `theirs`: right answers [validations of all runs, P] (of `samples`).
    """
    return tuple(
        int(i) for i in np.flatnonzero((2 * ours.max(axis=0) >= samples) & (theirs.max(axis=0) == 0))
    )


def performance_profile(
    shares: FloatArray, thresholds: Sequence[float], benchmark_of: Counts
) -> tuple[Estimate, ...]:
    """For each threshold, the share of problems with at least that share of right answers. `shares` is [S, P] by run;
    the result is averaged over runs, with its standard error over other problems.
    """
    return tuple(
        clustered_mean((shares >= threshold - 1e-9).mean(axis=0), benchmark_of) for threshold in thresholds
    )
