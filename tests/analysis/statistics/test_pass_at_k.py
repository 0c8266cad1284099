"""pass@k and maj@k against every subset of the answers."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cppo_lab.analysis.statistics.problems import majority_at_k, pass_at_k


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(right: int, k: int) -> None:
    graded = [True] * right + [False] * (5 - right)
    subsets = list(itertools.combinations(graded, k))
    expected = Fraction(sum(map(any, subsets)), len(subsets))
    assert pass_at_k(np.array([right]), 5, k)[0] == pytest.approx(float(expected))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(1, 7))
def test_majority_is_the_share_of_subsets_that_vote_right(right: int, wrong: list[int], k: int) -> None:
    votes = ["right"] * right + [f"wrong {i}" for i, count in enumerate(wrong) for _ in range(count)]
    if k > len(votes):
        return
    total, subsets = Fraction(0), list(itertools.combinations(votes, k))
    for subset in subsets:
        counted = Counter(subset)
        most = max(counted.values())
        leaders = [answer for answer, count in counted.items() if count == most]
        total += Fraction("right" in leaders, len(leaders))
    assert majority_at_k(right, wrong, k) == pytest.approx(float(total / len(subsets)))


def test_of_many_answers_and_bad_k() -> None:
    assert pass_at_k(np.array([0, 1, 16]), 16, 16).tolist() == [0, 1, 1]
    assert pass_at_k(np.array([4]), 16, 1)[0] == 0.25
    assert majority_at_k(9, [3, 4], 16) == 1
    assert majority_at_k(0, [3, 4], 5) == 0
    for k in (0, 17):
        with pytest.raises(ValueError, match="between 1 and the 16"):
            pass_at_k(np.array([1]), 16, k)
