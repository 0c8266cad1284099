"""Planned and reached power: against studies judged by the verdicts, and what is known in closed form."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import MARGIN, Claim, Kind
from cppo_lab.analysis.statistics.collapse import share_difference
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.power import (
    MOST_SEEDS,
    STUDIES,
    Design,
    error_with,
    interval_power,
    planned_power,
    reached_power,
    shown_leads,
)
from cppo_lab.analysis.statistics.values import FinishedRuns, Score, run_values
from cppo_lab.analysis.statistics.verdicts import VerdictOutcome, judge
from tests.analysis.made_sweeps import scored
from tests.analysis.statistics.made_curves import ABOUT, ABOVE, BEST, MEAN, TIERS, flat, judged

MORE = Claim("more", "a collapses more", "main", Kind.COLLAPSE, TIERS, smallest=0.1)
SCORES = {"m": {"a": 0.32, "b": 0.30, "c": 0.29}, "n": {"a": 0.33, "b": 0.31, "c": 0.30}}
ALIKE = {"m": {"a": 0.30, "b": 0.302}, "n": {"a": 0.31, "b": 0.308}}


def drawn(
    board: Scoreboard, scores: dict[str, dict[str, float]], deviation: float, rng: np.random.Generator
) -> FinishedRuns:
    """The runs of the board with flat curves, each at a score drawn around that of its method."""
    runs = []
    for run in run_values(board):
        score = rng.normal(scores[run.model][run.variant], deviation)
        runs.append(replace(run, **dict.fromkeys(Score, score)))
    return FinishedRuns(runs)


def t_power(lead: float, error: float, degrees: int) -> float:
    """Of a one-sided t test at 2.5 %."""
    return float(stats.nct.sf(stats.t.ppf(0.975, degrees), degrees, lead / error))


@pytest.mark.parametrize(
    "claim, scores, deviation", [(MEAN, SCORES, 0.01), (BEST, SCORES, 0.01), (ABOUT, ALIKE, 0.007)]
)
def test_planned_power_is_the_share_of_studies_that_the_verdicts_support(
    claim: Claim, scores: dict[str, dict[str, float]], deviation: float
) -> None:
    rng, board = np.random.default_rng(1), scored(flat(dict.fromkeys(scores["m"], [0.3] * 4), *scores))
    supported = [
        judge(claim, board, drawn(board, scores, deviation, rng)).outcome is VerdictOutcome.SUPPORTED
        for _ in range(150)
    ]
    power = planned_power(claim, scores, deviation, 4).power
    error = (power * (1 - power) * (1 / 150 + 1 / STUDIES)) ** 0.5
    assert 0.1 < power < 0.995
    assert np.mean(supported) == pytest.approx(power, abs=3.5 * error)


@pytest.mark.parametrize(
    "claim, effect, seeds, design",
    [
        (ABOVE, 0.01, 3, Design()),
        (ABOVE, 0.02, 10, Design()),
        (ABOVE, 0.0, 5, Design()),  # the level
        (MEAN, 0.02, 4, Design(common=True)),  # two models leave as many degrees of freedom as one
    ],
)
def test_planned_power_is_that_of_a_paired_t_test(
    claim: Claim, effect: float, seeds: int, design: Design
) -> None:
    deviation, models = 0.015, "mn" if design.common else "m"
    scores = {model: {"a": 0.3 + effect, "b": 0.3} for model in models}
    exact = t_power(effect, deviation * (2 / seeds / len(models)) ** 0.5, seeds - 1)
    found = planned_power(claim, scores, deviation, seeds, design)
    assert found.power == pytest.approx(exact, abs=4 * (exact * (1 - exact) / STUDIES) ** 0.5)
    assert (found.needed is None) == (effect == 0)


@pytest.mark.parametrize("effect", [-0.02, 0.0, 0.02])
def test_planned_power_of_a_sequential_claim_is_that_of_studies_judged_by_the_verdicts(effect: float) -> None:
    seeds, studies, rng = 8, 80, np.random.default_rng(2)
    claim = replace(ABOVE, sequential=True, seeds=tuple(range(seeds)))
    board = scored(flat({"a": [0.3] * seeds, "b": [0.3] * seeds}))
    levels = {"m": {"a": 0.3 + effect, "b": 0.3}}
    verdicts = [judge(claim, board, drawn(board, levels, 0.015, rng)) for _ in range(studies)]
    planned = planned_power(claim, levels, 0.015, seeds)
    assert planned.expected is not None and planned.expected < seeds
    share, error = np.mean([verdict.outcome.holds for verdict in verdicts]), studies**-0.5
    assert share == pytest.approx(planned.power, abs=error * (2 if effect else 0.6))
    assert planned_power(claim, levels, 0.015, seeds, Design(paired=False)).expected == planned.expected
    looked = [verdict.looked for verdict in verdicts]
    assert np.mean(looked) == pytest.approx(planned.expected, abs=4 * np.std(looked) * error + 0.05)


@pytest.mark.parametrize("paired", [True, False])
def test_the_lead_that_two_seeds_show_is_that_of_the_test_which_judges_it(paired: bool) -> None:
    drawn = np.random.default_rng(0).normal(0, 0.05, (2, 40_000, 2))
    ours, theirs = drawn[0] + np.quantile(shown_leads(0.05, 2, paired), 0.8), drawn[1]
    tested = stats.ttest_rel if paired else partial(stats.ttest_ind, equal_var=False)
    shown = tested(ours, theirs, axis=1, alternative="greater").pvalue <= 0.025
    assert shown.mean() == pytest.approx(0.8, abs=0.01)


def test_the_seeds_that_it_takes() -> None:
    found = planned_power(BEST, SCORES, 0.01, 3)
    assert 3 < found.needed < MOST_SEEDS and found.comparisons == 4
    less, enough = (planned_power(BEST, SCORES, 0.01, found.needed - fewer).power for fewer in (1, 0))
    assert less < 0.8 <= enough
    assert planned_power(MEAN, SCORES, 0.01, 1).power == 0.0  # one seed shows no spread
    lacking = planned_power(ABOVE, {"m": {"a": 0.5, "c": 0.3}}, 0.01, 5)
    assert lacking.power == 0.0 and lacking.needed is None
    for scores, deviation in (({}, 0.01), (SCORES, 0.0)):
        with pytest.raises(ValueError, match="nothing to compare"):
            planned_power(ABOVE, scores, deviation, 3)


def test_reached_power_is_that_of_the_t_test() -> None:
    """Also from 5 runs on to n: the error shrinks with their root, the degrees of freedom grow."""
    for lead, n, runs in ((0.02, 3, 3), (0.02, 3, 5), (0.02, 6, 6), (0.005, 10, 5)):
        exact = t_power(lead, 0.015 / n**0.5, n - 1)
        error = error_with(Estimate(0.0, runs, 0.015 / runs**0.5, runs - 1), runs, n)
        assert interval_power(lead, None, *error) == pytest.approx(exact, abs=2e-3)


def test_the_power_of_equals_is_that_of_the_two_one_sided_tests() -> None:
    drawn = np.random.default_rng(0).normal(0, 0.015, (40_000, 6))
    half = stats.t.ppf(0.975, 5) * stats.sem(drawn, axis=1)
    inside = np.mean(np.abs(drawn.mean(1)) + half <= MARGIN)
    assert interval_power(0.0, MARGIN, 0.015 / 6**0.5, 5) == pytest.approx(inside, abs=0.01)


def test_the_power_of_a_verdict_is_by_the_spread_of_its_runs_alone() -> None:
    """Shifting a method changes the outcome and not the power."""
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(0.3, 0.01, 5), rng.normal(0.3, 0.01, 5)
    first, shifted = (judged(ABOVE, flat({"a": ours + shift, "b": theirs})).power for shift in (0.0, 0.2))
    assert first == shifted and (first.lead, first.runs) == (0.02, 5)
    assert first.power == pytest.approx(t_power(0.02, stats.sem(ours - theirs), 4), abs=2e-3)


def test_all_comparisons_have_to_hold() -> None:
    comparison = Estimate(0.0, 4, 0.01, 3)
    single, double = (reached_power(ABOVE, [comparison] * count, 4) for count in (1, 2))
    assert double.power == pytest.approx(single.power**2) and single.needed < double.needed


def test_the_power_of_shares() -> None:
    """Of 12 runs a side 2 in 10 more: the chances of all outcomes added up."""
    found = reached_power(MORE, [share_difference([(0, 12)], [(0, 12)])], 12)
    shown = [k for k in range(13) if share_difference([(k, 12)], [(0, 12)]).low > 0]
    assert found.power == pytest.approx(float(stats.binom.pmf(shown, 12, 0.2).sum()), abs=0.03)
    assert found.needed > 12
