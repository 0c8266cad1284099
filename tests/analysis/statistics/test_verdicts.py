"""Verdicts on made sweeps whose truth is plain, and the claims' table against the shipped sweeps."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cppo_lab.analysis.statistics.claims import CLAIMS, MARGIN, SMALLEST, Claim, Kind, named, pairs
from cppo_lab.analysis.statistics.values import Score, run_values
from cppo_lab.analysis.statistics.verdicts import (
    Verdict,
    VerdictOutcome,
    judge,
    power_words,
    reason,
    verdicts,
    word_of_comparison,
)
from tests.analysis.made_sweeps import MadeRun
from tests.analysis.statistics.made_curves import board_of, broken, flat

SWEEPS = Path(__file__).parents[3] / "sweeps"
BASE = [0.300, 0.304, 0.297, 0.302]
ABOVE = Claim("above", "a is above b", "main", Kind.SUPERIORITY, (("a",), ("b",)))
ABOUT = Claim("about", "a is about b", "main", Kind.EQUIVALENCE, (("a",), ("b",)), MARGIN)
BEST = Claim("best", "a is best", "main", Kind.BEST, (("a",),))


def judged(claim: Claim, runs: list[MadeRun], gaps: tuple[MadeRun, ...] = ()) -> Verdict:
    board = board_of(runs, claim.sweep, gaps)
    return judge(claim, board, run_values(board))


def moved(shift: float, *wiggle: float) -> list[float]:
    """BASE with a shift, and a wiggle per seed."""
    return [
        score + shift + extra
        for score, extra in zip(BASE, wiggle or (0.002, -0.001, -0.002, 0.001), strict=True)
    ]


@pytest.mark.parametrize(
    ("shift", "outcome", "word", "said"),
    [
        (0.05, VerdictOutcome.SUPPORTED, "better", "It holds: a against b"),
        (-0.05, VerdictOutcome.NOT_SUPPORTED, "worse", "1 of 1 comparisons contradict it; the strongest:"),
        (0.0, VerdictOutcome.NOT_SUPPORTED, "no relevant difference", "1 of 1 comparisons show no relevant advantage;"),
        (0.007, VerdictOutcome.SMALL, "no relevant difference", "It holds, but the effect is below"),
    ],
)  # fmt: skip
def test_superiority(shift: float, outcome: VerdictOutcome, word: str, said: str) -> None:
    """A tie is no contradiction."""
    verdict = judged(ABOVE, flat({"a": moved(shift), "b": BASE}))
    assert verdict.outcome is outcome
    [comparison] = verdict.comparisons
    assert comparison.difference is not None and comparison.difference.paired
    assert comparison.difference.estimate.value == pytest.approx(shift)
    assert verdict.deciding is comparison
    assert word_of_comparison(ABOVE, comparison) == word
    assert reason(verdict).startswith(said)


@pytest.mark.parametrize(
    ("shift", "outcome"),
    [
        (0.0, VerdictOutcome.SUPPORTED),
        (-0.012, VerdictOutcome.SUPPORTED),
        (0.05, VerdictOutcome.NOT_SUPPORTED),
        (-0.05, VerdictOutcome.NOT_SUPPORTED),
        (0.02, VerdictOutcome.UNDECIDED),
    ],
)
def test_equivalence(shift: float, outcome: VerdictOutcome) -> None:
    assert judged(ABOUT, flat({"a": moved(shift), "b": BASE})).outcome is outcome


def test_noise_leaves_it_undecided_and_one_number_says_how_many_seeds_it_takes() -> None:
    wild = moved(0.05, 0.05, -0.04, 0.03, -0.04)
    for claim in (ABOVE, ABOUT):
        verdict = judged(claim, flat({"a": wild, "b": BASE}))
        assert verdict.outcome is VerdictOutcome.UNDECIDED
        assert word_of_comparison(claim, verdict.comparisons[0]) == "not decided"
        assert verdict.power is not None and verdict.power.needed is not None and verdict.power.needed > 4
        assert power_words(verdict.power).endswith(f"; 0.8 takes {verdict.power.needed} seeds")
        assert "95 % interval" in reason(verdict)


def test_one_seed_decides_nothing_however_large_the_difference() -> None:
    verdict = judged(ABOVE, flat({"a": [0.9], "b": [0.1]}))
    assert verdict.outcome is VerdictOutcome.UNDECIDED
    assert set(verdict.others.values()) == {VerdictOutcome.UNDECIDED}
    assert power_words(verdict.power) == "none: a single run does not show how much seeds differ"
    text = reason(verdict)
    assert "a against b on m, +80.0 points, without an interval: a single run does not show" in text


def test_best_of_all_takes_every_comparison_on_every_model() -> None:
    good = {"a": moved(0.05), "b": BASE, "c": moved(-0.02, 0.001, 0.0, -0.001, 0.0)}
    assert judged(BEST, flat(good, "m") + flat(good, "n")).outcome is VerdictOutcome.SUPPORTED
    one_bad = {"a": moved(0.05), "b": moved(0.1, 0.001, -0.001, 0.002, 0.0)}
    verdict = judged(BEST, flat(good, "m") + flat(one_bad, "n"))
    assert verdict.outcome is VerdictOutcome.NOT_SUPPORTED
    assert verdict.deciding is not None
    assert (verdict.deciding.model, verdict.deciding.against) == ("n", "b")
    assert [each.outcome.value for each in verdict.comparisons] == ["supported", "supported", "not supported"]
    assert "1 of 3 comparisons contradict it" in reason(verdict)
    assert "on n" in reason(verdict)


def test_no_adjustment_to_support_all_and_holms_to_refute_any() -> None:
    """Each of four comparisons alone is just refuted (p about 0.02): together they are not."""
    edge = [0.0035, -0.0035, 0.0045, -0.0045]
    level = SMALLEST - 0.0075
    alone = judged(ABOVE, flat({"a": moved(level, *edge), "b": BASE}))
    assert alone.outcome is VerdictOutcome.NOT_SUPPORTED
    p = alone.comparisons[0].p_against
    assert p is not None and 0.025 / 4 < p < 0.025
    others = dict.fromkeys(("b", "c", "d", "e"), BASE)
    assert judged(BEST, flat({"a": moved(level, *edge), **others})).outcome is VerdictOutcome.UNDECIDED
    sure = judged(BEST, flat({"a": moved(0.0085, *edge), **others}))  # each p_for about 0.02
    assert sure.outcome is VerdictOutcome.SUPPORTED
    worst = sure.comparisons[0]
    assert worst.p_for is not None and worst.p_adjusted is not None
    assert worst.p_for <= 0.025 < worst.p_adjusted == pytest.approx(4 * worst.p_for)


def test_a_small_effect_is_supported_but_named_and_the_smallest_decides() -> None:
    """All comparisons hold; the one whose advantage of a point is excluded gives the claim its outcome."""
    levels = {"a": moved(0.05), "b": BASE, "c": moved(0.043, 0.001, 0.0, -0.001, 0.0)}
    verdict = judged(BEST, flat(levels))
    assert verdict.outcome is VerdictOutcome.SMALL and verdict.outcome.holds
    assert verdict.deciding is not None and verdict.deciding.against == "c"
    assert "All 2 comparisons hold, but in 1 the effect is below the smallest relevant effect" in reason(
        verdict
    )
    [alone] = [judged(ABOVE, flat({"a": moved(0.007), "b": BASE}))]
    assert "It holds, but the effect is below the smallest relevant effect:" in reason(alone)


def test_a_claim_behind_a_small_effect_is_confirmatory() -> None:
    """A small effect has passed the test of the claim before it."""
    runs = flat({"a": moved(0.007), "b": BASE})
    chain = [ABOVE, replace(ABOVE, key="next", after="above")]
    first, second = verdicts({"main": board_of(runs, "main")}, chain)
    assert (first.outcome, second.after) == (VerdictOutcome.SMALL, None)


def test_ordering_compares_neighbouring_tiers() -> None:
    [claim] = [claim for claim in CLAIMS if claim.key == "mechanisms"]
    cppo, weight, budget, dppo = "cppo", "cppo_no_prefix_budget", "cppo_no_position_weight", "dppo"
    assert set(pairs(claim, (cppo, weight, budget, dppo))) == {
        (cppo, weight), (cppo, budget), (weight, dppo), (budget, dppo),
    }  # fmt: skip
    levels = {
        cppo: moved(0.1, 0.0, 0.001, 0.0, -0.001),
        weight: moved(0.05),
        budget: moved(0.04, -0.001, 0.001, 0.002, 0.0),
        dppo: BASE,
    }
    assert judged(claim, flat(levels)).outcome is VerdictOutcome.SUPPORTED
    swapped = levels | {cppo: levels[weight], weight: levels[cppo]}
    assert judged(claim, flat(swapped)).outcome is VerdictOutcome.NOT_SUPPORTED


def test_a_missing_side_is_a_gap_not_a_success() -> None:
    runs = flat({"a": moved(0.05), "b": BASE})
    gap = MadeRun("c", "m", 0)
    verdict = judged(BEST, runs, (gap,))
    assert (verdict.outcome, verdict.provisional) == (VerdictOutcome.UNDECIDED, True)
    assert verdict.deciding is not None and verdict.deciding.against == "c"
    assert "one side has no finished run" in reason(verdict)
    assert "missing, unfinished or not part of this report" in reason(verdict)
    undeclared = judged(ABOVE, flat({"a": BASE}))
    assert (undeclared.outcome, undeclared.comparisons[0].difference) == (VerdictOutcome.UNDECIDED, None)
    alone = judged(BEST, flat({"a": BASE}))
    assert (alone.outcome, alone.comparisons) == (VerdictOutcome.UNDECIDED, ())
    assert "Nothing of sweep 'main' can be compared" in reason(alone)


def test_a_collapse_counts_in_the_verdict_and_not_in_the_best_step() -> None:
    tops = [0.402, 0.399, 0.401, 0.404]
    runs = flat({"a": moved(0.05)}) + [broken("b", seed, top) for seed, top in enumerate(tops)]
    verdict = judged(ABOVE, runs)
    assert verdict.outcome is VerdictOutcome.SUPPORTED
    assert verdict.others[Score.BEST] is VerdictOutcome.NOT_SUPPORTED
    assert set(verdict.others) == set(Score) - {Score.FINAL}


def test_every_claim_gets_a_verdict() -> None:
    board = board_of(flat({"cppo": moved(0.05), "dppo": BASE}))
    found = verdicts({"main": board})
    assert [verdict.claim for verdict in found] == list(CLAIMS)
    supported = {verdict.claim.key for verdict in found if verdict.outcome is VerdictOutcome.SUPPORTED}
    assert supported == {"cppo_mean", "cppo_each", "cppo_best"}
    whys = {one.claim.key: one.comparisons[0].why for one in found if one.comparisons}
    assert whys["prefix_early"] == "its runs did not log it"
    assert whys["cppo_horizon"] == "its runs did not log the length of their responses"
    assert whys["cispo_collapse"] == "one side has no finished run"
    [widens] = [verdict for verdict in found if verdict.claim.key == "cppo_widens"]
    [one] = widens.comparisons  # flat curves: no lead widens, and nothing scatters
    assert one.difference is not None and one.difference.estimate.value == pytest.approx(0.0)
    [words] = [reason(verdict) for verdict in found if verdict.claim.key == "kl_above"]
    assert words == "Nothing of sweep 'kl_vs_tv' can be compared yet."


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_claims_are_about_what_the_sweeps_declare(claim: Claim) -> None:
    declared = yaml.safe_load((SWEEPS / f"{claim.sweep}.yaml").read_text(encoding="utf-8"))["variants"]
    assert {variant for tier in claim.tiers for variant in tier} <= set(declared)
    assert (claim.margin is None) == (claim.kind is not Kind.EQUIVALENCE)
    assert claim.compares_scores or claim.sweep == "main"  # what training logged is read for it alone
    assert pairs(claim, tuple(declared))


def test_the_papers_names() -> None:
    assert named("cppo", ("cppo_tv", "cppo_kl")) == "cppo_tv"
    assert named("cppo", ("cppo", "cppo_tv")) == "cppo"
    assert named("cppo_soft", ("cppo_tv",)) == "cppo_soft"


def test_the_mean_over_models_is_one_test() -> None:
    """Neither model shows it alone; together they do."""
    claim = Claim("mean", "a is above b", "main", Kind.SUPERIORITY, (("a",), ("b",)), over_models=True)
    wiggles = ((0.02, -0.015, -0.02, 0.015), (0.015, 0.02, -0.015, -0.02), (-0.02, 0.015, 0.02, -0.015))
    runs = [
        run
        for model, wiggle in zip("mno", wiggles, strict=True)
        for run in flat({"a": moved(0.02, *wiggle), "b": BASE}, model)
    ]
    assert judged(ABOVE, runs).outcome is VerdictOutcome.UNDECIDED
    verdict = judged(claim, runs)
    [comparison] = verdict.comparisons
    assert (comparison.model, verdict.outcome) == ("", VerdictOutcome.SUPPORTED)
    assert comparison.difference is not None
    assert comparison.difference.estimate.value == pytest.approx(0.02)
    assert "in the mean over the models" in reason(verdict)
    lacking = [run for run in runs if (run.model, run.variant) != ("o", "b")]
    assert judged(claim, lacking).outcome is VerdictOutcome.UNDECIDED  # not the mean of what is there


def test_a_claim_is_exploratory_until_the_one_before_it_is_supported() -> None:
    first = replace(ABOVE, key="first")
    claims = (first, replace(BEST, after="first"), replace(ABOUT, after="best"))

    def closed(levels: dict[str, list[float]]) -> list[str]:
        found = verdicts({"main": board_of(flat(levels))}, claims)
        return ["" if one.after is None else one.after.key for one in found]

    above, low = moved(0.05), moved(-0.05)
    assert closed({"a": above, "b": BASE}) == ["", "", ""]
    assert closed({"a": low, "b": BASE}) == ["", "first", "first"]
    assert closed({"a": above, "b": BASE, "c": moved(0.1)}) == ["", "", "best"]
    [alone] = verdicts({"main": board_of(flat({"a": above, "b": BASE}))}, [replace(BEST, after="cppo_mean")])
    assert alone.after is not None and alone.after.key == "cppo_mean"  # it is not judged here
    assert "Exploratory: the claim before it is not supported (CPPO is above" in reason(alone)


def test_the_order_of_the_shipped_claims() -> None:
    order = [claim.key for claim in CLAIMS]
    assert all(claim.after is None or order.index(claim.after) < order.index(claim.key) for claim in CLAIMS)
    assert len(set(order)) == len(order)
