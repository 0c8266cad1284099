"""Probabilities of a collapse: intervals against SciPy and a published example, and the table of cells by hand."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.grid import Baseline
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.collapse import (
    cell_collapses,
    mean_with_collapses,
    share_difference,
    wilson,
)
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.analysis.statistics.verdicts import VerdictOutcome, judge, reason
from tests.analysis.statistics.made_curves import board_of, broken, flat


@pytest.mark.parametrize(("collapsed", "runs"), [(0, 3), (1, 8), (3, 8), (8, 8), (1, 1)])
def test_wilsons_interval(collapsed: int, runs: int) -> None:
    theirs = stats.binomtest(collapsed, runs).proportion_ci(method="wilson")
    found = wilson(collapsed, runs)
    assert (found.low, found.high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))


def test_newcombes_published_examples() -> None:
    """Newcombe 1998, Table II, method 10."""
    for ours, theirs, low, high in (
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 20), 0.6791, 1.0),
    ):
        found = share_difference([ours], [theirs])
        assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@pytest.mark.parametrize(("ours", "theirs"), [((6, 8), (1, 8)), ((1, 8), (6, 8)), ((3, 3), (0, 3))])
@pytest.mark.parametrize("null", [0.0, 0.1, -0.4])
def test_the_p_value_is_the_level_at_which_the_interval_ends_at_the_null(
    ours: tuple[int, int], theirs: tuple[int, int], null: float
) -> None:
    found = share_difference([ours], [theirs])
    p, below = found.p_above(null), found.p_below(null)
    assert p + below == pytest.approx(1)
    assert (p <= 0.025) == (found.low >= null)
    assert (below <= 0.025) == (found.high <= null)
    if not 1e-12 < p < 1 - 1e-12:  # the interval never comes to the null
        return
    z = abs(stats.norm.ppf(p))
    a, b = (
        stats.binomtest(*side).proportion_ci(1 - 2 * stats.norm.sf(z), method="wilson")
        for side in (ours, theirs)
    )
    first, second = ours[0] / ours[1], theirs[0] / theirs[1]
    value = first - second
    if value > null:
        assert value - np.hypot(first - a.low, b.high - second) == pytest.approx(null, abs=1e-6)
    else:
        assert value + np.hypot(a.high - first, second - b.low) == pytest.approx(null, abs=1e-6)


def test_strata_are_averaged() -> None:
    """Of equal size they are one sample; others weigh the same, and have the runs that give the mean its variance."""
    found = share_difference([(2, 4), (4, 4)], [(0, 4), (1, 4)])
    whole = share_difference([(6, 8)], [(1, 8)])
    assert (found.value, found.low, found.high) == pytest.approx((whole.value, whole.low, whole.high))
    uneven = share_difference([(1, 2), (6, 6)], [(0, 4), (1, 4)])
    share, runs = (0.5 + 1) / 2, 4 / (1 / 2 + 1 / 6)
    z = stats.norm.ppf(0.975)
    roots = np.roots(
        [1 + z**2 / runs, -2 * share - z**2 / runs, share**2]
    )  # of (p - share)^2 = z^2 p (1 - p) / n
    high = stats.binomtest(1, 8).proportion_ci(method="wilson").high
    assert uneven.low == pytest.approx(uneven.value - np.hypot(share - min(roots), high - 1 / 8))


def test_the_mean_allows_for_collapses_that_were_not_seen() -> None:
    kept = [0.70, 0.74, 0.75]
    half = stats.t.ppf(0.975, 2) * np.std(kept, ddof=1) / 3**0.5
    mean, often = float(np.mean(kept)), stats.binomtest(0, 3).proportion_ci(method="wilson").high
    found = mean_with_collapses(kept, [])
    assert found is not None and found.value == pytest.approx(mean)
    assert found.low == pytest.approx(mean - np.hypot(half, mean * often))
    assert found.high == pytest.approx(mean + half)
    one = mean_with_collapses([*kept, 0.71], [0.20])
    assert one is not None and one.value == pytest.approx((sum(kept) + 0.71 + 0.20) / 5)
    assert mean_with_collapses([], []) is None
    alone = mean_with_collapses([0.7], [0.1])
    assert alone is not None and alone.low is None


def test_it_covers_where_students_interval_does_not() -> None:
    """N(73, 5) with one collapse in eight, to 20."""
    rng, inside, plain = np.random.default_rng(3), 0, 0
    truth, studies = 0.73 - 0.53 / 8, 300
    for _ in range(studies):
        broke = rng.random(5) < 1 / 8
        kept = rng.normal(0.73, 0.05, (~broke).sum()).tolist()
        found = mean_with_collapses(kept, [0.2] * int(broke.sum()))
        assert found is not None
        inside += found.low is None or found.high is None or found.low <= truth <= found.high
        every = [*kept, *[0.2] * int(broke.sum())]
        half = stats.t.ppf(0.975, 4) * np.std(every, ddof=1) / 5**0.5
        plain += abs(np.mean(every) - truth) <= half
    assert inside / studies > 0.93
    assert plain / studies < 0.76


def test_cells_and_their_tests() -> None:
    runs = flat({"dppo": [0.3, 0.31, 0.32], "grpo": [0.3]}) + [broken("grpo", seed, 0.4) for seed in (1, 2)]
    runs += flat({"dppo": [0.3, 0.31]}, "n")
    board = board_of(runs)
    found = {
        (one.model, one.variant): one for one in cell_collapses(board, run_values(board), Baseline("dppo"))
    }
    assert set(found) == {("m", "dppo"), ("m", "grpo"), ("n", "dppo"), ("", "dppo"), ("", "grpo")}
    cell = found["m", "grpo"]
    assert (cell.collapsed, cell.runs, cell.last_step) == (2, 3, 100)
    assert [(point.step, point.at_risk, point.collapses) for point in cell.curve] == [(50, 3, 2)]
    assert cell.mean is not None and cell.mean.value == pytest.approx(0.1)  # collapsed ones end at 0
    assert cell.test is not None and cell.test.p == pytest.approx(
        2 * 3 / 15
    )  # both in one half: 2 of 5 by 3 of 6
    assert found["m", "dppo"].test is None and found["n", "dppo"].curve == ()
    assert (found["", "dppo"].runs, found["", "dppo"].mean) == (5, None)


def test_a_claim_about_collapses() -> None:
    claim = Claim(
        "c", "a collapses more", "main", Kind.COLLAPSE, (("a",), ("b",)), over_models=True, smallest=0.1
    )
    levels = [0.30, 0.31, 0.29, 0.30]
    board = board_of([broken("a", seed, 0.4) for seed in range(4)] + flat({"b": levels}))
    verdict = judge(claim, board, run_values(board))
    assert verdict.outcome is VerdictOutcome.SUPPORTED and verdict.others == {}
    assert (
        "a against b in the mean over the models, +100.0 % of the runs (95 % interval +30.7 to +100.0"
        in reason(verdict)
    )
    board = board_of([broken("a", 1, 0.4), *flat({"a": levels[:1], "b": levels[:2]})])
    verdict = judge(claim, board, run_values(board))
    assert verdict.outcome is VerdictOutcome.UNDECIDED
    assert verdict.power is not None and verdict.power.lead == pytest.approx(0.2)
