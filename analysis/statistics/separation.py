"""Which problems separate two methods, and how many problems a method solves how well.

Each problem: Fisher's exact test of the answers right under one method against the other, over all runs of each; Holm's
adjustment over the problems, so that the chance of naming any problem wrongly is at most the level. What it finds holds
for these trained runs: that other seeds would agree is seen only where every run of one is above every run of the
other, and with few seeds even that happens by chance (at three seeds each in one of ten, for equal methods).

Answers drawn with repeated seeds (`repeated_draws`) make the test err on the side of finding nothing: what two
evaluations share cancels in their difference. That holds also for several seeds of a method, as both methods share.
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
        """Whether the adjusted test finds it."""
        return self.adjusted <= 1 - LEVEL


def separations(ours: Counts, theirs: Counts, samples: int) -> tuple[Separation, ...]:
    """Every problem, in order: right answers [S, P] of `samples` of each run of both methods."""
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
    """Fisher's exact two-sided p-value: the tables with these margins that are no likelier than the one seen."""
    right = right_a + right_b
    ways = [
        comb(answers_a, count) * comb(answers_b, right - count)
        for count in range(max(0, right - answers_b), min(answers_a, right) + 1)
    ]
    seen = comb(answers_a, right_a) * comb(answers_b, right_b)
    return sum(way for way in ways if way <= seen) / sum(ways)


def solved_by_one(ours: Counts, theirs: Counts, samples: int) -> tuple[int, ...]:
    """The problems that a run of ours solved (half of its answers or more, at one validation) and no run of theirs ever
    gave one right answer to: right answers [validations of all runs, P] of `samples`.
    """
    return tuple(
        int(i) for i in np.flatnonzero((2 * ours.max(axis=0) >= samples) & (theirs.max(axis=0) == 0))
    )


def performance_profile(
    shares: FloatArray, thresholds: Sequence[float], benchmark_of: Counts
) -> tuple[Estimate, ...]:
    """Share of problems with at least each threshold of their answers right: [S, P] shares by run, mean over runs,
    error over other problems.
    """
    return tuple(
        clustered_mean((shares >= threshold - 1e-9).mean(axis=0), benchmark_of) for threshold in thresholds
    )
