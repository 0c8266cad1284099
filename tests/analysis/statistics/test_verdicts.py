"""Verdicts on made sweeps whose truth is plain, and the claims' table against the shipped sweeps."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from cppo_lab.analysis.statistics.claims import (
    CLAIMS,
    SMALLEST,
    Claim,
    Hypotheses,
    Kind,
    Registered,
    named,
    pairs,
    standing,
)
from cppo_lab.analysis.statistics.values import ONE_BENCHMARK, Score
from cppo_lab.analysis.statistics.verdicts import VerdictOutcome, verdicts, word_of_comparison
from cppo_lab.reports.verdict_view import power_words, reason
from cppo_lab.sweep.file import Hypothesis, Sweep, load_sweep
from tests.analysis.made_sweeps import MadeRun, scored
from tests.analysis.statistics.made_curves import ABOUT, ABOVE, BASE, BEST, MEAN, broken, flat, judged, moved

SUPPORTED, SMALL, NOT_SUPPORTED, UNDECIDED = VerdictOutcome


@pytest.mark.parametrize(
    "claim, shift, outcome, word, said",
    [
        (ABOVE, 0.05, SUPPORTED, "better", "It holds: a against b"),
        (ABOVE, -0.05, NOT_SUPPORTED, "worse", "It is contradicted:"),
        # A tie is no contradiction.
        (ABOVE, 0.0, NOT_SUPPORTED, "no relevant difference", "There is no relevant advantage:"),
        (ABOVE, 0.007, SMALL, "no relevant difference", "It holds, but the effect is below the smallest relevant"),
        (ABOUT, -0.012, SUPPORTED, "no relevant difference", "It holds:"),
        (ABOUT, 0.05, NOT_SUPPORTED, "better", "It is contradicted:"),
        (ABOUT, -0.05, NOT_SUPPORTED, "worse", "It is contradicted:"),
        (ABOUT, 0.02, UNDECIDED, "better", "Open:"),
    ],
)  # fmt: skip
def test_outcomes_of_one_comparison(
    claim: Claim, shift: float, outcome: VerdictOutcome, word: str, said: str
) -> None:
    verdict = judged(claim, flat({"a": moved(shift), "b": BASE}))
    [comparison] = verdict.comparisons
    assert verdict.outcome is outcome and verdict.deciding is comparison and comparison.difference.paired
    assert comparison.difference.estimate.value == pytest.approx(shift)
    assert word_of_comparison(claim, comparison) == word
    assert reason(verdict).startswith(said)


@pytest.mark.parametrize("claim", [ABOVE, ABOUT])
def test_noise_leaves_it_undecided_and_one_number_says_how_many_seeds_it_takes(claim: Claim) -> None:
    verdict = judged(claim, flat({"a": moved(0.05, 0.05, -0.04, 0.03, -0.04), "b": BASE}))
    assert verdict.outcome is UNDECIDED and verdict.power.needed > 4
    assert word_of_comparison(claim, verdict.comparisons[0]) == "not decided"
    assert power_words(verdict.power).endswith(f"; 0.8 takes {verdict.power.needed} seeds")
    assert "95 % interval" in reason(verdict)


def test_one_seed_decides_nothing_however_large_the_difference() -> None:
    verdict = judged(ABOVE, flat({"a": [0.9], "b": [0.1]}))
    assert {verdict.outcome, *verdict.others.values()} == {UNDECIDED}
    assert power_words(verdict.power) == "none: a single run does not show how much seeds differ"
    said = "a against b on m, +80.00 points, without an interval: a single run does not show"
    assert said in reason(verdict)


def test_best_of_all_takes_every_comparison_on_every_model() -> None:
    good = {"a": moved(0.05), "b": BASE, "c": moved(-0.02, 0.001, 0.0, -0.001, 0.0)}
    assert judged(BEST, flat(good, "m") + flat(good, "n")).outcome is SUPPORTED
    bad = {"a": moved(0.05), "b": moved(0.1, 0.001, -0.001, 0.002, 0.0)}
    verdict = judged(BEST, flat(good, "m") + flat(bad, "n"))
    assert [each.outcome for each in verdict.comparisons] == [SUPPORTED, SUPPORTED, NOT_SUPPORTED]
    assert verdict.outcome is NOT_SUPPORTED
    assert (verdict.deciding.model, verdict.deciding.against) == ("n", "b")
    assert "1 of 3 comparisons contradicts it" in reason(verdict) and "on n" in reason(verdict)


def test_no_adjustment_to_support_all_and_holms_to_refute_any() -> None:
    """Each of four comparisons alone is just refuted (p about 0.02): together they are not."""
    edge = [0.0035, -0.0035, 0.0045, -0.0045]
    refuted, sure = moved(SMALLEST - 0.0075, *edge), moved(0.0085, *edge)  # p_for of the latter is about 0.02
    alone = judged(ABOVE, flat({"a": refuted, "b": BASE}))
    assert alone.outcome is NOT_SUPPORTED and 0.025 / 4 < alone.comparisons[0].p_against < 0.025
    others = dict.fromkeys(("b", "c", "d", "e"), BASE)
    assert judged(BEST, flat({"a": refuted, **others})).outcome is UNDECIDED
    verdict = judged(BEST, flat({"a": sure, **others}))
    assert verdict.outcome is SUPPORTED
    first = verdict.comparisons[0]
    assert first.p_for <= 0.025 < first.p_adjusted == pytest.approx(4 * first.p_for)
    # A comparison without a number makes no other surer: it is one of two.
    b, c = judged(BEST, flat({"a": sure, "b": BASE, "c": [0.2]})).comparisons
    assert (b.against, b.p_for, b.p_adjusted) == ("b", first.p_for, pytest.approx(2 * first.p_for))
    assert c.p_for is c.p_adjusted is None


def test_the_smallest_effect_decides_and_a_claim_behind_it_is_confirmatory() -> None:
    """All comparisons hold; the one whose advantage of a point is excluded gives the claim its outcome."""
    runs = flat({"a": moved(0.05), "b": BASE, "c": moved(0.043, 0.001, 0.0, -0.001, 0.0)})
    first, second = verdicts({"main": scored(runs)}, [BEST, replace(ABOVE, after="best")])
    assert first.outcome is SMALL and first.outcome.holds and first.deciding.against == "c"
    said = "All 2 comparisons hold, but in 1 the effect is below the smallest relevant effect"
    assert said in reason(first)
    assert second.unsupported_before is None


def test_ordering_compares_neighbouring_tiers() -> None:
    [claim] = [claim for claim in CLAIMS if claim.key == "mechanisms"]
    names = cppo, weight, budget, dppo = "cppo", "cppo_no_prefix_budget", "cppo_no_position_weight", "dppo"
    expected = {(cppo, weight), (cppo, budget), (weight, dppo), (budget, dppo)}
    assert set(pairs(claim, names)) == expected
    levels = moved(0.1, 0.0, 0.001, 0.0, -0.001), moved(0.05), moved(0.04, -0.001, 0.001, 0.002, 0.0), BASE
    for order, outcome in ((names, SUPPORTED), ((weight, cppo, budget, dppo), NOT_SUPPORTED)):
        assert judged(claim, flat(dict(zip(order, levels, strict=True)))).outcome is outcome


def test_a_missing_side_is_a_gap_not_a_success() -> None:
    verdict = judged(BEST, flat({"a": moved(0.05), "b": BASE}), (MadeRun("c", "m", 0),))
    assert (verdict.outcome, verdict.provisional, verdict.deciding.against) == (UNDECIDED, True, "c")
    assert "one side has no finished run" in reason(verdict)
    assert "missing, unfinished or not part of this report" in reason(verdict)
    undeclared = judged(ABOVE, flat({"a": BASE}))
    assert (undeclared.outcome, undeclared.comparisons[0].difference) == (UNDECIDED, None)
    assert (undeclared.power.power, undeclared.power.unknown) == (0.0, "one side has no finished run")
    alone = judged(BEST, flat({"a": BASE}))
    assert (alone.outcome, alone.comparisons, alone.power) == (UNDECIDED, (), None)
    assert "Nothing of sweep 'main' can be compared" in reason(alone)


def test_a_collapse_counts_in_the_verdict_and_not_in_the_best_step() -> None:
    tops = [0.402, 0.399, 0.401, 0.404]
    runs = flat({"a": moved(0.05)}) + [broken("b", seed, top) for seed, top in enumerate(tops)]
    verdict = judged(ABOVE, runs)
    assert verdict.outcome is SUPPORTED and verdict.others[Score.BEST] is NOT_SUPPORTED
    assert set(verdict.others) == set(Score) - {Score.FINAL}


def test_every_claim_gets_a_verdict() -> None:
    """Also where its runs logged nothing of it."""
    found = verdicts({"main": scored(flat({"cppo": moved(0.05), "dppo": BASE}))})
    assert [verdict.claim for verdict in found] == [*CLAIMS]
    supported = {verdict.claim.key for verdict in found if verdict.outcome is SUPPORTED}
    assert supported == {"cppo_mean", "cppo_each", "cppo_best"}
    [horizon] = [verdict for verdict in found if verdict.claim.key == "cppo_horizon"]
    why = "its runs did not log the length of their responses"
    assert horizon.comparisons[0].why == horizon.power.unknown == why


def test_a_score_that_takes_two_benchmarks_is_not_there_with_one() -> None:
    runs = [
        replace(run, scores={"chain24": run.scores["chain24"]}) for run in flat({"a": moved(0.05), "b": BASE})
    ]
    for over_models in (False, True):
        verdict = judged(replace(ABOVE, score=Score.CORRECTED, over_models=over_models), runs)
        assert verdict.comparisons[0].why == verdict.power.unknown == ONE_BENCHMARK
        assert f"where {ONE_BENCHMARK}." in reason(verdict)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)
def test_claims_are_about_what_the_sweeps_declare(claim: Claim) -> None:
    sweep = load_sweep(claim.sweep)
    assert isinstance(sweep, Sweep)
    assert {variant for tier in claim.tiers for variant in tier} <= sweep.variants.keys()
    assert (claim.margin is None) == (claim.kind is not Kind.EQUIVALENCE)
    assert claim.compares_scores or claim.sweep == "main"  # what training logged is read for it alone
    assert pairs(claim, tuple(sweep.variants))
    keys = [claim.key for claim in CLAIMS]
    assert claim.after is None or claim.after in keys[: keys.index(claim.key)]
    assert keys.count(claim.key) == 1


def test_the_papers_names() -> None:
    assert named("cppo", ("cppo_tv", "cppo_kl")) == "cppo_tv"
    assert named("cppo", ("cppo", "cppo_tv")) == "cppo"
    assert named("cppo_soft", ("cppo_tv",)) == "cppo_soft"


def test_one_of_many_comparisons_that_is_worse_by_chance_contradicts_nothing() -> None:
    ties = dict.fromkeys("bcdefg", BASE)
    by_chance = moved(0.0117, 0.003, -0.002, 0.004, -0.004)  # a lead of 1.2 points, 95 % interval 0.5 to 1.9
    verdict = judged(BEST, flat({"a": moved(0.0), **ties, "h": by_chance}))
    words = [word_of_comparison(BEST, comparison) for comparison in verdict.comparisons]
    assert verdict.outcome is NOT_SUPPORTED and words == [*["no relevant difference"] * 6, "worse"]
    assert reason(verdict).startswith(
        "7 of 7 comparisons show no relevant advantage; the clearest: a against "
    )
    clear = judged(BEST, flat({"a": moved(0.0), **ties, "h": [0.04 + score for score in by_chance]}))
    assert reason(clear).startswith("1 of 7 comparisons contradicts it; the strongest: a against h on m, ")


def test_the_mean_over_models_is_one_test() -> None:
    """Neither model shows it alone; together they do."""
    first, second = (0.02, -0.015, -0.02, 0.015), (0.015, 0.02, -0.015, -0.02)
    runs: list[MadeRun] = []
    for model, wiggle in (("m", first), ("n", second), ("o", [-extra for extra in first])):
        runs += flat({"a": moved(0.02, *wiggle), "b": BASE}, model)
    assert judged(ABOVE, runs).outcome is UNDECIDED
    verdict = judged(MEAN, runs)
    [comparison] = verdict.comparisons
    assert (comparison.model, verdict.outcome) == ("", SUPPORTED)
    assert comparison.difference.estimate.value == pytest.approx(0.02)
    assert "in the mean over the models" in reason(verdict)
    lacking = [run for run in runs if (run.model, run.variant) != ("o", "b")]
    assert judged(MEAN, lacking).outcome is UNDECIDED  # not the mean of what is there


@pytest.mark.parametrize(
    "levels, closed_by",
    [
        ({"a": moved(0.05)}, ["", "", ""]),
        ({"a": moved(-0.05)}, ["", "first", "first"]),
        ({"a": moved(0.05), "c": moved(0.1)}, ["", "", "best"]),
    ],
)
def test_a_claim_is_exploratory_until_the_one_before_it_is_supported(
    levels: dict[str, list[float]], closed_by: list[str]
) -> None:
    boards = {"main": scored(flat({"b": BASE, **levels}))}
    claims = (replace(ABOVE, key="first"), replace(BEST, after="first"), replace(ABOUT, after="best"))
    before = [verdict.unsupported_before for verdict in verdicts(boards, claims)]
    assert [claim.key if claim else "" for claim in before] == closed_by
    [alone] = verdicts(boards, [replace(BEST, after="cppo_mean")])  # which is not judged here
    assert alone.unsupported_before.key == "cppo_mean"
    assert "Exploratory: the claim before it is not supported (CPPO is above" in reason(alone)


@pytest.mark.parametrize("earlier, words", [(0, "before any of the 8 runs"), (1, "when 1 of the 8 runs")])
def test_an_earlier_attempt_at_a_run_has_been_seen(earlier: int, words: str) -> None:
    runs = flat({"a": moved(0.05), "b": BASE})
    begun = {run.key: 500 if number < earlier else 2000 for number, run in enumerate(runs)}
    stated = Hypotheses((ABOVE,), "abc", (Registered("abc", 1000),))
    found = standing(stated, ABOVE, scored(runs, "main", begun=begun))
    assert words in found.words and found.confirmatory is not bool(earlier)


def test_a_hypothesis_after_an_exploratory_one_is_exploratory() -> None:
    """A run that tests the first has no result; the second has all of its runs."""
    places = frozenset(itertools.product("m", "abc", range(4)))
    first, second = (
        replace(
            ABOVE, key=name, tiers=(("a",), (name,)), tests=frozenset(p for p in places if p[1] in "a" + name)
        )
        for name in "bc"
    )
    stated = Hypotheses((first, replace(second, after="b")), "abc", (Registered("abc", 1000),))
    for lacking in (1, 0):
        runs = flat({"a": moved(0.05), "b": BASE[lacking:], "c": BASE})
        board = scored(runs, "main", begun={run.key: 2000 for run in runs})
        found = [standing(stated, claim, board) for claim in stated.claims]
        assert [each.confirmatory for each in found] == [not lacking] * 2
        assert found[1].words.endswith("Exploratory, as the hypothesis before it.") is bool(lacking)


SEEDS = tuple(range(12))
LOOKED = replace(ABOVE, sequential=True, seeds=SEEDS, tests=frozenset(itertools.product("m", "ab", SEEDS)))


def study(leads: Sequence[float]) -> list[MadeRun]:
    """A study whose seeds have these leads of a over b."""
    return flat({"a": [0.3 + lead for lead in leads], "b": [0.3] * len(leads)})


CLEAR = [0.050, 0.052, 0.048, 0.051]


@pytest.mark.parametrize(
    "leads, outcome, looked",
    [
        (CLEAR[:3], UNDECIDED, 3),  # before the first look, however clear
        (CLEAR, SUPPORTED, 4),
        ([*CLEAR, -0.5, -0.4, -0.6], SUPPORTED, 4),  # what comes after the decision does not count
        ([-0.05, 0.15, 0.0, 0.1, 0.05, 0.06], UNDECIDED, 6),
        ([-lead for lead in CLEAR], NOT_SUPPORTED, 4),
        ([0.001, -0.001, 0.0, 0.002], NOT_SUPPORTED, 4),  # certainly no relevant advantage
    ],
)
def test_a_sequential_claim_is_that_of_the_first_look_which_decides_it(
    leads: list[float], outcome: VerdictOutcome, looked: int
) -> None:
    verdict = judged(LOOKED, study(leads), tuple(MadeRun("a", "m", seed) for seed in SEEDS[len(leads) :]))
    assert (verdict.outcome, verdict.looked) == (outcome, looked)
    assert verdict.provisional == (outcome is UNDECIDED)
    state = "open" if outcome is UNDECIDED else "decided"
    assert f"Sequential: {state} after {looked} of 12 seeds, {max(0, looked - 3)} look" in reason(verdict)


def test_looks_have_wider_intervals_and_end_before_a_gap() -> None:
    leads = [0.02, 0.06, 0.01, 0.05, 0.04, 0.03]
    wide, usual = (
        judged(claim, study(leads)).comparisons[0].difference.estimate
        for claim in (LOOKED, replace(ABOVE, seeds=SEEDS))
    )
    assert wide.half > 1.2 * usual.half and wide.p_above() > 1.5 * usual.p_above()
    gap = [run for run in study([*CLEAR, 0.05]) if run.seed != 2]
    assert judged(LOOKED, gap, (MadeRun("a", "m", 2), MadeRun("b", "m", 2))).looked == 2


@pytest.mark.parametrize(
    "key, value, said",
    [
        ("outcome", "error", "sequential with outcome='error': it is for scores"),
        ("models", "trend", "sequential with models=trend: it is for scores"),
        ("test_seeds", [1, 2, 3, 4], "4 test_seeds leave nothing to stop; name more than 4"),
    ],
)
def test_what_cannot_be_sequential(key: str, value: object, said: str) -> None:
    stated = {"claim": "a is above b", "better": ["a"], "than": ["b"], "test_seeds": [1, 2, 3, 4, 5]}
    hypothesis = Hypothesis.model_validate_json(json.dumps({**stated, "sequential": True, key: value}))
    assert said in " ".join(hypothesis.contradictions())
