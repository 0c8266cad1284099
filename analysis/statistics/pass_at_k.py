"""Unbiased pass@k and maj@k of a problem from n answers to it, for every k up to n.

pass@k (Chen et al. 2021, arXiv 2107.03374): the share of the k-subsets of the n answers with a right one. maj@k: the
share of the k-subsets whose most frequent answer is right, with an m-way tie counting 1 / m; it needs the extracted
answers, not only their grades. Both average over all subsets, so they are unbiased for k fresh answers.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import comb

import numpy as np

from cppo_lab.analysis.statistics.aggregates import FloatArray
from cppo_lab.analysis.statistics.by_problem import Counts


def pass_at_k(right: Counts, samples: int, k: int) -> FloatArray:
    """The probability, for each problem [P], that at least one of `k` answers is right; 1 <= `k` <= `samples`."""
    _demand(samples, k)
    by_count = [1 - Fraction(comb(samples - count, k), comb(samples, k)) for count in range(samples + 1)]
    found: FloatArray = np.array([float(chance) for chance in by_count])[np.asarray(right, dtype=np.intp)]
    return found


def majority_at_k(right: int, wrong: Sequence[int], k: int) -> float:
    """The probability that the most frequent of `k` answers is right. `right` counts the right answers, `wrong` each
    distinct wrong one. Answers that could not be extracted do not agree with each other: each is its own entry of 1.
    """
    _demand(right + sum(wrong), k)
    total = Fraction(0)
    for votes in range(1, min(right, k) + 1):
        # ways[t, m]: the number of ways to draw m wrong answers, none more than `votes` times and t of them exactly so
        # often.
        ways = {(0, 0): 1}
        for count in wrong:
            further: dict[tuple[int, int], int] = {}
            for (tied, taken), number in ways.items():
                for more in range(min(count, votes, k - votes - taken) + 1):
                    key = (tied + (more == votes), taken + more)
                    further[key] = further.get(key, 0) + number * comb(count, more)
            ways = further
        for (tied, taken), number in ways.items():
            if taken == k - votes:
                total += Fraction(comb(right, votes) * number, tied + 1)
    return float(total / comb(right + sum(wrong), k))


def _demand(samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k = {k} is not between 1 and the {samples} answers there are")
