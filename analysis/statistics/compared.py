"""The comparisons of a claim on the runs of a sweep: an estimate for each pair of variants and model, or over the
models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim, Kind, pairs
from cppo_lab.analysis.statistics.collapse import counts_of, share_difference
from cppo_lab.analysis.statistics.paired import Difference, above_zero, difference, mean_difference
from cppo_lab.analysis.statistics.quantities import mean_length, with_quantity
from cppo_lab.analysis.statistics.trend import slope
from cppo_lab.analysis.statistics.values import Quantity, RunValues, Score, cell_runs

NO_RUN = "one side has no finished run"


@dataclass(frozen=True)
class MeasuredDifference:
    """One comparison. `model` is "" for the mean over the models, `against` is "" for a comparison with 0. If `found`
    is None, `why` says what is missing. `runs`: the smallest number of runs of any variant and model.
    """

    model: str
    variant: str
    against: str
    found: Difference | None
    runs: int
    why: str = NO_RUN


def compared(
    claim: Claim, board: Scoreboard, runs: tuple[RunValues, ...], score: Score | Quantity
) -> list[MeasuredDifference]:
    """All comparisons of the claim, by a score or by the quantity that it is about."""
    if isinstance(score, Quantity):
        runs = with_quantity(board, runs, score)
    single = [
        _one(claim, runs, model, pair, score)
        for model in board.models
        for pair in pairs(claim, [name for name in board.variants if (model, name) in board.cells])
    ]
    if not claim.over_models and claim.kind is not Kind.TREND:
        return single
    groups = dict.fromkeys((one.variant, one.against) for one in single)
    return [
        _together(claim, board, runs, [one for one in single if (one.variant, one.against) == pair])
        for pair in groups
    ]


def _one(
    claim: Claim, runs: tuple[RunValues, ...], model: str, pair: tuple[str, str], score: Score | Quantity
) -> MeasuredDifference:
    sides = [len(cell_runs(runs, model, variant)) for variant in pair if variant]
    if claim.kind is Kind.COLLAPSE:
        found = _collapses(runs, [model], pair, score) if all(sides) else None
    elif claim.kind is Kind.POSITIVE:
        found = above_zero(runs, model, pair[0], score)
    else:
        found = difference(runs, model, *pair, score)
    why = "its runs did not log it" if isinstance(score, Quantity) and all(sides) else NO_RUN
    return MeasuredDifference(model, *pair, found, min(sides), why)


def _together(
    claim: Claim, board: Scoreboard, runs: tuple[RunValues, ...], parts: Sequence[MeasuredDifference]
) -> MeasuredDifference:
    """The comparisons of two variants combined over the models. For scores every model needs runs of both variants, so
    that the mean covers all models; for a quantity, models that did not log it are left out.
    """
    pair, fewest = (parts[0].variant, parts[0].against), min(part.runs for part in parts)
    known = [part.found for part in parts if part.found is not None]
    lacking = next((part.why for part in parts if part.found is None), "")
    if lacking and (not known or lacking == NO_RUN):
        return MeasuredDifference("", *pair, None, fewest, lacking)
    if claim.kind is Kind.COLLAPSE:
        return MeasuredDifference(
            "", *pair, _collapses(runs, [part.model for part in parts], pair, known[0].score), fewest
        )
    if claim.kind is not Kind.TREND:
        return MeasuredDifference("", *pair, mean_difference(known, runs), fewest)
    lengths = {part.model: mean_length(board, part.model, part.against) for part in known}
    logged = {model: length for model, length in lengths.items() if length is not None}
    if len(logged) < len(lengths):
        return MeasuredDifference(
            "", *pair, None, fewest, "its runs did not log the length of their responses"
        )
    found = slope(known, logged, runs)
    return MeasuredDifference("", *pair, found, fewest, "its models have equal response lengths")


def _collapses(
    runs: tuple[RunValues, ...], models: Sequence[str], pair: tuple[str, str], score: Score | Quantity
) -> Difference:
    ours, theirs = ([counts_of(runs, model, variant) for model in models] for variant in pair)
    estimate = share_difference(ours, theirs)
    sizes = [sum(count for _, count in side) for side in (ours, theirs)]
    model = models[0] if len(models) == 1 else ""
    return Difference(model, *pair, score, estimate, False, sizes[0], sizes[1], None)
