"""Intervals and p-values of means and of sums of means, against SciPy's t tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cppo_lab.analysis.statistics.estimate import (
    NO_SPREAD,
    ONE_RUN,
    Estimate,
    combine,
    estimate,
    mean_estimate,
)

A, B = [0.31, 0.28, 0.36, 0.33], [0.30, 0.21, 0.27, 0.25, 0.29]


def made(values: list[float]) -> Estimate:
    found = mean_estimate(values)
    assert found is not None
    return found


def test_mean_against_scipy() -> None:
    found, reference = made(A), stats.ttest_1samp(A, 0.3)
    interval = reference.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value(0.3) == pytest.approx(reference.pvalue)
    assert found.p_above(0.3) == pytest.approx(stats.ttest_1samp(A, 0.3, alternative="greater").pvalue)
    assert found.p_below(0.3) == pytest.approx(stats.ttest_1samp(A, 0.3, alternative="less").pvalue)


def test_difference_of_cells_is_welchs() -> None:
    found, reference = combine([made(A), made(B)], [1, -1]), stats.ttest_ind(A, B, equal_var=False)
    assert found is not None
    interval = reference.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value() == pytest.approx(reference.pvalue)
    assert found.degrees == pytest.approx(reference.df)


def test_nothing_is_made_up() -> None:
    assert mean_estimate([]) is None
    assert combine([], []) is None
    single = made([0.5])
    assert (single.value, single.low, single.high, single.p_value()) == (0.5, None, None, None)
    assert single.unknown == ONE_RUN
    equal = made([0.1 + 0.2, 0.3, 0.3])  # differ by rounding alone
    assert (equal.half, equal.p_above(), equal.unknown) == (None, None, NO_SPREAD)
    both = combine([single, made(A)], [1, -1])
    assert both is not None and both.half is None and both.unknown == ONE_RUN
    assert estimate(0.1, 3, 0.0, 2).unknown == NO_SPREAD


def test_a_cell_without_spread_adds_none() -> None:
    both = combine([made(A), made([1.0, 1.0])], [1, -1])
    assert both is not None
    assert (both.error, both.degrees) == (pytest.approx(made(A).error), 3)


SCORES = st.lists(st.floats(0, 1), min_size=2, max_size=8)


@given(SCORES, st.floats(-1, 1), st.floats(0.1, 10), st.randoms())
def test_interval_moves_with_the_scores(values: list[float], shift: float, factor: float, random) -> None:
    before = made(values)
    moved = [factor * value + shift for value in values]
    random.shuffle(moved)
    after = made(moved)
    assert after.value == pytest.approx(factor * before.value + shift, abs=1e-9)
    if before.half is not None and after.half is not None:
        assert after.half == pytest.approx(factor * before.half, rel=1e-4, abs=1e-7)


@given(SCORES, st.floats(-1, 2))
def test_the_interval_and_the_tests_agree(values: list[float], null: float) -> None:
    found = made(values)
    if found.low is None or found.high is None:
        return
    above, below, two = found.p_above(null), found.p_below(null), found.p_value(null)
    assert above is not None and below is not None and two is not None
    if min(abs(found.low - null), abs(found.high - null)) > 1e-7:
        assert (above < 0.025) == (found.low > null)
        assert (below < 0.025) == (found.high < null)
        assert (two < 0.05) == (not found.low <= null <= found.high)
    assert above + below == pytest.approx(1)
    assert np.isfinite(found.half)
