"""Scores and quantities of runs on curves small enough to check by eye, and claims about the quantities."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cppo_lab import schema
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.values import (
    Quantity,
    RunValues,
    Score,
    corrected_score,
    held_out_best,
    run_values,
)
from cppo_lab.analysis.statistics.verdicts import (
    LENGTH,
    PREFIX_SHARE,
    VerdictOutcome,
    mean_length,
    with_quantity,
)
from cppo_lab.reports.verdict_view import power_question, reason
from tests.analysis.made_sweeps import MadeRun, both, scored
from tests.analysis.statistics.made_curves import STEPS, broken, judged
from tests.oracles.statistics import held_out


def values(
    scores: dict[str, dict[int, float]], t_stop: int | None = 100, status: str = schema.DONE
) -> RunValues:
    [run] = run_values(scored([MadeRun("a", scores=scores, status=status, t_stop=t_stop)]))
    return run


@pytest.mark.parametrize(
    "curve, final, area",
    [
        # T_stop 20: the last 30 % begins after 14, so it holds 16, 18 and 20.
        # Broke before: all three count as it ended, and the area goes on to the end.
        ({0: 0.2, 6: 0.9, 8: 0.1, 10: 0.1}, 0.1, (3.3 + 1 + 0.2 + 1) / 20),
        # Inside: one is missing.
        ({0: 0.2, 6: 0.9, 14: 0.9, 16: 0.3, 18: 0.1}, 0.5 / 3, (3.3 + 7.2 + 1.2 + 0.4 + 0.2) / 20),
        # None is missing.
        ({0: 0.2, 6: 0.9, 14: 0.9, 16: 0.9, 18: 0.06, 20: 0.09}, 1.05 / 3, (3.3 + 9 + 0.96 + 0.15) / 20),
        # A gradient broke while the score was high: back where it began.
        ({0: 0.2, 2: 0.8, 4: 0.85}, 0.2, (1 + 1.65 + 1.05 + 2.8) / 20),
    ],
)
def test_a_collapsed_run_counts_with_the_score_it_ended_at(
    curve: dict[int, float], final: float, area: float
) -> None:
    run = values(both(curve), 20, schema.COLLAPSED)
    assert run.collapsed
    assert (run.best, run.final, run.area) == pytest.approx((max(curve.values()), final, area))


@pytest.mark.parametrize(
    "curve, t_stop, area",
    [
        ({0: 0.0, 10: 0.4, 20: 0.4, 40: 0.0, 50: 0.9}, 40, (2.0 + 4.0 + 4.0) / 40),
        ({10: 0.3}, 100, 0.3),
        ({20: 0.2, 40: 0.4, 60: 0.4}, 60, (0.3 + 0.4) / 2),  # that begins late is no lower for it
    ],
)
def test_area_is_the_mean_height(curve: dict[int, float], t_stop: int, area: float) -> None:
    assert values(both(curve), t_stop).area == pytest.approx(area)


def test_what_lies_beyond_t_stop_does_not_count() -> None:
    curve = {0: 0.1, 80: 0.3, 90: 0.2, 100: 0.4, 110: 0.9, 120: 0.9}
    for t_stop, expected in ((100, (0.4, 0.3, 4, 3)), (None, (0.9, 2.4 / 4, 6, 4))):
        run = values(both(curve), t_stop)
        assert (run.best, run.final, run.evaluations, run.late) == pytest.approx(expected)


def test_a_lucky_peak_of_one_benchmark_is_corrected() -> None:
    """`a` is scored where `b` is best (step 30), `b` where `a` is best (step 20)."""
    curves = {"a": {10: 0.3, 20: 0.9, 30: 0.3}, "b": {10: 0.2, 20: 0.2, 30: 0.4}}
    run = values(curves)
    assert (run.best, run.corrected) == pytest.approx((0.55, (0.3 + 0.2) / 2))
    gap = pd.DataFrame({"a": {40: 0.95}, "b": {50: 0.95}})  # corrects nothing
    assert corrected_score(pd.concat([gap, pd.DataFrame(curves)]), ["a", "b"]) == pytest.approx(0.25)
    assert corrected_score(gap, ["a", "b"]) is None
    for single in ({"a": {10: 0.3, 20: 0.4}}, {schema.MEAN: {10: 0.3, 20: 0.4}}):
        run = values(single)
        assert run.of(Score.CORRECTED) is None and run.of(Score.BEST) == pytest.approx(0.4)


@pytest.mark.parametrize("benchmarks", [2, 3, 5])
def test_the_corrected_score_against_a_loop(benchmarks: int) -> None:
    scores = np.random.default_rng(benchmarks).integers(0, 8, (40, 12, benchmarks)) / 480
    assert held_out_best(scores).tolist() == pytest.approx([held_out(run.tolist()) for run in scores])


A, B = ("a",), ("b",)


def rising(variant: str, seed: int, slope: float, model: str = "m", length: float = 0.0) -> MadeRun:
    """A score that rises from 0.1 by `slope` over the window; responses of a length."""
    curve = {step: 0.1 + slope * step / 100 for step in STEPS}
    return MadeRun(variant, model, seed, both(curve), {LENGTH: {1: length, 2: length}} if length else {})


def test_a_lead_that_widens() -> None:
    """The rise is of steps 80, 90, 100 less 10, 20, 30. A collapsed run is filled in with the 0 at which it ended."""
    board = scored([rising("a", 0, 0.4), broken("b", 0, 0.4)])
    runs = with_quantity(board, run_values(board), Quantity.RISE)
    assert [run.of(Quantity.RISE) for run in runs] == pytest.approx([0.4 * 0.7, 0.0 - 0.4])


def masked(seed: int, early: float, late: float) -> MadeRun:
    shares = {step: early if step <= 30 else late for step in range(1, 120)}
    shares[119] = 50.0  # behind the window
    return MadeRun("a", "m", seed, both(dict.fromkeys(STEPS, 0.3)), {PREFIX_SHARE: shares})


def test_masks_early_in_training() -> None:
    about = {"over_models": True, "smallest": 0.01, "score": Quantity.EARLY_PREFIX}
    claim = Claim("p", "early", "main", Kind.POSITIVE, (A,), **about)
    assert power_question(claim) == "power at 2 % of the masks"
    shares = [0.8, 0.7, 0.75]
    verdict = judged(claim, [masked(seed, share, 0.1) for seed, share in enumerate(shares)])
    assert verdict.outcome is VerdictOutcome.SUPPORTED
    deciding, p = verdict.deciding, stats.ttest_1samp(shares, 0.1, alternative="greater").pvalue
    assert (deciding.difference.estimate.value, deciding.p_for) == pytest.approx((0.65, p))
    late = judged(claim, [masked(seed, 0.1, share) for seed, share in enumerate(shares)])
    assert late.outcome is VerdictOutcome.NOT_SUPPORTED
    silent = judged(claim, [rising("a", 0, 0.1), rising("a", 1, 0.2)])
    assert silent.deciding.difference is None
    assert "a in the mean over the models, where its runs did not log it." in reason(silent)


def test_a_lead_that_grows_with_the_length() -> None:
    claim = Claim("t", "grows", "main", Kind.TREND, (A, B), smallest=0.005)
    lengths, leads = {"m": 100.0, "n": 200.0, "o": 800.0}, {"m": 0.02, "n": 0.05, "o": 0.11}
    wiggle, runs = [0.0, 0.004, -0.003, 0.002], []
    for model, length in lengths.items():
        for seed, extra in enumerate(wiggle):
            runs.append(rising("a", seed, 0.3 + leads[model] + extra, model, 3 * length))
            runs.append(rising("b", seed, 0.3, model, length))
    assert mean_length(scored(runs), "n", "b") == pytest.approx(200)
    verdict = judged(claim, runs)
    assert verdict.outcome is VerdictOutcome.SUPPORTED
    means = [0.9 * (lead + np.mean(wiggle)) for lead in leads.values()]  # of steps 80, 90, 100
    slope = stats.linregress(np.log2(list(lengths.values())), means).slope
    assert verdict.deciding.difference.estimate.value == pytest.approx(slope)
    assert "points for each doubling of the length" in reason(verdict)
    same = judged(claim, [rising(name, 0, 0.3, model, 100) for name in "ab" for model in "mn"])
    assert same.outcome is VerdictOutcome.UNDECIDED
    assert "its models have equal response lengths" in reason(same)
