"""Collapses: intervals and tests against SciPy, published examples and enumeration; the table of cells by hand."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cppo_lab import schema
from cppo_lab.analysis.inputs import Baseline
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.collapse import (
    cell_collapses,
    kaplan_meier,
    logrank,
    mean_with_collapses,
    share_difference,
)
from cppo_lab.analysis.statistics.values import RunValues, run_values
from cppo_lab.analysis.statistics.verdicts import VerdictOutcome
from cppo_lab.reports.health import collapse_section
from cppo_lab.reports.sections import Scored
from cppo_lab.reports.verdict_view import reason
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.analysis.statistics.made_curves import broken, flat, judged


def proportion(collapsed: int, runs: int, level: float = 0.95) -> tuple[float, float]:
    """SciPy's Wilson interval."""
    return tuple(stats.binomtest(collapsed, runs).proportion_ci(level, method="wilson"))


@pytest.mark.parametrize(
    "ours, theirs, limits",
    [
        ((56, 70), (48, 80), (0.0524, 0.3339)),  # Newcombe 1998, Table II, method 10
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
    ],
)
@pytest.mark.parametrize("null", [0.0, 0.1, -0.4])
def test_the_p_value_is_the_level_at_which_newcombes_interval_ends_at_the_null(
    ours: tuple[int, int], theirs: tuple[int, int], limits: tuple[float, float], null: float
) -> None:
    found = share_difference([ours], [theirs])
    assert (found.low, found.high) == pytest.approx(limits, abs=5e-5)
    p, below = found.p_above(null), found.p_below(null)
    assert (p + below, found.half) == (pytest.approx(1), None)
    assert (p <= 0.025, below <= 0.025) == (found.low >= null, found.high <= null)
    if not 1e-12 < p < 1 - 1e-12:  # the interval never comes to the null
        return
    first, second = ours[0] / ours[1], theirs[0] / theirs[1]
    level = 1 - 2 * stats.norm.sf(abs(stats.norm.ppf(p)))
    (a_low, a_high), (b_low, b_high) = proportion(*ours, level), proportion(*theirs, level)
    end = -np.hypot(first - a_low, b_high - second)
    if first - second <= null:
        end = np.hypot(a_high - first, second - b_low)
    assert first - second + end == pytest.approx(null, abs=1e-6)


def test_strata_are_averaged() -> None:
    """Of equal size they are one sample; others weigh the same."""
    found, whole = share_difference([(2, 4), (4, 4)], [(0, 4), (1, 4)]), share_difference([(6, 8)], [(1, 8)])
    assert (found.value, found.low, found.high) == pytest.approx((whole.value, whole.low, whole.high))
    assert share_difference([(1, 2), (6, 6)], [(0, 4), (1, 4)]).value == pytest.approx((0.5 + 0.75) / 2)


def test_the_mean_allows_for_collapses_that_were_not_seen() -> None:
    survived = [0.70, 0.74, 0.75]
    half, mean = stats.t.ppf(0.975, 2) * stats.sem(survived), np.mean(survived)
    found = mean_with_collapses(survived, [])
    low = mean - np.hypot(half, mean * proportion(0, 3)[1])
    assert (found.value, found.low, found.high) == pytest.approx((mean, low, mean + half))
    assert mean_with_collapses([*survived, 0.71], [0.20]).value == pytest.approx(3.10 / 5)
    two = mean_with_collapses([0.70, 0.95], [])
    assert (two.value, two.low, two.high) == (0.825, 0, 1)
    assert mean_with_collapses([0.7], [0.1]).low is mean_with_collapses([], []) is None
    # Collapsed runs that differ: by hand, in quadrature with the others.
    fallen, (_, high) = [0.1, 0.2, 0.24], proportion(3, 6)
    down = stats.t.ppf(0.975, 2) * stats.sem(fallen) / 2, half / 2, (mean - 0.18) * (high - 0.5)
    assert mean_with_collapses(survived, fallen).low == pytest.approx(
        (mean + 0.18) / 2 - np.linalg.norm(down)
    )


def times(text: str) -> list[RunValues]:
    """`12 20+`: a collapse at step 12, a run that ended at step 20."""
    return [
        RunValues("m", "a", 0, "+" not in word, 0.0, None, 0.0, 0.0, None, 0, 0, int(word.rstrip("+")))
        for word in text.split()
    ]


def censored(runs: list[RunValues]) -> stats.CensoredData:
    return stats.CensoredData(
        uncensored=[run.ended for run in runs if run.collapsed],
        right=[run.ended for run in runs if not run.collapsed],
    )


# The leukaemia trial of Freireich et al. (1963), the textbooks' example: 6-mercaptopurine and placebo.
TREATED = times("6 6 6 7 10 13 16 22 23 6+ 9+ 10+ 11+ 17+ 19+ 20+ 25+ 32+ 32+ 34+ 35+")
PLACEBO = times("1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23")
SMALL = (times("30 40 100+"), times("80 100+ 100+ 100+"))


@pytest.mark.parametrize("runs", [TREATED, PLACEBO, SMALL[1]])
def test_the_survival_curve_is_scipys(runs: list[RunValues]) -> None:
    theirs = stats.ecdf(censored(runs)).sf
    limits = theirs.confidence_interval(method="log-log")
    points = kaplan_meier(runs)
    assert [point.step for point in points] == sorted({run.ended for run in runs if run.collapsed})
    for point in points:
        share, low, high = (
            side.probabilities[list(theirs.quantiles).index(point.step)]
            for side in (theirs, limits.low, limits.high)
        )
        assert point.share.value == pytest.approx(share)
        expected = pytest.approx([low, high]) if share > 0 else [None, None]
        assert [point.share.low, point.share.high] == expected


def test_the_normal_approximation_is_scipys_and_none_without_a_collapse() -> None:
    test = logrank([(TREATED, PLACEBO)])
    assert not test.exact
    assert test.p == pytest.approx(stats.logrank(censored(TREATED), censored(PLACEBO)).pvalue)
    lasting = times("100+ 100+")
    assert kaplan_meier(lasting) == ()
    assert logrank([(lasting, lasting)]) is logrank([(times("30"), [])]) is None


def by_enumeration(pairs: list[tuple[list[RunValues], list[RunValues]]]) -> float:
    """The share of all divisions, stratum by stratum, whose observed less expected collapses are as far from 0."""

    def difference(both: list[RunValues], ours: tuple[int, ...]) -> float:
        total = 0.0
        for step in {run.ended for run in both if run.collapsed}:
            at_risk = [i for i, run in enumerate(both) if run.ended >= step]
            events = [i for i in at_risk if both[i].ended == step and both[i].collapsed]
            share = sum(i in ours for i in at_risk) / len(at_risk)
            total += sum((i in ours) - share for i in events)
        return total

    strata = []
    for ours, theirs in pairs:
        both = [*ours, *theirs]
        sides = itertools.combinations(range(len(both)), len(ours))
        strata.append([difference(both, side) for side in sides])
    sums = np.abs([sum(each) for each in itertools.product(*strata)])  # the first is as it was
    return float(np.mean(sums >= sums[0] - 1e-9))


@pytest.mark.parametrize(
    "pairs",
    [
        [SMALL],
        [(times("10 10 20"), times("100+ 100+ 100+"))],
        [(times("10 100+"), times("100+ 100+")), (times("30 40 60+"), times("50 60+ 60+"))],
        [(times("30 30 100+"), times("30 100+ 100+ 100+"))],
    ],
)
def test_with_few_runs_all_divisions_are_counted(
    pairs: list[tuple[list[RunValues], list[RunValues]]],
) -> None:
    test = logrank(pairs)
    assert test.exact and test.p == pytest.approx(by_enumeration(pairs))


def test_rounding_leaves_no_division_out() -> None:
    """With all five collapses on one side no division is farther from 0, and one more is as far: its mirror."""
    test = logrank([(times("10 " * 5 + "100+ " * 22), times("100+ " * 27))])
    assert test.exact and test.p == pytest.approx(2 * stats.hypergeom.pmf(5, 54, 5, 27))


def test_cells_and_their_tests() -> None:
    early = MadeRun("grpo", "m", 2, status=schema.COLLAPSED)  # before its first validation
    runs = [*flat({"dppo": [0.3, 0.31, 0.32], "grpo": [0.3]}), broken("grpo", 1, 0.4), early]
    board = scored(runs + flat({"dppo": [0.3, 0.31]}, "n"))
    found = cell_collapses(board, run_values(board), Baseline("dppo"))
    assert set(found) == {("m", "dppo"), ("m", "grpo"), ("n", "dppo"), ("", "dppo"), ("", "grpo")}
    cell = found["m", "grpo"]
    assert (cell.collapsed, cell.runs, cell.last_step) == (2, 3, 100)
    assert [(point.step, point.at_risk, point.collapses) for point in cell.curve] == [(0, 3, 1), (50, 2, 1)]
    assert cell.mean.value == pytest.approx(0.1)  # collapsed ones end at 0
    assert cell.test.p == pytest.approx(2 * 3 / 15)  # both in one half: 2 of 5 by 3 of 6
    assert found["m", "dppo"].test is None and found["n", "dppo"].curve == ()
    assert (found["", "dppo"].runs, found["", "dppo"].mean) == (5, None)


def test_a_claim_about_collapses() -> None:
    claim = Claim(
        "c", "a collapses more", "main", Kind.COLLAPSE, (("a",), ("b",)), over_models=True, smallest=0.1
    )
    levels = [0.30, 0.31, 0.29, 0.30]
    verdict = judged(claim, [broken("a", seed, 0.4) for seed in range(4)] + flat({"b": levels}))
    assert (verdict.outcome, verdict.others) == (VerdictOutcome.SUPPORTED, {})
    said = "a against b in the mean over the models, +100.00 % of the runs (95 % interval +30.72 to +100.00"
    assert said in reason(verdict)
    verdict = judged(claim, [broken("a", 1, 0.4), *flat({"a": levels[:1], "b": levels[:2]})])
    assert (verdict.outcome, verdict.power.lead) == (VerdictOutcome.UNDECIDED, pytest.approx(0.2))


def section(*runs: MadeRun) -> Mapping[str, Any]:
    """What the page says of the collapses of these runs."""
    return collapse_section(Scored("main", "Main", scored(runs, "main"), "")).view


def fell(*scores: tuple[int, float]) -> MadeRun:
    """A run that was at 0.8 in step 30, and what came then."""
    return MadeRun("a", "m", 1, both({0: 0.1, 30: 0.8, **dict(scores)}), status=schema.COLLAPSED)


def test_the_page_says_what_the_early_warning_was_worth() -> None:
    """Of the broken runs one falls at step 40 and ends at 50, the other falls and ends at once."""
    at_once, steady = fell((40, 0.0)), flat({"b": [0.5, 0.6, 0.7]})
    back = MadeRun("a", "m", 2, both({0: 0.5, 10: 0.01, 100: 0.6}))
    falling = MadeRun("b", "m", 3, both({0: 0.5, 10: 0.6, 20: 0.01}), status=schema.RUNNING)
    risen = replace(back, variant="b", seed=4, status=schema.STOPPED)
    assert section(broken("a", 0, 0.8), at_once, back, *steady, falling, risen)["summary"] == (
        "2 of 6 finished runs collapsed. The early warning came before 1 of 2 collapses, 10 steps ahead in the median. "
        "It also came in 1 of 4 runs without a collapse. Early signs of a collapse: b on m, seed 3 (running)."
    )
    for run, ahead in (
        (fell((40, 0.0), (41, 0.0)), "1 step"),
        (fell((40, 0.0), (50, 0.7), (80, 0.2), (82, 0.0), (84, 0.2), (86, 0.0)), "4 steps"),
    ):
        said = f"1 of 1 collapse, {ahead} ahead in the median. It also came in 1 of 1 run without a collapse."
        assert section(run, back)["summary"].endswith(said)
    unwarned = section(at_once, *steady)
    assert unwarned["summary"].endswith("The early warning came before 0 of 1 collapse.")
    note = unwarned["table"].notes[1]
    assert note.endswith("A dash for the baseline, and without a collapse.") and "marked" not in note
    many = [replace(fell((31 + seed, 0.0)), variant="ab"[seed % 2], seed=seed) for seed in range(40)]
    table = section(*many)["table"]
    assert table.rows[1].cells[-1].endswith(" (normal)")
    assert "or, where marked, by the normal approximation;" in table.notes[1]
