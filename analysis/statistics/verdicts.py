"""Judges every claim from the runs, with the numbers.

Claims may be about quantities other than scores, which are computed from the logs of single runs. rise: mean score in
the last 30 % of the window minus that in the first 30 %. early prefix masks: the mean share of the masked tokens that
the prefix budget rejects, in the first 30 % of the steps minus that in the rest. return, log error: means of J(pi) and
of log |Delta| over the steps.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import product, takewhile

import numpy as np

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun, SweepData
from cppo_lab.analysis.scoring import NothingScored, RunScore, Scoreboard, score_sweep
from cppo_lab.analysis.statistics.claims import CLAIMS, Claim, Kind, pairs
from cppo_lab.analysis.statistics.collapse import share_difference
from cppo_lab.analysis.statistics.estimate import Estimate, holm, look_level, mean_of
from cppo_lab.analysis.statistics.exact_study import METRICS, EqualIn, advantage, of_seeds, read_curves
from cppo_lab.analysis.statistics.paired import Difference, difference, mean_difference, slope
from cppo_lab.analysis.statistics.power import ONE_SIDED_LEVEL, ReachedPower, reached_power
from cppo_lab.analysis.statistics.values import (
    ONE_BENCHMARK,
    FinishedRuns,
    Measure,
    Quantity,
    Score,
    by_seed,
    cell_runs,
    rise,
    run_values,
)

PREFIX_SHARE = "rule/prefix_budget_share"
LENGTH = "train/response_length"


def with_quantity(board: Scoreboard, runs: FinishedRuns, quantity: Quantity) -> FinishedRuns:
    """The runs with their `measured` value, None if a run did not log the metrics it needs."""
    measures: Mapping[Quantity, Callable[[Scoreboard, RunScore], float | None]] = {
        Quantity.RISE: rise,
        Quantity.EARLY_PREFIX: _early_prefix,
        Quantity.RETURN: partial(_over_steps, metric=METRICS["returns"]),
        Quantity.LOG_ERROR: partial(_over_steps, metric=METRICS["error"]),
    }
    measure = measures[quantity]
    measured = {
        (run.model, run.variant, run.seed): measure(board, run) for run in board.runs if run.is_result
    }
    return FinishedRuns(replace(run, measured=measured[run.model, run.variant, run.seed]) for run in runs)


def _early_prefix(board: Scoreboard, run: RunScore) -> float | None:
    """Training ends with the window, or else at the last logged step."""
    points = board.points(PREFIX_SHARE, run)
    if points.empty:
        return None
    end = run.t_stop or int(points["step"].max())
    is_early = points["step"] <= schema.early_until(end)
    early, later = points["value"][is_early], points["value"][~is_early & (points["step"] <= end)]
    return float(early.mean() - later.mean()) if len(early) and len(later) else None


def _over_steps(board: Scoreboard, run: RunScore, metric: str) -> float | None:
    points = board.points(metric, run)
    values = points["value"][points["step"] > 0]
    if metric == METRICS["error"]:
        values = np.log(values[values != 0].abs())
    return float(values.mean()) if len(values) else None


def mean_length(board: Scoreboard, model: str, variant: str) -> float | None:
    """The mean length in tokens of the responses that the runs of a cell sampled; None if no run logged it."""
    logged = board.logged(model, variant, LENGTH)["value"]
    return float(logged.mean()) if len(logged) and logged.mean() > 0 else None


# The comparisons of a claim on the runs of a sweep: an estimate for each pair of variants and model, or over the
# models.

_NO_RUN, _NOT_LOGGED = "one side has no finished run", "its runs did not log it"


class VerdictOutcome(StrEnum):
    """The outcome of a claim or of a comparison."""

    SUPPORTED = "supported"
    SMALL = "supported, below the smallest relevant effect"
    NOT_SUPPORTED = "not supported"
    UNDECIDED = "undecided"

    @property
    def holds(self) -> bool:
        """Whether the claim is supported, by an effect of any size."""
        return self in (VerdictOutcome.SUPPORTED, VerdictOutcome.SMALL)


@dataclass(frozen=True)
class Comparison:
    """A pair of variants on a model, or over the models (`model` is then ""); `against` is "" for 0.

    `difference` is None if they cannot be compared, and `why` then says what is missing. `runs`: the smallest number of
    runs of any variant and model. `at_equal_return`: of a claim about errors, the advantage when steps must also have
    an equal return before the update.

    `p_for`, `p_against`: see below; None without a spread. `p_adjusted`: `p_for` with Holm's adjustment over the
    comparisons of a claim about scores.
    """

    model: str
    variant: str
    against: str
    difference: Difference | None
    runs: int
    why: str = _NO_RUN
    at_equal_return: Estimate | None = None
    p_for: float | None = None
    p_against: float | None = None
    p_adjusted: float | None = None
    outcome: VerdictOutcome = VerdictOutcome.UNDECIDED

    @property
    def estimate(self) -> Estimate | None:
        """That of the difference."""
        return None if self.difference is None else self.difference.estimate


def _compared(claim: Claim, board: Scoreboard, runs: FinishedRuns, score: Measure) -> list[Comparison]:
    """All comparisons of the claim, by a score or by the quantity that it is about; without p-values and outcomes."""
    if claim.of_errors:
        return _errors(claim, board)
    if isinstance(score, Quantity):
        runs = with_quantity(board, runs, score)
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    single = []
    for model in board.models:
        for pair in pairs(claim, [name for name in board.variants if (model, name) in board.cells]):
            sides = [len(cell_runs(runs, model, variant)) for variant in pair if variant]
            if claim.kind is Kind.COLLAPSE:
                lead = _collapses(runs, [model], pair, score) if all(sides) else None
            elif claim.kind is Kind.POSITIVE:
                values = [*by_seed(runs, model, pair[0], score).values()]  # as differences from 0
                lead = None
                if values:
                    lead = Difference(model, *pair, score, mean_of(values), False, len(values), 0, None)
            else:
                lead = difference(runs, model, *pair, score)
            why = _NO_RUN
            if lead is None and all(sides):
                why = _NOT_LOGGED if isinstance(score, Quantity) else ONE_BENCHMARK
            single.append(Comparison(model, *pair, lead, min(sides), why))
            groups[pair].append(single[-1])
    if not claim.over_models and claim.kind is not Kind.TREND:
        return single
    return [_together(claim, board, runs, parts) for parts in groups.values()]


def _together(claim: Claim, board: Scoreboard, runs: FinishedRuns, parts: Sequence[Comparison]) -> Comparison:
    """The comparisons of two variants combined over the models. For scores every model needs runs of both variants, so
    that the mean covers all models; for a quantity, models that did not log it are left out.
    """
    pair, fewest = (parts[0].variant, parts[0].against), min(part.runs for part in parts)
    leads = [part.difference for part in parts if part.difference is not None]
    why = next((part.why for part in parts if part.difference is None), "")
    lead: Difference | None = None
    if why and (not leads or why != _NOT_LOGGED):
        return Comparison("", *pair, None, fewest, why)
    if claim.kind is Kind.COLLAPSE:
        lead = _collapses(runs, [part.model for part in parts], pair, leads[0].score)
    elif claim.kind is not Kind.TREND:
        lead = mean_difference(leads, runs)
    else:
        lengths = {part.model: mean_length(board, part.model, part.against) for part in leads}
        logged = {model: length for model, length in lengths.items() if length is not None}
        why = "its runs did not log the length of their responses"
        if len(logged) == len(lengths):
            lead, why = slope(leads, logged, runs), "its models have equal response lengths"
    return Comparison("", *pair, lead, fewest, why)


def _errors(claim: Claim, board: Scoreboard) -> list[Comparison]:
    variants = {name for tier in claim.tiers for name in tier}
    read = {
        condition: runs for condition, runs in read_curves(board).items() if condition.variant in variants
    }
    curves = of_seeds(read, claim.seeds or ())
    cells = {(condition.model, condition.variant) for condition in curves}
    models = claim.models or tuple(dict.fromkeys(condition.model for condition in curves))
    together = claim.over_models and len(models) > 1
    groups = [("", models)] if together else [(model, (model,)) for model in models]
    slope, comparisons = claim.score is Quantity.ERROR_SLOPE, []
    for pair in pairs(claim, ()):
        for model, of_group in groups:
            lead, at_equal_return = (
                advantage(curves, of_group, pair, slope, equal)
                for equal in (EqualIn.MOVEMENT, EqualIn.RETURN)
            )
            n = lead.n if lead else 0
            difference = Difference("", *pair, Quantity.ERROR, lead, True, n, n, None) if lead else None
            whole = cells.issuperset(product(of_group, pair))
            why = "its runs have too few seeds, horizons or movements in common" if whole else _NO_RUN
            comparisons.append(Comparison(model, *pair, difference, n, why, at_equal_return))
    return comparisons


def _collapses(
    runs: FinishedRuns, models: Sequence[str], pair: tuple[str, str], score: Measure
) -> Difference:
    sides = [[cell_runs(runs, model, variant) for model in models] for variant in pair]
    counts = ([(sum(run.collapsed for run in cell), len(cell)) for cell in side] for side in sides)
    n, m = (sum(map(len, side)) for side in sides)
    return Difference("", *pair, score, share_difference(*counts), False, n, m, None)


# The verdict on a claim: supported, supported but small, not supported or undecided.
#
# A claim consists of comparisons, one per pair of variants and model. Each has two one-sided p-values, tested at level
# 0.025:
#
#     superiority   for: the difference is 0 or less         against: it is `Claim.smallest` or more
#     equivalence   for: it is outside the margin (TOST)     against: it is inside the margin
#
# The compared quantity is a score of the runs, another of their quantities, their collapse rate, or the slope of a lead
# over the response length: see `claims.Kind`. Each verdict reports the power of its runs (`power`).
#
# The claim is supported if every comparison is, without adjustment: all must hold, so the type I error is no larger
# than that of a single test (Berger's intersection-union test). It is not supported if any comparison is refuted, with
# Holm's adjustment over the comparisons, since any of many may be refuted by chance. Otherwise it is undecided.
#
# A difference can be certainly above 0 and certainly below `Claim.smallest`. Such a comparison is supported, and so is
# its claim, with the addition that the effect is too small to matter (`VerdictOutcome.SMALL`).
#
# A claim with `after` is confirmatory only if the claim with that key is supported: testing in a fixed order keeps the
# family-wise error at the level of a single test. Otherwise its outcome is exploratory.
#
# By default verdicts use the mean over the last part of the window, which involves no selection and counts collapses.
# `others` has the outcome of the same claim by the other scores.


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim by a score. `deciding`: the comparison that determines the outcome (None: nothing to
    compare).

    `provisional`: runs of the sweep are missing, unfinished or not part of the report. `others`: for a claim about
    scores, the outcome by the other scores. `power`: of the runs, None without a comparison. `unsupported_before`: the
    claim that had to be supported first and is not, or could not be judged here, which makes this outcome exploratory.
    `looked`: the seeds at the look that decided a sequential claim, or else at the last; 0 for other claims.
    """

    claim: Claim
    score: Measure
    outcome: VerdictOutcome
    comparisons: tuple[Comparison, ...]
    deciding: Comparison | None
    provisional: bool
    others: Mapping[Score, VerdictOutcome]
    power: ReachedPower | None = None
    unsupported_before: Claim | None = None
    looked: int = 0


def verdicts(boards: Mapping[str, Scoreboard], claims: Sequence[Claim] = CLAIMS) -> tuple[Verdict, ...]:
    """Judge the claims on the scored sweeps (by name); a claim whose sweep is missing is undecided."""
    values = {name: run_values(board) for name, board in boards.items()}
    judged = {
        claim.key: judge(claim, boards.get(claim.sweep), values.get(claim.sweep, FinishedRuns()))
        for claim in claims
    }
    return tuple(
        replace(verdict, unsupported_before=_closed_by(verdict.claim, judged)) for verdict in judged.values()
    )


def score_claimed(
    data: SweepData,
    expected: Sequence[ExpectedRun],
    claims: Sequence[Claim],
    partial: bool,
    pairing: bool | None,
) -> Scoreboard:
    """As `score_sweep`; runs that no claim waits for are no gaps: those without a result whose seeds come after the
    look that decided the sequential claims which they test.
    """
    late, awaited = set[tuple[str, str, int | None]](), set[tuple[str, str, int | None]]()
    if any(claim.sequential for claim in claims):
        with contextlib.suppress(NothingScored):  # no look without scores
            board = score_sweep(data, expected, True, pairing)
            for verdict in verdicts({data.sweep: board}, claims):
                claim = verdict.claim
                is_decided = claim.sequential and verdict.outcome is not VerdictOutcome.UNDECIDED
                seeds = (claim.seeds or ())[verdict.looked :] if is_decided else ()
                later = {place for place in claim.tests if place[2] in seeds}
                late |= later
                awaited |= claim.tests - later
            awaited |= board.results
    not_awaited = {run for run in expected if (run.model, run.variant, run.seed) in late - awaited}
    board = score_sweep(data, [run for run in expected if run not in not_awaited], partial, pairing)
    unused = board.unused["run_id"].isin({run.run_id for run in not_awaited})
    return replace(board, unused=board.unused[~unused])


def _closed_by(claim: Claim, judged: Mapping[str, Verdict]) -> Claim | None:
    """The first claim in the chain before `claim` that is not supported."""
    if claim.after is None:
        return None
    before = judged.get(claim.after)
    if before is None:
        return next(earlier for earlier in CLAIMS if earlier.key == claim.after)
    return _closed_by(before.claim, judged) or (None if before.outcome.holds else before.claim)


def judge(claim: Claim, board: Scoreboard | None, runs: FinishedRuns) -> Verdict:
    """Judge a claim on its scored sweep (None: there is none) and the sweep's `run_values`, by the claim's score or
    quantity, or else by the mean over the last part of the window.
    """
    score = claim.score or Score.FINAL
    if board is None:
        return Verdict(claim, score, VerdictOutcome.UNDECIDED, (), None, False, {})
    if claim.seeds is not None:
        runs = FinishedRuns(run for run in runs if run.seed in claim.seeds)
    if claim.pairing is not None:
        runs = FinishedRuns(replace(run, paired=claim.pairing, common=False) for run in runs)
    looks = [(0, runs)]
    if claim.sequential:
        # Seeds are the units of every comparison, whether their runs share more or not.
        runs = FinishedRuns(replace(run, paired=True, common=True) for run in runs)
        # Those before the first of which a run that tests the claim has no result.
        cells = {(model, variant) for model, variant, _ in claim.tests}
        complete = takewhile(
            lambda seed: all((*cell, seed) in board.results for cell in cells), claim.seeds or ()
        )
        seeds = tuple(complete)
        looks = [
            (n, FinishedRuns(run for run in runs if run.seed in seeds[:n]))
            for n in range(min(schema.FIRST_LOOK, len(seeds)), len(seeds) + 1)
        ]
    for looked, seen in looks:
        comparisons = _compare_all(claim, board, seen, score)
        outcome = _outcome_of_all(comparisons)
        is_open = outcome is VerdictOutcome.UNDECIDED and looked < len(claim.seeds or ())
        if not is_open:
            break
    others = {
        other: _outcome_of_all(_compare_all(claim, board, seen, other))
        for other in Score
        if other != score and claim.compares_scores
    }
    power, provisional = None, is_open
    if not claim.sequential:
        fewest = min((comparison.runs for comparison in comparisons), default=0)
        estimates = [comparison.estimate for comparison in comparisons if comparison.estimate is not None]
        lacking = next((comparison.why for comparison in comparisons if comparison.estimate is None), "")
        power = reached_power(claim, estimates, fewest, lacking)
        provisional = (bool(board.gaps) and not claim.of_errors) or not claim.tests <= board.results
    deciding = _deciding(claim, comparisons, outcome)
    return Verdict(
        claim, score, outcome, comparisons, deciding, provisional, others, power=power, looked=looked
    )


def _compare_all(
    claim: Claim, board: Scoreboard, runs: FinishedRuns, score: Measure
) -> tuple[Comparison, ...]:
    tested = [_tested(claim, comparison) for comparison in _compared(claim, board, runs, score)]
    p_for = [comparison.p_for for comparison in tested]
    of_all = p_for if claim.of_errors else holm_with_gaps(p_for)
    against = holm_with_gaps([comparison.p_against for comparison in tested])
    return tuple(
        replace(comparison, p_adjusted=adjusted, outcome=outcome_of(comparison.p_for, p_against))
        for comparison, adjusted, p_against in zip(tested, of_all, against, strict=True)
    )


def _tested(claim: Claim, comparison: Comparison) -> Comparison:
    """A comparison with its p-values; of a sequential claim, at the level of a look, and without an interval before the
    first.
    """
    lead, margin = comparison.difference, claim.margin
    if lead is None:
        return comparison
    estimate = lead.estimate
    if claim.sequential:
        if comparison.runs < schema.FIRST_LOOK:
            early = f"the first look is after {schema.FIRST_LOOK} seeds"
            estimate = Estimate(estimate.value, estimate.n, unknown=early)
        else:
            estimate = replace(estimate, level=look_level(len(claim.seeds or ())))
    if margin is None:
        p_for, p_against = estimate.p_above(), estimate.p_below(claim.smallest)
    else:
        above, below = estimate.p_above(-margin), estimate.p_below(margin)
        p_for = None if above is None or below is None else max(above, below)
        above, below = estimate.p_above(margin), estimate.p_below(-margin)
        p_against = None if above is None or below is None else min(above, below)
    difference = replace(lead, estimate=estimate)
    return replace(comparison, difference=difference, p_for=p_for, p_against=p_against)


def holm_with_gaps(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of the known p-values. Unknown ones count as 1, so that a gap does not lower any p-value."""
    adjusted = holm([1.0 if p is None else p for p in p_values])
    return [None if p is None else value for p, value in zip(p_values, adjusted, strict=True)]


def outcome_of(p_for: float | None, p_against: float | None) -> VerdictOutcome:
    """The outcome of a comparison; `p_against` is adjusted for the number of comparisons of its claim."""
    refuted = p_against is not None and p_against <= ONE_SIDED_LEVEL
    if p_for is not None and p_for <= ONE_SIDED_LEVEL:
        return VerdictOutcome.SMALL if refuted else VerdictOutcome.SUPPORTED
    return VerdictOutcome.NOT_SUPPORTED if refuted else VerdictOutcome.UNDECIDED


class Word(StrEnum):
    """What a comparison shows."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no relevant difference"
    OPEN = "not decided"


def word_of(difference: Estimate, least: float, decided: bool | None = None) -> Word:
    """What a difference shows: nothing relevant if its interval lies within `least`. `decided`: that it is not 0 (None:
    if 0 is outside its interval).
    """
    low, high = difference.low, difference.high
    if low is None or high is None:
        return Word.OPEN
    if -least < low and high < least:
        return Word.SAME
    if not (low > 0 or high < 0 if decided is None else decided):
        return Word.OPEN
    return Word.BETTER if difference.value > 0 else Word.WORSE


def word_of_comparison(claim: Claim, comparison: Comparison) -> Word:
    """What a comparison of a claim shows, by the size that counts for the claim."""
    least = claim.smallest if claim.margin is None else claim.margin
    return Word.OPEN if comparison.estimate is None else word_of(comparison.estimate, least)


def contradictions(claim: Claim, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons that contradict a claim which is not supported, after Holm's adjustment: those that refute an
    equivalence; else those that are worse, since a tie is no contradiction.
    """
    if claim.margin is not None:
        return [each for each in comparisons if each.outcome is VerdictOutcome.NOT_SUPPORTED]
    below = holm_with_gaps([each.estimate.p_below() if each.estimate else None for each in comparisons])
    return [
        comparison
        for comparison, p in zip(comparisons, below, strict=True)
        if p is not None and p <= ONE_SIDED_LEVEL and word_of_comparison(claim, comparison) is Word.WORSE
    ]


def _outcome_of_all(comparisons: Sequence[Comparison]) -> VerdictOutcome:
    """The outcome of a claim: its worst comparison decides, and a claim without comparisons is undecided."""
    worst_first = (
        VerdictOutcome.NOT_SUPPORTED,
        VerdictOutcome.UNDECIDED,
        VerdictOutcome.SMALL,
        VerdictOutcome.SUPPORTED,
    )
    outcomes = (comparison.outcome for comparison in comparisons)
    return min(outcomes, key=worst_first.index, default=VerdictOutcome.UNDECIDED)


def _deciding(claim: Claim, comparisons: Sequence[Comparison], outcome: VerdictOutcome) -> Comparison | None:
    """The comparison that determines the outcome: the strongest refutation if the claim is not supported, the most
    certainly small comparison if the claim is small, else a comparison without a number, or the least certain.
    """
    if outcome in (VerdictOutcome.NOT_SUPPORTED, VerdictOutcome.SMALL):
        alike = [comparison for comparison in comparisons if comparison.outcome is outcome]
        if outcome is VerdictOutcome.NOT_SUPPORTED:
            alike = contradictions(claim, comparisons) or alike
        return min(alike, key=lambda comparison: comparison.p_against or 0.0)
    doubts = []
    for comparison in comparisons:
        doubt = (2, 0.0)
        if comparison.estimate is not None:
            value = comparison.estimate.value
            doubt = (1, -value if claim.margin is None else abs(value))
        doubts.append(doubt if comparison.p_for is None else (0, comparison.p_for))
    return comparisons[doubts.index(max(doubts))] if doubts else None
