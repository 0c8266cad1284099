"""The power that runs had, against simulated studies judged by the verdicts, and against closed forms."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.claims import MARGIN, Claim, Kind
from cppo_lab.analysis.statistics.collapse import share_difference
from cppo_lab.analysis.statistics.estimate import ONE_RUN, Estimate
from cppo_lab.analysis.statistics.power import Spread, reached_power, spread_power
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.analysis.statistics.verdicts import judge
from tests.analysis.statistics.made_curves import board_of, flat

ABOVE = Claim("above", "a is above b", "main", Kind.SUPERIORITY, (("a",), ("b",)))
ABOUT = Claim("about", "a is about b", "main", Kind.EQUIVALENCE, (("a",), ("b",)), MARGIN)
MORE = Claim("more", "a collapses more", "main", Kind.COLLAPSE, (("a",), ("b",)), smallest=0.1)


@pytest.mark.parametrize(("lead", "n"), [(0.02, 3), (0.02, 6), (0.005, 10)])
def test_it_is_that_of_the_t_test(lead: float, n: int) -> None:
    error = 0.015 / n**0.5
    exact = float(stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, lead / error))
    assert spread_power(lead, None, Spread(error, n - 1, n), n) == pytest.approx(exact, abs=2e-3)
    # From 5 runs on to n: the error shrinks with their root, the degrees of freedom grow.
    five = Spread(0.015 / 5**0.5, 4, 5)
    assert spread_power(lead, None, five, n) == pytest.approx(exact, abs=2e-3)


def test_of_equals_it_is_that_of_the_two_one_sided_tests() -> None:
    n, deviation, rng = 6, 0.015, np.random.default_rng(0)
    drawn = rng.normal(0, deviation, (40_000, n))
    half = stats.t.ppf(0.975, n - 1) * drawn.std(1, ddof=1) / n**0.5
    inside = np.mean(np.abs(drawn.mean(1)) + half <= MARGIN)
    assert spread_power(0.0, MARGIN, Spread(deviation / n**0.5, n - 1, n), n) == pytest.approx(
        inside, abs=0.01
    )


def test_of_a_verdict() -> None:
    """By the spread of its runs alone: shifting a method changes the outcome and not the power."""
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(0.3, 0.01, 5), rng.normal(0.3, 0.01, 5)
    found = []
    for shift in (0.0, 0.2):
        board = board_of(flat({"a": list(ours + shift), "b": list(theirs)}))
        verdict = judge(ABOVE, board, run_values(board))
        assert verdict.power is not None
        found.append(verdict.power)
    assert found[0] == found[1]
    error = np.std(ours - theirs, ddof=1) / 5**0.5
    assert found[0].power == pytest.approx(
        float(stats.nct.sf(stats.t.ppf(0.975, 4), 4, 0.02 / error)), abs=2e-3
    )
    assert (found[0].lead, found[0].runs) == (0.02, 5)


def test_all_comparisons_have_to_hold() -> None:
    one = Estimate(0.0, 4, 0.01, 3)
    single, double = reached_power(ABOVE, [one], 4), reached_power(ABOVE, [one, one], 4)
    assert single is not None and double is not None
    assert double.power == pytest.approx(single.power**2)
    assert single.needed is not None and double.needed is not None
    assert single.needed < double.needed


def test_shares() -> None:
    """Of 12 runs a side 2 in 10 more: the chances of all outcomes added up."""
    found = reached_power(MORE, [share_difference([(0, 12)], [(0, 12)])], 12)
    assert found is not None
    exact = 0.0
    for k in range(13):
        if share_difference([(k, 12)], [(0, 12)]).low > 0:
            exact += float(stats.binom.pmf(k, 12, 0.2))
    assert found.power == pytest.approx(exact, abs=0.03)
    assert found.needed is not None and found.needed > 12


@pytest.mark.parametrize(
    ("estimates", "why"),
    [
        ([Estimate(0.1, 1, unknown=ONE_RUN)], ONE_RUN),
        ([Estimate(0.1, 3, 0.01, 2), None], "one side has no finished run"),
    ],
)
def test_what_cannot_be_supported_has_none(estimates: list[Estimate | None], why: str) -> None:
    found = reached_power(ABOVE, estimates, 1)
    assert found is not None
    assert (found.power, found.needed, found.unknown) == (0.0, None, why)
    assert reached_power(ABOVE, [], 0) is None
