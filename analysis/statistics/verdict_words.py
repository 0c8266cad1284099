"""A verdict in one or two plain sentences."""

from collections.abc import Callable

from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.power import POWER
from cppo_lab.analysis.statistics.verdicts import Comparison, Verdict, VerdictOutcome


def reason(verdict: Verdict, name: Callable[[str], str] = str) -> str:
    """Why the outcome is what it is; `name` turns a variant into what readers see."""
    found, count = verdict.deciding, len(verdict.comparisons)
    if found is None:
        return f"Nothing of sweep {verdict.claim.sweep!r} can be compared yet."
    sentence = f"{_count(verdict, count)} {_numbers(verdict.claim, found, name)}"
    if verdict.after is not None:
        sentence += f" {exploratory(verdict.after)}"
    if verdict.provisional:
        sentence += " Runs of the sweep are missing or unfinished, so this may change."
    if verdict.outcome is not VerdictOutcome.UNDECIDED:
        return sentence
    if verdict.seeds.unknown:
        return f"{sentence} How many seeds would decide it is not known: {verdict.seeds.unknown}."
    # A claim holds only if all its comparisons do; one that leans against it is enough to decide it.
    what = (
        "it" if count == 1 or not all(each.leans_for for each in verdict.comparisons) else "the hardest alone"
    )
    return (
        f"{sentence} If the true differences are the observed ones, {verdict.seeds.words()} per method would decide "
        f"{what} with probability {POWER}."
    )


def exploratory(before: Claim) -> str:
    """Why a verdict is no test of its claim."""
    return f"Exploratory: the claim before it is not supported ({before.text})."


def place(model: str) -> str:
    """Where a comparison is made, as the end of a sentence; "" is the mean over the models."""
    return f"on {model}" if model else "in the mean over the models"


def _count(verdict: Verdict, count: int) -> str:
    held = sum(each.outcome is verdict.outcome for each in verdict.comparisons)
    if verdict.outcome is VerdictOutcome.NOT_SUPPORTED:
        return f"{held} of {count} comparisons contradict it; the surest:"
    if verdict.outcome is VerdictOutcome.SUPPORTED:
        return "It holds:" if count == 1 else f"All {count} comparisons hold; the closest:"
    return "Open:" if count == 1 else f"{held} of {count} comparisons are open; the least sure:"


def _numbers(claim: Claim, found: Comparison, name: Callable[[str], str]) -> str:
    pair = f"{name(found.variant)} against {name(found.against)} {place(found.model)}"
    if found.difference is None:
        return f"{pair}, where one side has no finished run."
    estimate = found.difference.estimate
    value = f"{pair}, {_points(estimate.value)} points"
    if estimate.low is None or estimate.high is None:
        return f"{value}, without an interval: {estimate.unknown}."
    how = f"{estimate.n} pairs of runs" if found.difference.paired else "unpaired runs"
    limit = (
        f"an advantage below {_plain(claim.smallest)} counts as none"
        if claim.margin is None
        else f"margin {_plain(claim.margin)} points"
    )
    ends = f"95 % interval {_points(estimate.low)} to {_points(estimate.high)}"
    return f"{value} ({ends}, {how}; {limit})."


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}"


def _plain(fraction: float) -> str:
    return f"{100 * fraction:g}"
