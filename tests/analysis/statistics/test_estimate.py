"""Means, sums of means, aggregates, bootstrap, bands and Holm's adjustment: against SciPy, rliable (recorded, see
`tests/oracles/make_rliable.py`), printed tables, closed forms and plain loops.
"""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    INTERVAL,
    NO_SPREAD,
    ONE_RUN,
    RANGE,
    Estimate,
    band,
    bootstrap,
    combine,
    holm,
    iqm,
    look_level,
    mean,
    mean_estimate,
    probability_of_improvement,
)
from tests.analysis.statistics.made_curves import STUDIES
from tests.conftest import TESTS
from tests.oracles.statistics import holm_rejections, wins

RLIABLE = json.loads((TESTS / "oracles" / "rliable.json").read_text())
A, B = [0.31, 0.28, 0.36, 0.33], [0.30, 0.21, 0.27, 0.25, 0.29]
NAN = math.nan


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def resample(tasks: list[np.ndarray], rng: np.random.Generator, resamples: int) -> list[np.ndarray]:
    """`[resamples, runs]` of each task, drawn with replacement."""
    return [runs[rng.integers(0, len(runs), size=(resamples, len(runs)))] for runs in tasks]


def test_a_mean_and_a_difference_of_means_are_scipys_t_tests() -> None:
    single, welch = mean_estimate(A), combine([mean_estimate(A), mean_estimate(B)], [1, -1])
    for found, reference in (
        (single, stats.ttest_1samp(A, 0.0)),
        (welch, stats.ttest_ind(A, B, equal_var=False)),
    ):
        numbers = found.low, found.high, found.p_value(), found.degrees
        assert numbers == pytest.approx((*reference.confidence_interval(), reference.pvalue, reference.df))
    for name, p in (("greater", single.p_above(0.3)), ("less", single.p_below(0.3))):
        assert p == pytest.approx(stats.ttest_1samp(A, 0.3, alternative=name).pvalue)
    # NumPy's numbers would make `is True` of a comparison, and the text of a value, something else.
    assert {type(value) for value in (single.half, single.low, single.p_above(), single.p_value())} == {float}


def test_no_spread_and_no_interval_are_made_up() -> None:
    assert mean_estimate([]) is None
    single, equal = mean_estimate([0.5]), mean_estimate([0.1 + 0.2, 0.3, 0.3])  # differ by rounding alone
    tasks = [np.ones(1), np.ones(2)], [np.ones(2)]
    for found, why in (
        (single, ONE_RUN),
        (equal, NO_SPREAD),
        (combine([single, mean_estimate(A)], [1, -1]), ONE_RUN),
        (combine([equal, equal], [1, -1]), NO_SPREAD),
        (bootstrap(tasks[0], mean, rng()), ONE_RUN),
        (bootstrap(tasks[1], mean, rng()), NO_SPREAD),
    ):
        assert found.unknown == why
        assert {found.half, found.low, found.high, found.p_above(), found.p_below(), found.p_value()} == {
            None
        }
    both = combine([mean_estimate(A), equal], [1, -1])
    assert (both.error, both.degrees) == (pytest.approx(mean_estimate(A).error), 3)


def test_a_small_p_value_is_that_of_cauchys_distribution() -> None:
    """It does not come from 1 - p."""
    found = Estimate(1e12, 2, error=1.0, degrees=1)
    assert found.p_above() == pytest.approx(math.atan2(1, 1e12) / math.pi, rel=1e-6, abs=0)


@pytest.mark.parametrize("entry", RLIABLE)
def test_against_rliable(entry: dict) -> None:
    """Both percentile intervals have the error of 20,000 resamples, in a distribution on a grid."""
    ours, theirs = (list(np.array(entry[side]).T) for side in ("ours", "theirs"))  # `[runs, tasks]`
    assert list(AGGREGATES) == ["mean", "iqm", "median"]
    found = [float(statistic(ours)) for statistic in AGGREGATES.values()]
    found.append(probability_of_improvement(ours, theirs).value)
    assert found == pytest.approx([*entry["aggregates"], entry["improvement"]], abs=1e-12)
    for statistic, low, high in zip(AGGREGATES.values(), entry["low"], entry["high"], strict=True):
        interval = np.quantile(statistic(resample(ours, rng(), 20_000)), [0.025, 0.975])
        assert tuple(interval) == pytest.approx((low, high), abs=0.05 * (high - low))


@pytest.mark.parametrize("n", range(1, 12))
def test_iqm_is_scipys_trimmed_mean(n: int) -> None:
    assert float(iqm([rng(n).random(n)])) == pytest.approx(stats.trim_mean(rng(n).random(n), 0.25))


TASK = st.lists(st.integers(0, 9), min_size=2, max_size=6)


@given(st.lists(st.tuples(TASK, TASK), min_size=1, max_size=4))
def test_improvement_is_the_share_of_pairs_that_win(tasks: list[tuple[list[int], list[int]]]) -> None:
    ours, theirs = ([np.array(side, float) for side in sides] for sides in zip(*tasks, strict=True))
    found, back = probability_of_improvement(ours, theirs), probability_of_improvement(theirs, ours)
    assert found.value == pytest.approx(np.mean([wins(a, b) for a, b in tasks]))
    assert (back.value, back.low) == pytest.approx((1 - found.value, 1 - found.high), abs=1e-9)
    assert 0 <= found.low <= found.value + 1e-9 and found.value - 1e-9 <= found.high <= 1
    assert found.low < found.high
    single = probability_of_improvement([ours[0][:1]], theirs[:1])
    assert single.low is single.high is None


def test_the_bootstraps_error_of_a_mean_is_the_closed_form() -> None:
    """Whatever the numbers of runs: of Welch and Satterthwaite, not the smaller one of plain resampling."""
    tasks = [rng(4).random(3), rng(5).random(5), 2 * rng(6).random(4)]
    found = bootstrap(tasks, mean, rng(7), 40_000)
    reference = combine([mean_estimate(list(task)) for task in tasks], [1 / 3] * 3)
    assert (found.value, found.degrees) == pytest.approx((reference.value, reference.degrees))
    assert found.error == pytest.approx(reference.error, rel=0.015)
    assert np.std(mean(resample(tasks, rng(8), 40_000))) < 0.92 * found.error
    state = str(np.random.get_state())
    first, again, other = (bootstrap(tasks, iqm, rng(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert str(np.random.get_state()) == state  # NumPy's global generator is left alone


def four_models(draw: np.random.Generator, n: int) -> list[np.ndarray]:
    levels = ((0.20, 0.01), (0.30, 0.02), (0.40, 0.015), (0.50, 0.03))  # and spreads of four models
    return [draw.normal(level, spread, n) for level, spread in levels]


@pytest.mark.parametrize("name, n", [("iqm", 3), ("iqm", 5), ("iqm", 10), ("median", 3), ("median", 10)])
def test_aggregates_over_four_models(name: str, n: int) -> None:
    """Their 95 % intervals cover the truth in 93 to 97 % of simulated studies; with few studies, within four standard
    errors of 95 %. `benchmarks/coverage.py` measures more cases.
    """
    statistic, draw = AGGREGATES[name], rng(n)
    truth = float(statistic(four_models(rng(), 400_000)))
    found = [bootstrap(four_models(draw, n), statistic, draw, 200) for _ in range(STUDIES)]
    covered = np.mean([estimate.low <= truth <= estimate.high for estimate in found])
    assert covered == pytest.approx(0.95, abs=max(0.02, 4 * (0.95 * 0.05 / STUDIES) ** 0.5))


@given(st.lists(st.floats(0, 1), max_size=12), st.sampled_from([0.01, 0.05, 0.3]))
@example([0.03, 0.01, 0.032], 0.05)  # 0.032 is not rejected, since 2 * 0.03 is not
def test_holm_rejects_as_published(p_values: list[float], level: float) -> None:
    adjusted = holm(p_values)
    assert max(adjusted, default=1) <= 1
    near = any(abs(p - level) < 1e-12 for p in adjusted)  # level / m is rounded in one, m p in the other
    assert near or [p <= level for p in adjusted] == holm_rejections(p_values, level)


@pytest.mark.parametrize("runs", [3, 4, 7])
def test_a_band_is_the_interval_of_the_mean_at_each_step(runs: int) -> None:
    """Of the runs that are there; too few have no width."""
    values = rng(runs).normal(0.5, 0.1, (6, runs))
    values[0, 1:] = values[1, 2:] = values[2, 3:] = NAN
    found = band(pd.DataFrame(values))
    assert found.band == INTERVAL
    for row, *ends in zip(values, found.mean, found.low, found.high, strict=True):
        expected = mean_estimate([value for value in row if not math.isnan(value)])
        wide = expected.n > 2
        assert ends == pytest.approx(
            [expected.value, *((expected.low, expected.high) if wide else (expected.value,) * 2)]
        )


def test_bands_of_few_runs_and_at_the_ends_of_scores() -> None:
    two = band(pd.DataFrame([[0.2, 0.4], [0.5, NAN]]))
    assert (two.band, two.low, two.high) == (RANGE, (0.2, 0.5), (0.4, 0.5))
    single = band(pd.DataFrame([[0.2], [0.4]]))
    assert (single.band, single.low, single.high) == ("", (0.2, 0.4), (0.2, 0.4))
    clipped = band(pd.DataFrame([[0.0, 0.5, 1.0], [1.0, 1.0, 1.0]]), 0, 1)
    assert (clipped.low, clipped.high) == ((0.0, 1.0), (1.0, 1.0))
    wide = band(pd.DataFrame([[0.0, 0.5, 1.1]]), 0, 1)  # a reward of the user's may go beyond 1
    assert wide.low == (0.0,) and wide.high[0] > 1.3


@pytest.mark.parametrize("most", [8, 20])
@pytest.mark.parametrize("spread", [(1.0, 1.0), (1.0, 5.0)], ids=["equal", "unequal"])
def test_a_look_after_every_seed_keeps_the_level(most: int, spread: tuple[float, float]) -> None:
    """SciPy's t test, from the fourth seed on, of twins, whose differences are 0 in truth; at the margin of a claim as
    at 0: no estimate depends on where.
    """
    ours, theirs = (rng(seed).normal(0, width, (10_000, most)) for seed, width in enumerate(spread))
    sign = np.zeros(10_000)
    for n in range(most, 3, -1):  # the earliest look is the last to be written
        test = stats.ttest_1samp((ours - theirs)[:, :n], 0.0, axis=1)
        decided = test.pvalue <= 1 - look_level(most)
        sign[decided] = np.sign(test.statistic[decided])
    assert (sign != 0).mean() == pytest.approx(
        0.05, abs=4 * (0.05 * 0.95 * (1 / 10_000 + 1 / 100_000)) ** 0.5
    )
    assert (sign > 0).mean() == pytest.approx(0.025, abs=4 * (0.025 * 0.975 / 10_000) ** 0.5)
