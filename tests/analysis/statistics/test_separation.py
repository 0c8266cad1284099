"""Problems that separate two methods, against SciPy, and their error rate in simulated studies."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.problems import (
    fisher,
    performance_profile,
    separations,
    solved_by_one,
)


@pytest.mark.parametrize(
    "table", [(0, 16, 16, 16), (3, 16, 9, 48), (0, 8, 0, 8), (8, 8, 0, 8), (7, 20, 12, 20)]
)
def test_fishers_test_is_scipys(table: tuple[int, int, int, int]) -> None:
    a, n, b, m = table
    expected = stats.fisher_exact([[a, n - a], [b, m - b]]).pvalue
    assert fisher(a, n, b, m) == pytest.approx(expected)


def test_what_is_named() -> None:
    ours = np.array([[16, 8, 0, 9], [16, 7, 0, 8]])
    theirs = np.array([[2, 8, 0, 7], [0, 9, 0, 7]])
    first, second, third, fourth = separations(ours, theirs, 16)
    assert first.separates and first.every_run and first.adjusted == pytest.approx(4 * first.p)
    assert (first.ours, first.theirs) == (1.0, 2 / 32)
    assert not second.separates and not second.every_run
    assert third.p == 1 and not third.every_run
    assert fourth.every_run and not fourth.separates  # the order of runs alone is no finding


@pytest.mark.parametrize(("runs", "shared"), [(1, 0.0), (3, 0.0), (3, 0.8)])
def test_equal_methods_are_separated_in_fewer_than_one_study_in_twenty(runs: int, shared: float) -> None:
    """30 problems of 16 answers; `shared` of the draws have the same random numbers in all runs of both methods."""
    rng, found, studies = np.random.default_rng(4), 0, 300
    for _ in range(studies):
        chances = rng.beta(0.7, 1.3, 30)
        common = rng.random((30, 16))
        fresh = rng.random((2, runs, 30, 16))
        uniform = np.where(rng.random(fresh.shape) < shared, common, fresh)
        ours, theirs = (uniform < chances[:, None]).sum(axis=-1)
        found += any(one.separates for one in separations(ours, theirs, 16))
    assert found / studies <= 0.05 + 4 * (0.05 * 0.95 / studies) ** 0.5


def test_problems_that_only_one_solves() -> None:
    ours = np.array([[8, 7, 16, 16], [0, 0, 0, 0]])
    theirs = np.array([[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert solved_by_one(ours, theirs, 16) == (0, 3)
    assert solved_by_one(theirs, ours, 16) == ()


def test_a_profile_counts_problems() -> None:
    shares = np.array([[0.0, 0.5, 1.0, 0.25], [0.5, 0.5, 1.0, 0.0]])
    found = performance_profile(shares, (0.0, 0.25, 0.5, 1.0), np.zeros(4, dtype=int))
    assert [each.value for each in found] == [1, (0.5 + 1 + 1 + 0.5) / 4, (0.5 + 1 + 1) / 4, 0.25]
    assert found[0].error is None
    assert found[3].error == pytest.approx(0.25)
