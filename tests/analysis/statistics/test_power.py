"""How many seeds: the approximation against simulated studies, and the answers to plain cases."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.estimate import NO_SPREAD, ONE_RUN, Estimate
from cppo_lab.analysis.statistics.power import (
    MOST,
    Seeds,
    equivalence_power,
    power,
    seeds_for_equivalence,
    seeds_for_superiority,
)


def intervals(value: float, n: int, studies: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """The ends of Student's interval in simulated studies with a spread of 1."""
    drawn = value + np.random.default_rng(n).standard_normal((studies, n))
    half = stats.t.ppf(0.975, n - 1) * drawn.std(axis=1, ddof=1) / n**0.5
    return drawn.mean(axis=1) - half, drawn.mean(axis=1) + half


@pytest.mark.parametrize(("value", "n"), [(2.0, 4), (1.5, 6), (1.0, 10), (0.5, 30), (0.2, 20)])
def test_power_in_simulated_studies(value: float, n: int) -> None:
    low, _ = intervals(value, n)
    assert power(value, 1.0, n) == pytest.approx((low > 0).mean(), abs=0.06)


@pytest.mark.parametrize(("value", "margin", "n"), [(0.0, 1.0, 12), (0.5, 1.5, 10), (0.0, 0.5, 50)])
def test_equivalence_power_in_simulated_studies(value: float, margin: float, n: int) -> None:
    low, high = intervals(value, n)
    inside = ((low > -margin) & (high < margin)).mean()
    assert equivalence_power(value, margin, 1.0, n) == pytest.approx(inside, abs=0.06)


def found(value: float, deviation: float, n: int = 4) -> Estimate:
    return Estimate(value, n, deviation / n**0.5, n - 1)


def test_seeds() -> None:
    far, near = seeds_for_superiority(found(0.05, 0.02), 0.01), seeds_for_superiority(found(0.02, 0.02), 0.01)
    assert far.count is not None and near.count is not None
    assert 2 < far.count < near.count
    assert power(0.02, 0.02, near.count) >= 0.8 > power(0.02, 0.02, near.count - 1)
    assert seeds_for_superiority(found(0.005, 0.2), 0.01) == Seeds(None)
    assert Seeds(None).words() == f"more than {MOST} seeds"
    assert Seeds(7).words() == "7 seeds"


def test_refuting_one_of_many_takes_more_and_supporting_does_not() -> None:
    for value, more in ((-0.02, True), (0.03, False)):
        one, many = (seeds_for_superiority(found(value, 0.02), 0.01, k).count for k in (1, 24))
        assert one is not None and many is not None
        assert (many > one) is more
        assert power(0.03, 0.02, many, 24 if more else 1) >= 0.8
    outside = [seeds_for_equivalence(found(0.05, 0.02), 0.02, k).count for k in (1, 24)]
    assert outside[0] is not None and outside[1] is not None and outside[0] < outside[1]


def test_it_takes_more_seeds_than_those_that_left_it_open() -> None:
    assert seeds_for_superiority(found(0.05, 0.02, n=20), 0.01) == Seeds(21)


def test_no_advantage_is_decided_by_ruling_out_the_smallest_one() -> None:
    assert seeds_for_superiority(found(-0.01, 0.02), 0.01) == seeds_for_superiority(found(0.02, 0.02), 0.01)


def test_seeds_for_equivalence() -> None:
    centre, edge = (
        seeds_for_equivalence(found(0.0, 0.02), 0.02),
        seeds_for_equivalence(found(0.01, 0.02), 0.02),
    )
    assert centre.count is not None and edge.count is not None and centre.count < edge.count
    outside = seeds_for_equivalence(found(-0.05, 0.02), 0.02)
    assert outside.count is not None
    assert power(0.03, 0.02, outside.count) >= 0.8


@pytest.mark.parametrize("why", [ONE_RUN, NO_SPREAD])
def test_without_a_spread_it_is_not_known(why: str) -> None:
    for seeds in (
        seeds_for_superiority(Estimate(0.1, 1, unknown=why), 0.01),
        seeds_for_equivalence(Estimate(0.1, 1, unknown=why), 0.02),
    ):
        assert (seeds.count, seeds.unknown, seeds.words()) == (None, why, "not known")
