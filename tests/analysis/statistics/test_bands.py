"""Bands against the estimate of one mean, and against SciPy."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.estimate import INTERVAL, RANGE, band, mean_estimate

NAN = math.nan


@pytest.mark.parametrize("runs", [3, 4, 7])
def test_an_interval_is_that_of_the_mean_at_each_step(runs: int) -> None:
    values = np.random.default_rng(runs).normal(0.5, 0.1, (6, runs))
    found = band(pd.DataFrame(values))
    assert found.kind == INTERVAL
    for row, mean, low, high in zip(values, found.mean, found.low, found.high, strict=True):
        expected = mean_estimate(list(row))
        assert expected is not None
        assert (mean, low, high) == pytest.approx((expected.value, expected.low, expected.high))


def test_against_scipy() -> None:
    values = [0.1, 0.4, 0.2, 0.7]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    found = band(pd.DataFrame([values]))
    assert (found.low[0], found.high[0]) == pytest.approx((low, high))


def test_two_runs_have_a_range_and_one_has_no_band() -> None:
    two = band(pd.DataFrame([[0.2, 0.4], [0.5, NAN]]))
    assert (two.kind, two.mean, two.low, two.high) == (
        RANGE,
        (pytest.approx(0.3), 0.5),
        (0.2, 0.5),
        (0.4, 0.5),
    )
    one = band(pd.DataFrame([[0.2], [0.4]]))
    assert (one.kind, one.low, one.high) == ("", (0.2, 0.4), (0.2, 0.4))


def test_steps_with_too_few_runs_have_no_width() -> None:
    found = band(pd.DataFrame([[0.1, 0.2, 0.3], [0.1, 0.2, NAN], [0.1, NAN, NAN]]))
    assert found.low[0] < found.mean[0] < found.high[0]
    assert found.low[1:] == found.mean[1:] == found.high[1:] == pytest.approx((0.15, 0.1))


def test_an_interval_ends_where_scores_end() -> None:
    found = band(pd.DataFrame([[0.0, 0.5, 1.0], [1.0, 1.0, 1.0]]), 0, 1)
    assert (found.low, found.high) == ((0.0, 1.0), (1.0, 1.0))
