"""Quantities of runs beside their scores, and claims about them, by hand."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.paired import slope_weights
from cppo_lab.analysis.statistics.values import Quantity, run_values
from cppo_lab.analysis.statistics.verdicts import (
    LENGTH,
    PREFIX_SHARE,
    Comparison,
    VerdictOutcome,
    judge,
    mean_length,
    power_question,
    reason,
    with_quantity,
)
from tests.analysis.made_sweeps import MadeRun, both
from tests.analysis.statistics.made_curves import STEPS, board_of, broken

A, B = ("a",), ("b",)


def rising(variant: str, seed: int, slope: float, model: str = "m", length: float = 0.0) -> MadeRun:
    """A score that rises from 0.1 by `slope` over the window; responses of a length."""
    curve = {step: 0.1 + slope * step / 100 for step in STEPS}
    logged = {LENGTH: {1: length, 2: length}} if length else {}
    return MadeRun(variant, model, seed, both(curve), logged)


def masked(seed: int, early: float, late: float, model: str = "m") -> MadeRun:
    shares = {step: early if step <= 30 else late for step in range(1, 120)}
    shares[119] = 50.0  # behind the window
    return MadeRun("a", model, seed, both(dict.fromkeys(STEPS, 0.3)), {PREFIX_SHARE: shares})


def only(claim: Claim, board: Scoreboard) -> tuple[VerdictOutcome, Comparison]:
    verdict = judge(claim, board, run_values(board))
    [comparison] = verdict.comparisons
    return verdict.outcome, comparison


def test_the_rise_is_from_the_first_to_the_last_part() -> None:
    board = board_of([rising("a", 0, 0.4), broken("b", 0, 0.4)])
    found = with_quantity(board, run_values(board), Quantity.RISE)
    # Steps 80, 90, 100 less 10, 20, 30. The broken one has 0.4 at 30, and is filled in with the 0 at which it ended.
    assert [run.measured for run in found] == [pytest.approx(0.4 * 0.7), pytest.approx(0.0 - 0.4)]
    assert [run.of(Quantity.RISE) for run in found] == [run.measured for run in found]


def test_a_lead_that_widens() -> None:
    claim = Claim("w", "widens", "main", Kind.SUPERIORITY, (A, B), over_models=True, score=Quantity.RISE)
    ours, theirs = [0.40, 0.42, 0.41, 0.43], [0.30, 0.33, 0.31, 0.30]
    runs = [rising("a", seed, one) for seed, one in enumerate(ours)]
    runs += [rising("b", seed, one) for seed, one in enumerate(theirs)]
    outcome, one = only(claim, board_of(runs))
    assert outcome is VerdictOutcome.SUPPORTED
    assert one.difference is not None
    differences = 0.7 * (np.array(ours) - np.array(theirs))
    assert one.difference.estimate.value == pytest.approx(differences.mean())
    assert one.p_for == pytest.approx(stats.ttest_1samp(differences, 0, alternative="greater").pvalue)


def test_masks_early_in_training() -> None:
    claim = Claim(
        "p",
        "early",
        "main",
        Kind.POSITIVE,
        (A,),
        over_models=True,
        smallest=0.01,
        score=Quantity.EARLY_PREFIX,
    )
    assert power_question(claim) == "power at 2 % of the masks"
    early = [0.8, 0.7, 0.75]
    outcome, one = only(claim, board_of([masked(seed, each, 0.1) for seed, each in enumerate(early)]))
    assert outcome is VerdictOutcome.SUPPORTED
    assert one.difference is not None and one.difference.estimate.value == pytest.approx(0.65)
    assert one.p_for == pytest.approx(
        stats.ttest_1samp(np.array(early) - 0.1, 0, alternative="greater").pvalue
    )
    outcome, _ = only(claim, board_of([masked(seed, 0.1, each) for seed, each in enumerate(early)]))
    assert outcome is VerdictOutcome.NOT_SUPPORTED
    silent = board_of([rising("a", 0, 0.1), rising("a", 1, 0.2)])
    verdict = judge(claim, silent, run_values(silent))
    assert verdict.comparisons[0].difference is None
    assert "a in the mean over the models, where its runs did not log it." in reason(verdict)


def test_a_lead_that_grows_with_the_length() -> None:
    claim = Claim("t", "grows", "main", Kind.TREND, (A, B), smallest=0.005)
    lengths = {"m": 100.0, "n": 200.0, "o": 800.0}
    leads = {"m": 0.02, "n": 0.05, "o": 0.11}
    wiggle, runs = [0.0, 0.004, -0.003, 0.002], []
    for model, length in lengths.items():
        for seed, extra in enumerate(wiggle):
            runs.append(rising("a", seed, 0.3 + leads[model] + extra, model, 3 * length))
            runs.append(rising("b", seed, 0.3, model, length))
    board = board_of(runs)
    assert mean_length(board, "n", "b") == pytest.approx(200)
    outcome, one = only(claim, board)
    assert outcome is VerdictOutcome.SUPPORTED and one.difference is not None
    final = 0.9  # mean of steps 80, 90, 100, of 100
    means = [final * (leads[model] + np.mean(wiggle)) for model in lengths]
    line = stats.linregress(np.log2(list(lengths.values())), means)
    assert one.difference.estimate.value == pytest.approx(line.slope)
    assert "points for each doubling of the length" in reason(judge(claim, board, run_values(board)))
    same = board_of([rising(name, 0, 0.3, model, 100) for name in "ab" for model in "mn"])
    verdict = judge(claim, same, run_values(same))
    assert verdict.outcome is VerdictOutcome.UNDECIDED
    assert "its models have equal response lengths" in reason(verdict)


def test_the_weights_are_those_of_least_squares() -> None:
    lengths, values = [64.0, 100.0, 900.0, 4000.0], [0.3, 0.1, 0.5, 0.2]
    weights = slope_weights(lengths)
    assert weights is not None
    slope = sum(w * value for w, value in zip(weights, values, strict=True))
    assert slope == pytest.approx(stats.linregress(np.log2(lengths), values).slope)
    assert slope_weights([64.0, 64.0]) is None and slope_weights([64.0]) is None
