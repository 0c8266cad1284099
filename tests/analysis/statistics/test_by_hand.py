"""Edges of the statistics by hand: unequal steps of Holm's procedure, gaps among comparisons and benchmarks."""

import math

import pandas as pd
import pytest

from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.estimate import holm
from cppo_lab.analysis.statistics.values import corrected_score, run_values
from cppo_lab.analysis.statistics.verdicts import judge
from tests.analysis.made_sweeps import MadeRun, both, expect, make_data
from tests.analysis.statistics.made_curves import board_of, flat


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ((0.03, 0.01, 0.032), (0.06, 0.03, 0.06)),  # 3 * 0.01, 2 * 0.03, and 0.032 not below it
        ((0.02, 0.02), (0.04, 0.04)),
        ((0.5, 0.4, 0.01), (0.8, 0.8, 0.03)),
        ((0.6, 0.9), (1.0, 1.0)),
    ],
)
def test_an_adjusted_p_value_is_never_below_that_of_a_smaller_one(
    p_values: tuple[float, ...], adjusted: tuple[float, ...]
) -> None:
    assert holm(p_values) == pytest.approx(adjusted)


def test_a_comparison_without_a_number_makes_no_other_surer() -> None:
    """Two comparisons are two, though one of them has no spread to say how sure it is."""
    best = Claim("best", "a is best", "main", Kind.BEST, (("a",),))
    runs = flat({"a": [0.35, 0.36, 0.33], "b": [0.30, 0.31, 0.27]})
    alone = board_of(runs)
    [one] = judge(best, alone, run_values(alone)).comparisons
    single = board_of([*runs, *flat({"c": [0.2]})])
    with_gap = {each.against: each for each in judge(best, single, run_values(single)).comparisons}
    assert one.p_for is not None
    assert with_gap["b"].p_for == one.p_for == one.p_adjusted
    assert (with_gap["c"].p_for, with_gap["c"].p_adjusted) == (None, None)
    assert with_gap["b"].p_adjusted == pytest.approx(2 * one.p_for)


def test_a_step_that_lacks_a_benchmark_corrects_nothing() -> None:
    whole = pd.DataFrame({"a": [0.3, 0.9, 0.3], "b": [0.2, 0.2, 0.4]}, index=[10, 20, 30])
    gap = pd.DataFrame({"a": [0.95, math.nan], "b": [math.nan, 0.95]}, index=[40, 50])
    found = corrected_score(whole, ["a", "b"])
    assert found == pytest.approx(0.25)  # `a` where `b` is best (step 30), `b` where `a` is best (step 20)
    assert corrected_score(pd.concat([gap, whole]), ["a", "b"]) == found
    assert corrected_score(gap, ["a", "b"]) is None


def test_the_area_is_the_mean_height_of_what_was_evaluated() -> None:
    """A curve that begins late is no lower for it."""
    run = MadeRun("a", scores=both({20: 0.2, 40: 0.4, 60: 0.4}), t_stop=60)
    [found] = run_values(score_sweep(make_data([run]), expect([run])))
    assert found.area == pytest.approx((0.3 + 0.4) / 2)
