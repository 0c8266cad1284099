"""The section on the claims: a verdict for each, in words and with its comparisons; and the same as a table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import CLAIMS, MARGIN, SMALLEST, Claim, Kind, claims_about
from cppo_lab.analysis.statistics.estimate import ONE_RUN
from cppo_lab.analysis.statistics.paired import Difference
from cppo_lab.analysis.statistics.summary import CANNOT
from cppo_lab.analysis.statistics.values import Quantity, RunValues, Score, run_values
from cppo_lab.analysis.statistics.verdicts import (
    MISSING,
    Comparison,
    Verdict,
    VerdictOutcome,
    against_words,
    exploratory,
    judge,
    place,
    power_question,
    power_words,
    reason,
    verdicts,
)
from cppo_lab.core_records import miniature_of
from cppo_lab.reports.names import ABSENT, OURS, display_name, origin, p_text, signed_points
from cppo_lab.reports.registration import Standing, is_exploratory
from cppo_lab.reports.tables import TextRow, TextTable

OVER_MODELS = "mean over models"
SCORES: Mapping[Score, str] = {
    Score.BEST: "best step",
    Score.CORRECTED: "best step, corrected",
    Score.FINAL: "final mean",
    Score.AREA: "area under the curve",
}


@dataclass(frozen=True)
class ComparisonLine:
    """One pair of variants on one model, as text; `ours` and `theirs` are (model, variant), to link to their runs."""

    model: str
    label: str
    against: str
    ours: tuple[str, str]
    theirs: tuple[str, str]
    runs: str
    difference: str
    interval: str
    p: str
    improvement: str
    seeds: str
    outcome: str


@dataclass(frozen=True)
class VerdictLine:
    """One claim. `estimate`: difference, interval and runs in one line. `numbers`: (name, value) of the comparison that
    determines the outcome, and `deciding` the (model, variant) of its runs. `registered`: whether it was registered
    before its runs. `exploratory`: it was not, or some of its runs are missing here, or the claim before it is not
    supported. `deviation`: the result of the comparison that the design of the runs asks for, if another one was
    registered; else empty. `observed`: the direction of the observed differences. `others`: the outcome by the other
    scores, empty if the claim is not about a score. `power`: the power of the runs.
    """

    sweep: str
    key: str
    text: str
    registered: str
    exploratory: bool
    outcome: str
    estimate: str
    sentence: str
    deviation: str
    observed: str
    numbers: tuple[tuple[str, str], ...]
    deciding: tuple[str, str] | None
    comparisons: tuple[ComparisonLine, ...]
    others: str
    power: str


@dataclass(frozen=True)
class VerdictView:
    """The first section of a page. `caution`: what the runs are not evidence for. `rule`: the part of
    `method` that holds away from the page, empty if nothing was tested. `cannot`: what single runs do not
    show, empty with several seeds. `not_judged`: claims about missing sweeps.
    """

    summary: str
    caution: str
    core: str
    lines: tuple[VerdictLine, ...]
    method: str
    rule: str
    cannot: tuple[str, ...]
    not_judged: tuple[str, ...]


def testable_claims(
    boards: Mapping[str, Scoreboard], whole: bool = False, own: Sequence[Claim] = ()
) -> list[Claim]:
    """The sweeps' `own` hypotheses, then the paper's claims that the sweeps can test; see `claims_about`."""
    return [*own, *claims_about({name: board.variants for name, board in boards.items()}, whole)]


def verdict_view(
    boards: Mapping[str, Scoreboard],
    core: str,
    whole: bool = False,
    own: Mapping[Claim, Standing] = MappingProxyType({}),
) -> VerdictView:
    """The claims that these sweeps (by name) can test; for the `whole` study, the claims about missing sweeps are named
    too.

    `own`: the sweeps' own hypotheses, each with its standing.
    """
    found = verdicts(boards, testable_claims(boards, whole, tuple(own)))
    of_scores = [one for one in found if one.claim.kind is not Kind.COLLAPSE and one.comparisons]
    alone = bool(of_scores) and all(map(_single_runs, of_scores))
    judged, paired, rule, power = _method(found)
    tested = any(each.p_for is not None for one in found for each in one.comparisons)
    return VerdictView(
        summary=_summary(found, own),
        caution=_caution(core, bool(found)),
        core=core,
        lines=tuple(
            _line(verdict, boards[verdict.claim.sweep], own.get(verdict.claim), alone) for verdict in found
        ),
        method=f"{judged}{paired} {rule} {power}",
        rule=f"{judged} {rule}" if tested else "",
        cannot=CANNOT if alone else (),
        not_judged=tuple(
            f"{claim.text} (sweep {claim.sweep})" for claim in CLAIMS if whole and claim.sweep not in boards
        ),
    )


_SCORE_WORDS: Mapping[Score | Quantity, str] = {
    Score.FINAL: "Judged by the mean of the last 30 % of the window: it has no selection bias, and collapses count.",
    Score.AREA: "Judged by the area under the validation curve.",
    Score.BEST: "Judged by the best step, whose score is too high by selection.",
    Score.CORRECTED: "Judged by the best step, corrected for its selection.",
}


def _method(found: Sequence[Verdict]) -> tuple[str, str, str, str]:
    """How these verdicts were reached: by which score, in pairs or not, when a claim holds, and what the power is."""
    scores = {one.score for one in found if one.claim.compares_scores} or {Score.FINAL}
    judged = (
        _SCORE_WORDS[next(iter(scores))]
        if len(scores) == 1
        else "Each claim is judged by the score it names."
    )
    least = sorted({one.claim.smallest for one in found if one.claim.margin is None} or {SMALLEST})
    smallest = (
        "an advantage below the size that its claim names"
        if len(least) > 1
        else f"an advantage below {100 * least[0]:g} point{'s' * (least[0] != 0.01)}"
    )
    margins = sorted({one.claim.margin for one in found if one.claim.margin is not None} or {MARGIN})
    margin = (
        "the margin that the claim names"
        if margins != [MARGIN]
        else f"{100 * MARGIN:g} points, our margin, since the paper gives none"
    )
    pairs = [each.difference for one in found for each in one.comparisons if each.difference is not None]
    paired = (
        " Runs of one seed share their start and are compared in pairs."
        if any(one.paired and one.estimate.n > 1 for one in pairs)
        else ""
    )
    rule = (
        f"A method is better where the 95 % interval of the difference lies above 0; {smallest} "
        f"counts as none. Two methods are equivalent if it lies within {margin}. p is one-sided, with Holm's "
        "adjustment over the comparisons of the claim; its level is 0.025."
    )
    power = (
        "The power is a lower bound of the probability that the claim comes out supported with these runs and their "
        "spread, if the true difference is the one named; next to it is the number of runs of each method and model "
        "for a power of 0.8."
    )
    return judged, paired, rule, power


def _caution(core: str, judged: bool) -> str:
    if core == schema.PAPER:
        return "The runs are the paper's own, read off its curves: the claims are compared with the paper's own data."
    if miniature := miniature_of(core):
        about = "verdicts are" if judged else "everything here is"
        return f"core={core}: {about} about {miniature}, no evidence for or against the paper."
    return ""


def _summary(found: Sequence[Verdict], own: Mapping[Claim, Standing]) -> str:
    if not found:
        return "The paper makes no claim about the variants of this sweep."
    return tally("", [(one.outcome, _is_exploratory(one, own.get(one.claim))) for one in found])


def tally(about: str, outcomes: Sequence[tuple[VerdictOutcome, bool]]) -> str:
    """`3 claims: 1 supported, 1 undecided; exploratory: 1 supported.` of (outcome, whether it is exploratory)."""
    parts = []
    for late in (False, True):
        counts = [(one, sum(pair == (one, late) for pair in outcomes)) for one in VerdictOutcome]
        if said := ", ".join(f"{count} {one.value.replace(',', ' but')}" for one, count in counts if count):
            parts.append(f"exploratory: {said}" if late else said)
    return f"{len(outcomes)} claim{'s' * (len(outcomes) > 1)}{about}: {'; '.join(parts)}."


def _is_exploratory(verdict: Verdict, own: Standing | None) -> bool:
    return is_exploratory(verdict.outcome, verdict.after is not None, own)


def _line(verdict: Verdict, board: Scoreboard, own: Standing | None, alone: bool) -> VerdictLine:
    """`alone`: the page says once, for all claims, that single runs decide nothing."""
    others = [f"{SCORES[score]}: {outcome.value}" for score, outcome in verdict.others.items()]
    return VerdictLine(
        sweep=verdict.claim.sweep,
        key=verdict.claim.key,
        text=verdict.claim.text,
        registered="" if own is None else own.words,
        exploratory=_is_exploratory(verdict, own),
        outcome=verdict.outcome.value,
        estimate=_estimate(verdict.claim, verdict.deciding),
        sentence=_one_run(verdict, alone) if _single_runs(verdict) else reason(verdict, display_name),
        deviation="" if verdict.claim.pairing is None else _deviation(verdict.claim, board),
        observed=_observed(verdict),
        numbers=_numbers(verdict, run_values(board)),
        deciding=None if verdict.deciding is None else (verdict.deciding.model, verdict.deciding.variant),
        comparisons=tuple(_comparison(each) for each in verdict.comparisons),
        others="; ".join(others),
        power=_power(verdict),
    )


def _deviation(claim: Claim, board: Scoreboard) -> str:
    """The result as the design of the runs asks for, beside that of the registered analysis."""
    found = judge(replace(claim, pairing=None), board, run_values(board))
    why = (
        "takes the runs of one seed as independent, but they share their start. Compared in pairs"
        if not claim.pairing
        else "compares the runs of one seed in pairs, but they share no start. Taken as independent"
    )
    listed = "; ".join(
        f"{_pair(each)} {place(each.model)} {signed_points(each.difference.estimate.value)} ({_interval(each)})"
        for each in found.comparisons
        if each.difference is not None
    )
    return f"Deviation from the registered analysis, which {why}: {found.outcome.value}. {listed}, in {claim.unit}."


def _single_runs(verdict: Verdict) -> bool:
    """Whether every comparison is of one run with one run."""
    found = [each.difference for each in verdict.comparisons]
    return bool(found) and all(
        each is not None
        and (each.ours == each.theirs or not each.against)
        and each.estimate.unknown == ONE_RUN
        for each in found
    )


def _one_run(verdict: Verdict, alone: bool) -> str:
    found = verdict.deciding
    if found is None or found.difference is None:
        return ""
    pair = f"{_pair(found)} {place(found.model)}"
    more = f" {MISSING}" if verdict.provisional else ""
    if verdict.after is not None:
        more += f" {exploratory(verdict.after)}"
    least = "The" if alone else "With one run on each side nothing is decided; the"
    return f"{least} least clear is {pair}.{more}"


def _estimate(claim: Claim, found: Comparison | None) -> str:
    """`+1.20 points, 95 % interval +0.40 to +2.00 (8 and 8 runs)` of the comparison that determines the outcome."""
    if found is None or found.difference is None:
        return ""
    interval = _interval(found)
    around = "no interval" if interval == "none" else f"95 % interval {interval}"
    ours, theirs = found.difference.ours, found.difference.theirs
    runs = (
        f"{ours} and {theirs} runs" if ours != theirs else f"{ours} runs each" if ours > 1 else "one run each"
    )
    return f"{signed_points(found.difference.estimate.value)} {claim.unit}, {around} ({runs})"


def _pair(found: Comparison) -> str:
    return against_words(display_name(found.variant), display_name(found.against) if found.against else "")


def _power(verdict: Verdict) -> str:
    words = power_words(verdict.power)
    return f"{power_question(verdict.claim)}: {words}" if words else ABSENT


def _observed(verdict: Verdict) -> str:
    """The direction of the estimates, which is all that single runs show."""
    known = [each for each in verdict.comparisons if each.difference is not None]
    if not known:
        return ""
    toward = sum(each.leans_for for each in known)
    if len(known) == 1:
        return f"The observed difference {'agrees with' if toward else 'disagrees with'} the claim."
    return f"The observed differences agree with the claim in {toward} of {len(known)} comparisons."


def _numbers(verdict: Verdict, runs: tuple[RunValues, ...]) -> tuple[tuple[str, str], ...]:
    found = verdict.deciding
    if found is None or found.difference is None:
        return ()
    if _single_runs(verdict):
        noise = _noise(found, runs) if verdict.claim.compares_scores else None
        return (
            ("difference", f"{signed_points(found.difference.estimate.value)} {verdict.claim.unit}"),
            ("noise of the evaluations alone", "not known" if noise is None else f"{100 * noise:.2f} points"),
            ("95 % interval, p, seeds to decide it", "not known"),
            ("runs", _runs(found.difference)),
        )
    numbers: tuple[tuple[str, str], ...] = (
        ("difference", f"{signed_points(found.difference.estimate.value)} {verdict.claim.unit}"),
        ("95 % interval", _interval(found)),
        ("runs", _runs(found.difference)),
        ("adjusted p for it", p_text(found.p_adjusted)),
        (power_question(verdict.claim), power_words(verdict.power)),
    )
    if verdict.outcome is VerdictOutcome.UNDECIDED:
        numbers += (("would decide it", verdict.seeds.words()),)
    return numbers


def _runs(found: Difference) -> str:
    return f"{found.ours} and {found.theirs}" if found.against else str(found.ours)


def _noise(found: Comparison, runs: tuple[RunValues, ...]) -> float | None:
    """Standard error of the difference of two final means from the scatter of their evaluations alone, a lower
    bound.
    """
    squares = [
        None if run.step_noise is None or not run.late else run.step_noise**2 / run.late
        for run in runs
        if run.model == (found.model or run.model) and run.variant in (found.variant, found.against)
    ]
    known = [square for square in squares if square is not None]
    models = 1 if found.model else len({run.model for run in runs})
    return math.sqrt(math.fsum(known)) / models if len(known) == len(squares) else None


def _comparison(each: Comparison) -> ComparisonLine:
    found = each.difference
    return ComparisonLine(
        model=each.model or OVER_MODELS,
        label=display_name(each.variant),
        against=display_name(each.against) if each.against else "0",
        ours=(each.model, each.variant),
        theirs=(each.model, each.against),
        runs=ABSENT if found is None else _runs(found),
        difference=ABSENT if found is None else signed_points(found.estimate.value),
        interval=_interval(each),
        p=p_text(each.p_adjusted),
        improvement=ABSENT if found is None else _improvement(found),
        seeds=each.seeds.words(),
        outcome=each.outcome.value,
    )


def _improvement(found: Difference) -> str:
    """P(improvement) with its interval; none for one run against one, where it would be 0 or 1, and for shares and
    slopes.
    """
    if found.improvement is None or found.ours < 2 or found.theirs < 2:
        return "none"
    return f"{found.improvement.value:.2f}"


def _interval(each: Comparison) -> str:
    found = None if each.difference is None else each.difference.estimate
    if found is None or found.low is None or found.high is None:
        return "none"
    return f"{signed_points(found.low)} to {signed_points(found.high)}"


def verdict_table(view: VerdictView) -> TextTable | None:
    """One row for each comparison, labelled with its claim; None without comparisons."""
    rows = [_row(line, number) for line in view.lines for number in range(len(line.comparisons))]
    if not rows:
        return None
    headings = (
        *("outcome", "method", "against", "model", "runs", "difference", "95 % interval", "adjusted p"),
        *("P(improvement)", "seeds to decide", "comparison", "power of the claim"),
    )
    notes = [f"Source: {origin(view.core)}.", view.summary, view.method]
    notes += [f"{line.text}: {line.deviation}" for line in view.lines if line.deviation]
    notes += [view.caution] if view.caution else []
    notes += [f"One run per method cannot say: {'; '.join(view.cannot)}."] if view.cannot else []
    return TextTable("Verdicts", view.core, "claim", headings, tuple(rows), tuple(notes))


def _row(line: VerdictLine, number: int) -> TextRow:
    each = line.comparisons[number]
    cells = (
        *(
            line.outcome + " (exploratory)" * line.exploratory,
            each.label,
            each.against,
            each.model,
            each.runs,
            each.difference,
            each.interval,
        ),
        *(each.p, each.improvement, each.seeds, each.outcome, line.power),
    )
    return TextRow(line.text, each.ours[1] == OURS, cells, each.ours)
