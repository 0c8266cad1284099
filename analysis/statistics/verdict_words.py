"""Explains a verdict in one or two sentences."""

from collections.abc import Callable

from cppo_lab.analysis.statistics.claims import Claim, Kind
from cppo_lab.analysis.statistics.estimate import Estimate, SlopeEstimate
from cppo_lab.analysis.statistics.paired import Difference
from cppo_lab.analysis.statistics.power import POWER
from cppo_lab.analysis.statistics.reached_power import ReachedPower
from cppo_lab.analysis.statistics.verdicts import Comparison, Verdict, VerdictOutcome

MISSING = "Runs of the sweep are missing, unfinished or not part of this report, so this may change."


def reason(verdict: Verdict, name: Callable[[str], str] = str) -> str:
    """The reason for the outcome; `name` maps a variant to its display name."""
    found, count = verdict.deciding, len(verdict.comparisons)
    if found is None:
        return f"Nothing of sweep {verdict.claim.sweep!r} can be compared yet."
    sentence = f"{_count(verdict, count)} {_numbers(verdict.claim, found, name)}"
    if verdict.after is not None:
        sentence += f" {exploratory(verdict.after)}"
    if verdict.provisional:
        sentence += f" {MISSING}"
    if verdict.outcome is not VerdictOutcome.UNDECIDED:
        return sentence
    if verdict.seeds.unknown:
        return f"{sentence} How many seeds would decide it is not known: {verdict.seeds.unknown}."
    # A claim holds only if all its comparisons do, so one that leans against it suffices to decide it.
    what = (
        "it"
        if count == 1 or not all(each.leans_for for each in verdict.comparisons)
        else "the hardest comparison alone"
    )
    return (
        f"{sentence} If the true differences are the observed ones, {verdict.seeds.words()} per method would decide "
        f"{what} with probability {POWER}."
    )


def exploratory(before: Claim) -> str:
    """The sentence that marks a verdict as exploratory."""
    return f"Exploratory: the claim before it is not supported ({before.text})."


def power_words(found: ReachedPower | None) -> str:
    """The power of the runs, and the number of runs for a power of POWER; empty without a comparison."""
    if found is None:
        return ""
    if found.needed.unknown:
        return f"none: {found.needed.unknown}"
    return f"{found.power:.2f}; {POWER} takes {found.needed.words()}"


def power_question(claim: Claim) -> str:
    """The true difference at which `power_words` holds."""
    if claim.margin is not None:
        return "power if there is no difference"
    return f"power at {_plain(claim.lead)} {claim.unit}"


def against_words(variant: str, against: str) -> str:
    """The two sides of a comparison; only the first if it is compared with 0."""
    return f"{variant} against {against}" if against else variant


def place(model: str) -> str:
    """Where a comparison is made, as the end of a sentence; "" is the mean over the models."""
    return f"on {model}" if model else "in the mean over the models"


def _count(verdict: Verdict, count: int) -> str:
    held = sum(each.outcome is verdict.outcome for each in verdict.comparisons)
    if verdict.outcome is VerdictOutcome.NOT_SUPPORTED:
        return f"{held} of {count} comparisons contradict it; the strongest:"
    if verdict.outcome is VerdictOutcome.SUPPORTED:
        return "It holds:" if count == 1 else f"All {count} comparisons hold; the closest:"
    if verdict.outcome is VerdictOutcome.SMALL:
        below = "below the smallest relevant effect"
        if count == 1:
            return f"It holds, but the effect is {below}:"
        return f"All {count} comparisons hold, but in {held} the effect is {below}; the smallest:"
    return "Open:" if count == 1 else f"{held} of {count} comparisons are open; the weakest:"


def _numbers(claim: Claim, found: Comparison, name: Callable[[str], str]) -> str:
    where = "over the models" if claim.kind is Kind.TREND else place(found.model)
    pair = f"{against_words(name(found.variant), name(found.against) if found.against else '')} {where}"
    if found.difference is None:
        return f"{pair}, where {found.seeds.unknown}."
    estimate = found.difference.estimate
    value = f"{pair}, {_points(estimate.value)} {claim.unit}"
    if estimate.low is None or estimate.high is None:
        return f"{value}, without an interval: {estimate.unknown}."
    how = _how(claim, found.difference)
    limit = (
        f"{_small(claim)} {_plain(claim.smallest)} counts as none"
        if claim.margin is None
        else f"margin {_plain(claim.margin)} points"
    )
    ends = f"95 % interval {_points(estimate.low)} to {_points(estimate.high)}"
    return f"{value} ({ends}, {how}; {limit})."


def _small(claim: Claim) -> str:
    return "less than" if claim.kind in (Kind.COLLAPSE, Kind.TREND, Kind.POSITIVE) else "an advantage below"


def _how(claim: Claim, found: Difference) -> str:
    if claim.kind is Kind.TREND:
        return f"slope over {found.estimate.n} models, which differ in more than length; {_width(found.estimate)}"
    if claim.kind is Kind.POSITIVE:
        return f"{found.estimate.n} runs"
    return f"{found.estimate.n} pairs of runs" if found.paired else "unpaired runs"


def _width(found: Estimate) -> str:
    """What the interval of a slope is as wide as."""
    by_models = (
        isinstance(found, SlopeEstimate) and found.models is not None and found.half == found.models.half
    )
    return f"width by {'their scatter around the line' if by_models else 'the spread over seeds'}"


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}"


def _plain(fraction: float) -> str:
    return f"{100 * fraction:g}"
