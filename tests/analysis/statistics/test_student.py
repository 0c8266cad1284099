"""Student's t in intervals, p-values and bands: against printed tables and closed forms, and at its limits."""

import math

import pandas as pd
import pytest

from cppo_lab.analysis.statistics.estimate import Estimate, band, mean_estimate

# Degrees of freedom -> the 97.5 % quantile, as tables print it.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042, 120: 1.980, 1e9: 1.960}


def closed_form(t: float, degrees: int) -> float:
    """P(T > t): Cauchy's distribution with one degree of freedom, an algebraic function with two."""
    if degrees == 1:
        return math.atan2(1, t) / math.pi
    return 1 / (2 + t * t + t * math.sqrt(2 + t * t)) if t > 0 else 0.5 - t / (2 * math.sqrt(2 + t * t))


def test_the_interval_is_as_wide_as_the_table_says() -> None:
    for degrees, quantile in TABLE.items():
        found = Estimate(10.0, 2, error=2.0, degrees=degrees)
        assert found.half == pytest.approx(2 * quantile, abs=0.001)
        assert (found.low, found.high) == pytest.approx((10 - 2 * quantile, 10 + 2 * quantile), abs=0.001)


def test_between_whole_degrees_the_interval_lies_between_theirs() -> None:
    """Satterthwaite's degrees are no whole numbers, and may be below one."""
    halves = [
        Estimate(0.0, 4, error=1.0, degrees=degrees).half for degrees in (0.7, 1, 1.5, 2, 2.9, 3, 4.4, 9)
    ]
    assert None not in halves and halves == sorted(halves, reverse=True) and len(set(halves)) == len(halves)


def test_a_p_value_is_that_of_the_closed_form() -> None:
    """At t = 1e6 p is 1e-7 or 1e-13: a small one does not come from 1 - p."""
    for degrees in (1, 2):
        for t in (-1e6, -40.0, -2.5, -0.1, 0.0, 1e-9, 0.7, 3.0, 25.0, 1e6):
            found = Estimate(t, degrees + 1, error=1.0, degrees=degrees)
            assert found.p_above() == pytest.approx(closed_form(t, degrees), rel=1e-9)
            assert found.p_below() == pytest.approx(closed_form(-t, degrees), rel=1e-9, abs=1e-14)
            assert found.p_above(2 * t) == pytest.approx(closed_form(-t, degrees), rel=1e-9)
    for t, tail in ((-1.0, 0.8413447), (0.0, 0.5), (1.959964, 0.025), (6.0, 9.865876e-10)):  # the normal's
        assert Estimate(t, 1000, error=1.0, degrees=1e9).p_above() == pytest.approx(tail, rel=1e-5)


def test_a_band_has_the_tables_width_at_every_number_of_runs() -> None:
    rows = [[0.1, 0.4, 0.2, 0.7, 0.3], [0.1, 0.4, 0.2, 0.7, math.nan], [0.1, 0.4, 0.2, math.nan, math.nan]]
    found = band(pd.DataFrame(rows))
    for row, mean, high in zip(rows, found.mean, found.high, strict=True):
        values = [value for value in row if not math.isnan(value)]
        one = mean_estimate(values)
        assert one is not None and one.error is not None
        assert high - mean == pytest.approx(TABLE[len(values) - 1] * one.error, rel=1e-3)


def test_numbers_are_pythons() -> None:
    """NumPy's would make `is True` of a comparison, and the text of a value, something else."""
    found = Estimate(0.1, 3, error=0.01, degrees=2)
    for value in (found.half, found.low, found.high, found.p_above(), found.p_below(), found.p_value()):
        assert type(value) is float
