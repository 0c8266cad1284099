"""Judges every claim from the runs, with the numbers: supported, supported but small, not supported or undecided.

A claim consists of comparisons, one per pair of variants and model. Each has two one-sided p-values, tested at level
0.025:

    superiority   for: the difference is 0 or less         against: it is `Claim.smallest` or more
    equivalence   for: it is outside the margin (TOST)     against: it is inside the margin

The compared quantity is a score of the runs, another of their quantities, their collapse rate, or the slope of a lead
over the response length: see `claims.Kind`. Each verdict reports the power of its runs (`reached_power`).

The claim is supported if every comparison is, without adjustment: all must hold, so the type I error is no larger than
that of a single test (Berger's intersection-union test). It is not supported if any comparison is refuted, with Holm's
adjustment over the comparisons, since any of many may be refuted by chance. Otherwise it is undecided.

A difference can be certainly above 0 and certainly below `Claim.smallest`. Such a comparison is supported, and so is
its claim, with the addition that the effect is too small to matter (`VerdictOutcome.SMALL`).

A claim with `after` is confirmatory only if the claim with that key is supported: testing in a fixed order keeps the
family-wise error at the level of one test. Otherwise its outcome is exploratory.

By default verdicts use the mean over the last part of the window, which involves no selection and counts collapses.
`others` has the outcome of the same claim by the other scores.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import CLAIMS, Claim
from cppo_lab.analysis.statistics.collapse import ShareDifference
from cppo_lab.analysis.statistics.compared import MeasuredDifference, compared
from cppo_lab.analysis.statistics.multiplicity import holm
from cppo_lab.analysis.statistics.paired import Difference
from cppo_lab.analysis.statistics.power import ALPHA, Seeds, seeds_for_equivalence, seeds_for_superiority
from cppo_lab.analysis.statistics.reached_power import ReachedPower, reached_power, seeds_for_shares
from cppo_lab.analysis.statistics.values import FinishedRuns, Quantity, RunValues, Score, run_values


class VerdictOutcome(StrEnum):
    """The outcome of a claim, or of one of its comparisons."""

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
    """One pair of variants on one model, or over the models (`model` is then ""); `against` is "" for 0.

    `difference` is None if a side has no finished run. `runs`: the smallest number of runs of any variant and model.

    `p_for`, `p_against`: see the module docstring; None without a spread. `p_adjusted`: `p_for` with Holm's adjustment
    over the comparisons of the claim. `seeds`: the number that would decide it (or did, if it is decided). `leans_for`:
    whether the comparison would be supported if the observed difference were the true one.
    """

    model: str
    variant: str
    against: str
    difference: Difference | None
    runs: int
    p_for: float | None
    p_against: float | None
    p_adjusted: float | None
    outcome: VerdictOutcome
    seeds: Seeds
    leans_for: bool


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim by one score. `deciding`: the comparison that determines the outcome (None: nothing to
    compare).

    `seeds`: how many per variant would decide it if the observed differences are the true ones. `provisional`: runs of
    the sweep are missing, unfinished or not part of the report. `others`: for a claim about scores, the outcome by the
    other scores. `power`: the power of the runs, None without a comparison. `after`: the claim that had to be supported
    first and is not, or could not be judged here, which makes this outcome exploratory.
    """

    claim: Claim
    score: Score | Quantity
    outcome: VerdictOutcome
    comparisons: tuple[Comparison, ...]
    deciding: Comparison | None
    seeds: Seeds
    provisional: bool
    others: Mapping[Score, VerdictOutcome]
    power: ReachedPower | None = None
    after: Claim | None = None


def verdicts(
    boards: Mapping[str, Scoreboard], claims: Sequence[Claim] = CLAIMS, score: Score = Score.FINAL
) -> tuple[Verdict, ...]:
    """Judge the claims on the scored sweeps (by name); a claim whose sweep is missing is undecided."""
    values = {name: run_values(board) for name, board in boards.items()}
    found: dict[str, Verdict] = {}
    for claim in claims:
        runs = values.get(claim.sweep, ())
        verdict = judge(claim, boards.get(claim.sweep), runs, score)
        found[claim.key] = replace(verdict, after=_closed_by(claim, claims, found))
    return tuple(found.values())


def _closed_by(claim: Claim, claims: Sequence[Claim], found: Mapping[str, Verdict]) -> Claim | None:
    """The first claim in the chain before `claim` that is not supported."""
    if claim.after is None:
        return None
    before = found.get(claim.after)
    if before is None:
        return next(one for one in (*claims, *CLAIMS) if one.key == claim.after)
    if before.after is not None:
        return before.after
    return None if before.outcome.holds else before.claim


def judge(
    claim: Claim,
    board: Scoreboard | None,
    runs: tuple[RunValues, ...],
    usual: Score = Score.FINAL,
) -> Verdict:
    """Judge one claim on its scored sweep (None: there is none) and the sweep's `run_values`, by the claim's own score
    or quantity or else by the `usual` score.
    """
    score = claim.score or usual
    if board is None:
        no_runs = Seeds(None, f"no run of sweep {claim.sweep!r} is finished")
        return Verdict(claim, score, VerdictOutcome.UNDECIDED, (), None, no_runs, False, {})
    if claim.seeds is not None:
        runs = FinishedRuns(run for run in runs if run.seed in claim.seeds)
    if claim.pairing is not None:
        runs = FinishedRuns(replace(run, paired=claim.pairing, common=False) for run in runs)
    found = _compare_all(claim, board, runs, score)
    outcome = outcome_of_all([each.outcome for each in found])
    others = {
        other: outcome_of_all([each.outcome for each in _compare_all(claim, board, runs, other)])
        for other in Score
        if other != score and claim.compares_scores
    }
    return Verdict(
        claim=claim,
        score=score,
        outcome=outcome,
        comparisons=found,
        deciding=_deciding(claim, found, outcome),
        seeds=_seeds(found),
        provisional=bool(board.gaps) or not claim.tests <= board.results,
        others=others,
        power=_power(claim, found),
    )


def _power(claim: Claim, found: Sequence[Comparison]) -> ReachedPower | None:
    estimates = [None if one.difference is None else one.difference.estimate for one in found]
    return reached_power(claim, estimates, min((one.runs for one in found), default=0))


def _compare_all(
    claim: Claim, board: Scoreboard, runs: tuple[RunValues, ...], score: Score | Quantity
) -> tuple[Comparison, ...]:
    measured = compared(claim, board, runs, score)
    p_for = [None if one.found is None else _p_for(claim, one.found) for one in measured]
    p_against = [None if one.found is None else _p_against(claim, one.found) for one in measured]
    adjusted_for, adjusted_against = _holm(p_for), _holm(p_against)
    outcomes = [outcome_of(*each) for each in zip(p_for, adjusted_against, strict=True)]
    return tuple(
        Comparison(
            model=one.model,
            variant=one.variant,
            against=one.against,
            difference=one.found,
            runs=one.runs,
            p_for=p_for[index],
            p_against=p_against[index],
            p_adjusted=adjusted_for[index],
            outcome=outcomes[index],
            seeds=_seeds_for(claim, one, outcomes[index], len(measured)),
            leans_for=one.found is not None and _leans_for(claim, one.found.estimate.value),
        )
        for index, one in enumerate(measured)
    )


def _p_for(claim: Claim, found: Difference) -> float | None:
    if claim.margin is None:
        return found.estimate.p_above(0.0)
    above, below = found.estimate.p_above(-claim.margin), found.estimate.p_below(claim.margin)
    return None if above is None or below is None else max(above, below)


def _p_against(claim: Claim, found: Difference) -> float | None:
    if claim.margin is None:
        return found.estimate.p_below(claim.smallest)
    above, below = found.estimate.p_above(claim.margin), found.estimate.p_below(-claim.margin)
    return None if above is None or below is None else min(above, below)


def _leans_for(claim: Claim, value: float) -> bool:
    return value > claim.smallest / 2 if claim.margin is None else abs(value) < claim.margin


def _seeds_for(claim: Claim, one: MeasuredDifference, outcome: VerdictOutcome, comparisons: int) -> Seeds:
    if one.found is None:
        return Seeds(None, one.why)
    if outcome is not VerdictOutcome.UNDECIDED:
        return Seeds(one.runs)
    estimate = one.found.estimate
    if isinstance(estimate, ShareDifference):
        return seeds_for_shares(estimate, claim.smallest, comparisons, one.runs)
    if claim.margin is None:
        return seeds_for_superiority(estimate, claim.smallest, comparisons, one.runs)
    return seeds_for_equivalence(estimate, claim.margin, comparisons, one.runs)


def _holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of the known p-values. Unknown ones count as 1, so that a gap does not lower any p-value."""
    adjusted = holm([1.0 if p is None else p for p in p_values])
    return [None if p is None else value for p, value in zip(p_values, adjusted, strict=True)]


def outcome_of(p_for: float | None, p_against: float | None) -> VerdictOutcome:
    """The outcome of one comparison; `p_against` is adjusted for the number of comparisons of its claim."""
    refuted = p_against is not None and p_against <= ALPHA
    if p_for is not None and p_for <= ALPHA:
        return VerdictOutcome.SMALL if refuted else VerdictOutcome.SUPPORTED
    return VerdictOutcome.NOT_SUPPORTED if refuted else VerdictOutcome.UNDECIDED


def outcome_of_all(comparisons: Collection[VerdictOutcome]) -> VerdictOutcome:
    """The outcome of a claim: its worst comparison decides, and a claim without comparisons is undecided."""
    worst_first = (
        VerdictOutcome.NOT_SUPPORTED,
        VerdictOutcome.UNDECIDED,
        VerdictOutcome.SMALL,
        VerdictOutcome.SUPPORTED,
    )
    return next((outcome for outcome in worst_first if outcome in comparisons), VerdictOutcome.UNDECIDED)


def _deciding(claim: Claim, found: Sequence[Comparison], outcome: VerdictOutcome) -> Comparison | None:
    """The comparison that determines the outcome: the strongest refutation if the claim is not supported, the one that
    is most certainly small if it is small, else the least certain comparison or one without a number.
    """
    if not found:
        return None
    if outcome in (VerdictOutcome.NOT_SUPPORTED, VerdictOutcome.SMALL):
        alike = [each for each in found if each.outcome is outcome]
        return min(alike, key=lambda each: 1.0 if each.p_against is None else each.p_against)
    return max(found, key=lambda each: _doubt(claim, each))


def _doubt(claim: Claim, comparison: Comparison) -> tuple[int, float]:
    if comparison.difference is None:
        return 2, 0.0
    if comparison.p_for is None:
        value = comparison.difference.estimate.value
        return 1, -value if claim.margin is None else abs(value)
    return 0, comparison.p_for


def _seeds(found: Sequence[Comparison]) -> Seeds:
    """All comparisons must be decided, unless one leans against the claim; deciding that one is then sufficient."""
    if not found:
        return Seeds(None, "there is nothing to compare")
    unknown = next((each.seeds for each in found if each.seeds.unknown), None)
    if unknown is not None:
        return unknown
    against = [each.seeds for each in found if not each.leans_for]
    if against:
        return min(against, key=_count)
    return max((each.seeds for each in found), key=_count)


def _count(seeds: Seeds) -> float:
    return float("inf") if seeds.count is None else seeds.count
