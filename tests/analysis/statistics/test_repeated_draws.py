"""Correlation of answers with the same random numbers, against simulated and enumerated answers."""

import math

import numpy as np
import pytest

from cppo_lab.analysis.statistics.problems import (
    difference_variance,
    draw_correlation,
    least_correlation,
    mean_variance,
)


def answers(rng: np.random.Generator, chances: np.ndarray, steps: int, k: int, shared: float) -> np.ndarray:
    """[steps, P, k]: an answer takes the random number of its draw with chance sqrt(`shared`), else a fresh one."""
    common = rng.random((len(chances), k))
    fresh = rng.random((steps, len(chances), k))
    uniform = np.where(rng.random(fresh.shape) < math.sqrt(shared), common, fresh)
    drawn: np.ndarray = uniform < chances[:, None]
    return drawn


@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_it_finds_the_correlation_that_was_put_in(shared: float) -> None:
    rng = np.random.default_rng(1)
    chances = rng.beta(0.7, 1.3, 3000)
    one, other = answers(rng, chances, 2, 16, shared)
    found = draw_correlation(one, other)
    assert found is not None and found.error is not None
    assert found.value == pytest.approx(shared, abs=4 * found.error + 1e-9)
    assert found.dependent == (shared > 0)
    assert abs(found.error) < 0.02


def test_by_hand() -> None:
    one = np.array([[True, True, False, False], [True, False, False, False]])
    other = np.array([[True, False, False, False], [True, True, True, True]])
    # First problem: covariance sum 0.5, sums of squares 1 and 0.75. Second: 0; 0.75 and 0.
    found = draw_correlation(one, other)
    assert found is not None
    assert found.value == pytest.approx(0.5 / ((1 + 0.75) / 2 + 0.75 / 2))
    assert draw_correlation(one[:, :1] | True, other[:, :1] | True) is None
    equal = draw_correlation(one, one)
    assert equal is not None and equal.value == pytest.approx(1)


def test_counts_alone_bound_it_from_below() -> None:
    rng = np.random.default_rng(2)
    chances = rng.beta(0.7, 1.3, 400)
    for shared in (0.0, 0.5, 0.9):
        right = answers(rng, chances, 6, 16, shared).sum(axis=-1)
        found = least_correlation(right, 16)
        assert found is not None and found.error is not None
        assert found.value == pytest.approx(shared, abs=4 * found.error)
        moved = answers(rng, np.clip(chances + 0.1, 0, 1), 6, 16, shared).sum(axis=-1)
        mixed = least_correlation(np.stack([right[0], moved[1], right[2], moved[3]]), 16)
        assert mixed is not None and mixed.value < found.value
    assert least_correlation(right[:1], 16) is None
    assert least_correlation(np.array([[0, 1], [1, 0]]), 1) is None


@pytest.mark.parametrize("shared", [0.0, 0.4])
def test_variances_of_differences_and_means(shared: float) -> None:
    rng = np.random.default_rng(3)
    chances = np.array([0.2, 0.5, 0.9])
    scores = np.stack([answers(rng, chances, 5, 8, shared).mean(axis=(1, 2)) for _ in range(4000)])
    single = float((chances * (1 - chances)).sum()) / 8 / 9
    one, five = [(1.0, single)], [(0.2, single)] * 5
    assert difference_variance(one, one, shared) == pytest.approx(
        float((scores[:, 0] - scores[:, 1]).var()), rel=0.1
    )
    assert mean_variance(five, shared) == pytest.approx(float(scores.mean(axis=1).var()), rel=0.1)
    apart = scores[:, :2].mean(axis=1) - scores[:, 2:].mean(axis=1)
    two, three = [(0.5, single)] * 2, [(1 / 3, single)] * 3
    assert difference_variance(two, three, shared) == pytest.approx(float(apart.var()), rel=0.1)
    assert difference_variance(one, one, 1.0) == 0
    assert mean_variance(five, 1.0) == pytest.approx(single)
