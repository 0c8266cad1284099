"""The first screen of a sweep's page: which variant is better here, and how sure that is, in a sentence for each pair.

A sweep with hypotheses of its own is answered by the comparisons that these name; any other sweep by comparing its
variants with the baseline, by the mean score of the last part of the window. The numbers are those of the verdicts and
of the table of differences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cppo_lab.analysis.statistics.claims import SMALLEST
from cppo_lab.analysis.statistics.estimate import ONE_RUN, Estimate, holm
from cppo_lab.analysis.statistics.paired import Difference
from cppo_lab.analysis.statistics.summary import Statistics
from cppo_lab.analysis.statistics.values import Score
from cppo_lab.analysis.statistics.verdicts import Verdict
from cppo_lab.reports.names import display_name, signed_points

MOST = 6  # sentences; what is beyond them is in the tables
LEVEL = 0.05


class Word(StrEnum):
    """The outcome of one comparison."""

    BETTER = "better"
    SAME = "no relevant difference"
    OPEN = "not decided"


@dataclass(frozen=True)
class ShortAnswer:
    """One comparison: its outcome, and a sentence with the difference, its 95 % interval and the seeds."""

    word: Word
    sentence: str


@dataclass(frozen=True)
class ShortAnswers:
    """What the page says first. `more`: the number of comparisons that are in the tables alone."""

    answers: tuple[ShortAnswer, ...]
    more: int


def short_answers(verdicts: Sequence[Verdict], statistics: Statistics) -> ShortAnswers:
    """The answers of the sweep's own hypotheses, which have these `verdicts`; without any, of its comparisons with the
    baseline, whose p-values have Holm's adjustment.
    """
    answers = [
        _answer(difference, verdict.claim.margin or verdict.claim.smallest, _excludes_zero(difference))
        for verdict in verdicts
        if verdict.claim.compares_scores
        for comparison in verdict.comparisons
        if (difference := comparison.difference) is not None and difference.against
    ]
    if not verdicts:
        answers = [
            _answer(difference, SMALLEST, p is not None and p < LEVEL)
            for difference, p in with_holm(_against_baseline(statistics))
        ]
    return ShortAnswers(tuple(answers[:MOST]), max(0, len(answers) - MOST))


def with_holm(differences: Sequence[Difference]) -> list[tuple[Difference, float | None]]:
    """Each with its two-sided p value, with Holm's adjustment over those that have one."""
    p_values = [difference.estimate.p_value() for difference in differences]
    adjusted = iter(holm([p for p in p_values if p is not None]))
    return [
        (difference, None if p is None else next(adjusted))
        for difference, p in zip(differences, p_values, strict=True)
    ]


def outcome_of(estimate: Estimate, smallest: float, decided: bool) -> Word:
    """What a difference shows. `decided`: that it is not 0; one within `smallest`, a fraction, is not relevant."""
    low, high = estimate.low, estimate.high
    if low is not None and high is not None and -smallest < low and high < smallest:
        return Word.SAME
    return Word.BETTER if decided and estimate.unknown != ONE_RUN else Word.OPEN


def _against_baseline(statistics: Statistics) -> list[Difference]:
    """The final means minus that of the baseline: over the models if there are several, else on the only one."""
    if len({cell.model for cell in statistics.cells}) > 1:
        return [difference for difference in statistics.overall if difference.score is Score.FINAL]
    differences = (cell.differences.get(Score.FINAL) for cell in statistics.cells)
    return [difference for difference in differences if difference is not None]


def _excludes_zero(difference: Difference) -> bool:
    low, high = difference.estimate.low, difference.estimate.high
    return low is not None and high is not None and (low > 0 or high < 0)


def _answer(difference: Difference, smallest: float, decided: bool) -> ShortAnswer:
    """`decided`: whether a difference other than 0 is shown; one below `smallest`, a fraction, is not relevant."""
    estimate, names = difference.estimate, [difference.variant, difference.against]
    if decided and estimate.value < 0:
        estimate, names = replace(estimate, value=-estimate.value), names[::-1]
    first, second = map(display_name, names)
    where = f" on {difference.model}" if difference.model else " over the models"
    numbers = f"{signed_points(estimate.value)} points"
    if estimate.unknown == ONE_RUN:
        return ShortAnswer(
            Word.OPEN, f"One run each cannot decide between {first} and {second}{where}: {numbers}."
        )
    low, high, seeds = estimate.low, estimate.high, _seeds(difference)
    if low is not None and high is not None:
        numbers += f" ({signed_points(low)} to {signed_points(high)})"
    word = outcome_of(estimate, smallest, decided)
    if word is Word.SAME:
        within = f"{100 * smallest:g} point" + ("s" if smallest != SMALLEST else "")
        return ShortAnswer(word, f"{first} and {second} are within {within}{where}: {numbers}, {seeds}.")
    if word is Word.BETTER:
        verb = "learns faster" if difference.score is Score.AREA else "scores higher"
        return ShortAnswer(Word.BETTER, f"{first} {verb} than {second}{where}: {numbers}, {seeds}.")
    return ShortAnswer(
        Word.OPEN, f"No difference between {first} and {second}{where} that {seeds} can show: {numbers}."
    )


def _seeds(difference: Difference) -> str:
    """`20 seeds each` of one model; over several models the runs are counted."""
    unit = "seed" if difference.model else "run"
    if difference.ours == difference.theirs:
        return f"{difference.ours} {unit}{'s' * (difference.ours > 1)} each"
    return f"{difference.ours} and {difference.theirs} {unit}s"
