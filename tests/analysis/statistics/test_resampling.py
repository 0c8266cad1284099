"""The stratified bootstrap against rliable (recorded), SciPy and closed forms."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    NO_SPREAD,
    ONE_RUN,
    bootstrap,
    combine,
    iqm,
    mean,
    mean_estimate,
    percentile_interval,
    resample,
)
from tests.analysis.statistics.test_aggregates import RLIABLE, strata


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("entry", RLIABLE)
def test_percentile_interval_is_rliables(entry: dict) -> None:
    """Both have the error of 20,000 resamples, in a distribution on a grid."""
    tasks = strata(entry["ours"])
    for index, statistic in enumerate(AGGREGATES.values()):
        low, high = percentile_interval(tasks, statistic, rng(), 20_000)
        width = entry["high"][index] - entry["low"][index]
        assert (low, high) == pytest.approx((entry["low"][index], entry["high"][index]), abs=0.05 * width)


def test_percentile_interval_is_scipys() -> None:
    values = rng(1).random(12)
    reference = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=rng(2))
    low, high = percentile_interval([values], mean, rng(3), 20_000)
    assert low == pytest.approx(reference.confidence_interval.low, abs=0.006)
    assert high == pytest.approx(reference.confidence_interval.high, abs=0.006)


def test_the_error_of_a_mean_is_the_closed_form() -> None:
    """Whatever the numbers of runs: of Welch and Satterthwaite, not the smaller one of plain resampling."""
    tasks = [rng(4).random(3), rng(5).random(5), 2 * rng(6).random(4)]
    found = bootstrap(tasks, mean, rng(7), 40_000)
    parts = [mean_estimate(list(task)) for task in tasks]
    reference = combine([part for part in parts if part is not None], [1 / 3] * 3)
    assert reference is not None
    assert found.value == pytest.approx(reference.value)
    assert found.degrees == pytest.approx(reference.degrees)
    assert found.error == pytest.approx(reference.error, rel=0.015)
    plain = np.std(mean(resample(tasks, rng(8), 40_000)))
    assert plain < 0.92 * found.error


def test_seeded() -> None:
    tasks = strata(RLIABLE[0]["ours"])
    first, again, other = (bootstrap(tasks, iqm, rng(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    state = np.random.get_state()[1].tolist()
    bootstrap(tasks, iqm, rng(1))
    assert np.random.get_state()[1].tolist() == state  # NumPy's global generator is left alone


def test_runs_stay_in_their_task() -> None:
    tasks = [np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0])]
    drawn = resample(tasks, rng(), 500)
    assert [part.shape for part in drawn] == [(500, 3), (500, 2)]
    assert [set(np.unique(part)) for part in drawn] == [{1.0, 2.0, 3.0}, {10.0, 20.0}]


def test_rescaled_runs_keep_mean_and_have_the_sample_variance() -> None:
    values = np.array([0.1, 0.4, 0.2])
    [drawn] = resample([values], rng(), 200_000, rescale=True)
    assert drawn.mean() == pytest.approx(values.mean(), abs=1e-3)
    assert drawn.var() == pytest.approx(values.var(ddof=1), rel=1e-2)


def test_no_interval_where_there_is_no_spread() -> None:
    single = bootstrap([np.array([0.1]), np.array([0.2, 0.3])], mean, rng())
    assert (single.value, single.half, single.unknown) == (pytest.approx(0.175), None, ONE_RUN)
    assert bootstrap([np.array([0.5, 0.5])], mean, rng()).unknown == NO_SPREAD
