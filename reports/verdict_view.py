"""The claims on a page: the sentences that it begins with, a verdict for each claim in words and with its comparisons,
and the same as a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import (
    CLAIMS,
    MARGIN,
    SMALLEST,
    Claim,
    Kind,
    Standing,
    claims_about,
)
from cppo_lab.analysis.statistics.estimate import ONE_RUN
from cppo_lab.analysis.statistics.paired import Difference, with_holm
from cppo_lab.analysis.statistics.summary import CANNOT, Statistics
from cppo_lab.analysis.statistics.values import Quantity, Score, run_values
from cppo_lab.analysis.statistics.verdicts import (
    MISSING,
    Comparison,
    Verdict,
    VerdictOutcome,
    Word,
    against_words,
    exploratory,
    judge,
    place,
    power_question,
    power_words,
    ratio_words,
    reason,
    verdicts,
    word_of,
    word_of_comparison,
)
from cppo_lab.core_records import core_if_installed
from cppo_lab.errors import counted
from cppo_lab.reports.names import ABSENT, OURS, display_name, p_text, signed_points
from cppo_lab.reports.tables import ALPHA, TextRow, TextTable

_OVER_MODELS = "mean over models"
_SCORES: Mapping[Score, str] = {
    Score.BEST: "best step",
    Score.CORRECTED: "best step, corrected",
    Score.FINAL: "final mean",
    Score.AREA: "area under the curve",
}
_OF_SCORE = {**_SCORES, Score.CORRECTED: "corrected best step"}  # within a sentence


@dataclass(frozen=True)
class VerdictLine:
    """One claim as reports show it. `registered`: whether it was registered before its runs. `exploratory`: it was not,
    or some of its runs are missing here, or the claim before it is not supported. `estimate`: difference, interval and
    runs in one line. `sentence`: the reason for the outcome; `beside`: the end of it that says what controls show.
    `observed`: the direction of the observed differences. `deviation`: the result of the comparison that the design of
    the runs asks for, if another one was registered. `others`: the outcome by the other scores, empty if the claim is
    not about a score.
    """

    verdict: Verdict
    registered: str
    exploratory: bool
    estimate: str
    sentence: str
    comparisons: TextTable
    power: str
    beside: str = ""
    observed: str = ""
    deviation: str = ""
    others: str = ""

    @property
    def outcome(self) -> str:
        """The outcome, and whether it is exploratory."""
        return self.verdict.outcome.value + " (exploratory)" * self.exploratory


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


def verdict_view(
    boards: Mapping[str, Scoreboard],
    core: str,
    whole: bool = False,
    standings: Mapping[Claim, Standing] = MappingProxyType({}),
) -> VerdictView:
    """The hypotheses of the sweeps with their `standings`, and the paper's claims that these sweeps (by name) can
    test; for the `whole` study, the claims about missing sweeps are named too.
    """
    claims = claims_about({name: board.variants for name, board in boards.items()}, whole)
    judged = verdicts(boards, [*standings, *claims])
    of_scores = [
        verdict for verdict in judged if verdict.claim.kind is not Kind.COLLAPSE and verdict.comparisons
    ]
    alone = bool(of_scores) and all(map(_single_runs, of_scores))
    lines = tuple(
        verdict_line(verdict, boards[verdict.claim.sweep], standings.get(verdict.claim), alone=alone)
        for verdict in judged
    )
    by_score, paired, rule, power = _method(judged)
    tested = any(comparison.p_for is not None for verdict in judged for comparison in verdict.comparisons)
    absent = [claim for claim in CLAIMS if whole and claim.sweep not in boards]
    return VerdictView(
        summary=tally([(line.verdict.outcome, line.exploratory) for line in lines])
        or "The paper makes no claim about the variants of this sweep.",
        caution=_caution(core, bool(judged)),
        core=core,
        lines=lines,
        method=f"{by_score}{paired} {rule} {power}",
        rule=f"{by_score} {rule}" if tested else "",
        cannot=CANNOT if alone else (),
        not_judged=tuple(f"{claim.text} (sweep {claim.sweep})" for claim in absent),
    )


_SCORE_WORDS: Mapping[Score | Quantity, str] = {
    Score.FINAL: "Judged by the mean of the last 30 % of the window: it has no selection bias, and collapses count.",
    Score.AREA: "Judged by the area under the validation curve.",
    Score.BEST: "Judged by the best step, whose score is too high by selection.",
    Score.CORRECTED: "Judged by the best step, corrected for its selection.",
}


def _method(claims: Sequence[Verdict]) -> tuple[str, str, str, str]:
    """How these verdicts were reached: by which score, in pairs or not, when a claim holds, and what the power is."""
    scores = {verdict.score for verdict in claims if verdict.claim.compares_scores} or {Score.FINAL}
    judged = (
        _SCORE_WORDS[next(iter(scores))]
        if len(scores) == 1
        else "Each claim is judged by the score it names."
    )
    least = sorted(
        {verdict.claim.smallest for verdict in claims if verdict.claim.margin is None} or {SMALLEST}
    )
    smallest = (
        "an advantage below the size that its claim names"
        if len(least) > 1
        else f"an advantage below {100 * least[0]:g} point{'s' * (least[0] != 0.01)}"
    )
    margins = sorted(
        {verdict.claim.margin for verdict in claims if verdict.claim.margin is not None} or {MARGIN}
    )
    margin = (
        "the margin that the claim names"
        if margins != [MARGIN]
        else f"{100 * MARGIN:g} points, our margin, since the paper gives none"
    )
    pairs = [
        comparison.difference
        for verdict in claims
        for comparison in verdict.comparisons
        if comparison.difference is not None
    ]
    paired = (
        " Runs of one seed share their start and are compared in pairs."
        if any(pair.paired and pair.estimate.n > 1 for pair in pairs)
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
    if core_if_installed(core).miniature:
        return (
            f"{'Verdicts' if judged else 'Results'} of core={core} are no evidence for or against the paper."
        )
    return ""


def tally(outcomes: Sequence[tuple[VerdictOutcome, bool]], about: str = "") -> str:
    """`3 claims: 1 supported, 1 undecided; exploratory: 1 supported.` of (outcome, whether it is exploratory); empty
    without any.
    """
    parts = []
    for late in (False, True):
        counts = [(outcome, sum(pair == (outcome, late) for pair in outcomes)) for outcome in VerdictOutcome]
        if said := ", ".join(
            f"{count} {outcome.value.replace(',', ' but')}" for outcome, count in counts if count
        ):
            parts.append(f"exploratory: {said}" if late else said)
    return f"{len(outcomes)} claim{'s' * (len(outcomes) > 1)}{about}: {'; '.join(parts)}." if parts else ""


def verdict_line(
    verdict: Verdict, board: Scoreboard, standing: Standing | None, beside: str = "", alone: bool = False
) -> VerdictLine:
    """`alone`: the page says once, for all claims, that single runs decide nothing."""
    claim, one_run = verdict.claim, _single_runs(verdict) and not verdict.claim.of_errors
    words = power_words(verdict.power)
    # It confirms nothing if the claim before it is not supported although this one is decided, or by its standing; a
    # claim of the paper has none.
    late = verdict.after is not None and verdict.outcome is not VerdictOutcome.UNDECIDED
    return VerdictLine(
        verdict=verdict,
        registered="" if standing is None else standing.words,
        exploratory=late or (standing is not None and not standing.confirmatory),
        estimate=_estimate(claim, verdict.deciding),
        sentence=(_one_run(verdict, alone) if one_run else reason(verdict, display_name)) + beside,
        comparisons=_comparisons(verdict),
        power=f"{power_question(claim)}: {words}" if words else ABSENT,
        beside=beside,
        deviation="" if claim.pairing is None else _deviation(claim, board),
        observed="" if claim.of_errors else _observed(verdict),
        others="; ".join(f"{_SCORES[score]}: {outcome.value}" for score, outcome in verdict.others.items()),
    )


def _deviation(claim: Claim, board: Scoreboard) -> str:
    """The result as the design of the runs asks for, beside that of the registered analysis."""
    verdict = judge(replace(claim, pairing=None), board, run_values(board))
    why = (
        "takes the runs of one seed as independent, but they share their start. Compared in pairs"
        if not claim.pairing
        else "compares the runs of one seed in pairs, but they share no start. Taken as independent"
    )
    listed = "; ".join(
        f"{_pair(comparison)} {place(comparison.model)} {signed_points(comparison.difference.estimate.value)} "
        f"({_interval(comparison)})"
        for comparison in verdict.comparisons
        if comparison.difference is not None
    )
    return f"Deviation from the registered analysis, which {why}: {verdict.outcome.value}. {listed}, in {claim.unit}."


def _single_runs(verdict: Verdict) -> bool:
    """Whether every comparison is of one run with one run."""
    differences = [comparison.difference for comparison in verdict.comparisons]
    return bool(differences) and all(
        difference is not None
        and (difference.ours == difference.theirs or not difference.against)
        and difference.estimate.unknown == ONE_RUN
        for difference in differences
    )


def _one_run(verdict: Verdict, alone: bool) -> str:
    if (deciding := verdict.deciding) is None:
        return ""
    more = f" {MISSING}" if verdict.provisional else ""
    if verdict.after is not None:
        more += f" {exploratory(verdict.after)}"
    least = "The" if alone else "With one run on each side nothing is decided; the"
    return f"{least} least clear is {_pair(deciding)} {place(deciding.model)}.{more}"


def _estimate(claim: Claim, deciding: Comparison | None) -> str:
    """`+1.20 points, 95 % interval +0.40 to +2.00 (8 and 8 runs)` of the comparison that determines the outcome."""
    if deciding is None or deciding.difference is None:
        return ""
    difference = deciding.difference
    if claim.of_errors:
        of = f"of the error of {display_name(deciding.against)}"
        value, interval = ratio_words(claim, difference.estimate).split(", ", 1)
        return f"{value} {of if claim.score is Quantity.ERROR else 'per tenfold T'}, {interval}"
    interval = _interval(deciding)
    around = "no interval" if interval == "none" else f"95 % interval {interval}"
    ours, theirs = difference.ours, difference.theirs
    runs = (
        counted(ours, "run")
        if not difference.against
        else f"{ours} and {theirs} runs"
        if ours != theirs
        else f"{ours} runs each"
        if ours > 1
        else "one run each"
    )
    return f"{signed_points(difference.estimate.value)} {claim.unit}, {around} ({runs})"


def _pair(comparison: Comparison) -> str:
    return against_words(display_name(comparison.variant), display_name(comparison.against))


def _observed(verdict: Verdict) -> str:
    """The direction of the estimates, which is all that single runs show: whether a comparison would be supported if
    the observed difference were the true one.
    """
    claim = verdict.claim
    values = [comparison.estimate.value for comparison in verdict.comparisons if comparison.estimate]
    agree = sum(
        value > claim.smallest / 2 if claim.margin is None else abs(value) < claim.margin for value in values
    )
    if len(values) == 1:
        return f"The observed difference {'agrees with' if agree else 'disagrees with'} the claim."
    sentence = f"The observed differences agree with the claim in {agree} of {len(values)} comparisons."
    return sentence if values else ""


_HEADINGS = (
    "against",
    "model",
    "runs",
    "difference",
    "95 % interval",
    "adjusted p",
    "P(improvement)",
    "comparison",
)
_OF_ERRORS = (
    *("against", "process", "seeds", "ratio", "95 % interval", "at equal return, too", "p for", "p against"),
    "comparison",
)


def _comparisons(verdict: Verdict) -> TextTable:
    claim, rows = verdict.claim, []
    for comparison in verdict.comparisons:
        label, word = display_name(comparison.variant), word_of_comparison(claim, comparison).value
        if claim.of_errors:
            rows.append(TextRow(label, False, (*_error_cells(claim, comparison), word)))
            continue
        difference, cells = comparison.difference, (ABSENT, ABSENT, ABSENT)
        if difference is not None:
            counts = (str(difference.ours), str(difference.theirs))
            runs = " and ".join(counts if difference.against else counts[:1])
            share = "none"  # of one run against one, where it would be 0 or 1, and of shares and slopes
            if difference.improvement is not None and min(difference.ours, difference.theirs) > 1:
                share = f"{difference.improvement.value:.2f}"
            cells = (runs, signed_points(difference.estimate.value), share)
        against = display_name(comparison.against) if comparison.against else "0"
        tested = (_interval(comparison), p_text(comparison.p_adjusted))
        texts = (against, comparison.model or _OVER_MODELS, *cells[:2], *tested, cells[2], word)
        rows.append(TextRow(label, comparison.variant == OURS, texts, (comparison.model, comparison.variant)))
    lead, headings = ("rule", _OF_ERRORS) if claim.of_errors else ("method", _HEADINGS)
    return TextTable(f"Comparisons of: {claim.text}", lead, headings, rows)


def _error_cells(claim: Claim, comparison: Comparison) -> tuple[str, ...]:
    texts = []
    for estimate in (comparison.estimate, comparison.matched):
        if estimate is None:
            texts.append((ABSENT, "none"))
        else:
            interval = ratio_words(claim, estimate).partition("interval ")[2]
            texts.append((f"{claim.shown(estimate)[0]:.3f}", interval))
    (ratio, interval), (matched, around) = texts
    return (
        display_name(comparison.against),
        comparison.model or "mean over processes",
        str(comparison.runs) if comparison.difference else ABSENT,
        ratio + (" per tenfold T" if claim.score is Quantity.ERROR_SLOPE else ""),
        interval,
        f"{matched} ({around})",
        p_text(comparison.p_for),
        p_text(comparison.p_against),
    )


def _interval(comparison: Comparison) -> str:
    estimate = comparison.estimate
    if estimate is None or estimate.low is None or estimate.high is None:
        return "none"
    return f"{signed_points(estimate.low)} to {signed_points(estimate.high)}"


def verdict_table(view: VerdictView) -> TextTable | None:
    """One row for each comparison, labelled with its claim; None without comparisons."""
    notes = [view.summary, view.method]
    notes += [f"{line.verdict.claim.text}: {line.deviation}" for line in view.lines if line.deviation]
    notes += [view.caution] if view.caution else []
    notes += [f"One run per method cannot say: {'; '.join(view.cannot)}."] if view.cannot else []
    last = {"power of the claim": [line.power for line in view.lines]}
    return claims_table("Verdicts", view.core, "claim", view.lines, last, notes)


def claims_table(
    title: str,
    core: str,
    lead: str,
    lines: Sequence[VerdictLine],
    last: Mapping[str, Sequence[str]],
    notes: Sequence[str],
) -> TextTable | None:
    """The comparisons of these claims below one another; None without any. `last`: further columns, a text a line."""
    rows = tuple(
        TextRow(
            line.verdict.claim.text,
            row.shaded,
            (line.outcome, row.label, *row.cells, *(texts[number] for texts in last.values())),
            row.pair,
        )
        for number, line in enumerate(lines)
        for row in line.comparisons.rows
    )
    if not rows:
        return None
    headings = ("outcome", lines[0].comparisons.lead, *lines[0].comparisons.headings, *last)
    return TextTable(title, lead, headings, rows, notes, core)


# The first screen of a sweep's page: which variant is better here, and how sure that is, in a sentence for each pair.
#
# A sweep with hypotheses of its own is answered by the comparisons that these name; any other sweep by comparing its
# variants with the baseline, by the mean score of the last part of the window.


def short_answers(
    of_scores: Sequence[Verdict], of_errors: Sequence[VerdictLine], statistics: Statistics
) -> list[tuple[Word, str]]:
    """What each comparison shows, and a sentence with its difference, 95 % interval and seeds: those of the sweep's own
    hypotheses, which have these verdicts, and what controls show of those about errors; without any, those with the
    baseline, whose p-values have Holm's adjustment.
    """
    if not of_scores and not of_errors:
        # The final means minus that of the baseline: over the models if there are several, else on the only one.
        against = statistics.overall
        if len({cell.model for cell in statistics.cells}) < 2:
            cells = (cell.differences.get(Score.FINAL) for cell in statistics.cells)
            against = tuple(difference for difference in cells if difference is not None)
        tested = with_holm(against)
        return [_answer(difference, SMALLEST, p is not None and p < ALPHA) for difference, p in tested]
    answers = [
        _answer(comparison.difference, verdict.claim.margin or verdict.claim.smallest, None)
        for verdict in of_scores
        if verdict.claim.compares_scores
        for comparison in verdict.comparisons
        if comparison.difference is not None and comparison.against
    ]
    for line in of_errors:
        claim, deciding = line.verdict.claim, line.verdict.deciding
        word = Word.OPEN if deciding is None else word_of_comparison(claim, deciding)
        shows = ", ".join(filter(None, (line.outcome, line.estimate)))
        answers.append((word, f"{claim.text}: {shows}.{line.beside}"))
    return answers


def _answer(difference: Difference, smallest: float, decided: bool | None) -> tuple[Word, str]:
    estimate, names = difference.estimate, [difference.variant, difference.against]
    word = word_of(estimate, smallest, decided)
    if word is Word.WORSE:
        names, estimate = names[::-1], replace(estimate, value=-estimate.value)
    first, second = map(display_name, names)
    where = f" on {difference.model}" if difference.model else " over the models"
    numbers = f"{signed_points(estimate.value)} points"
    if estimate.unknown == ONE_RUN:
        return word, f"One run each cannot decide between {first} and {second}{where}: {numbers}."
    # Tables beside it may show another score, which may differ the other way round.
    of_score = f" of the {_OF_SCORE[difference.score]}" if isinstance(difference.score, Score) else ""
    # `20 seeds each` of one model; over several models the runs are counted.
    ours, theirs, unit = difference.ours, difference.theirs, "seed" if difference.model else "run"
    seeds = f"{ours} {unit}{'s' * (ours > 1)} each" if ours == theirs else f"{ours} and {theirs} {unit}s"
    if estimate.low is not None and estimate.high is not None:
        numbers += f" ({signed_points(estimate.low)} to {signed_points(estimate.high)})"
    numbers += of_score
    if word is Word.SAME:
        within = f"{100 * smallest:g} point" + ("s" if smallest != SMALLEST else "")
        return word, f"{first} and {second} are within {within}{where}: {numbers}, {seeds}."
    if word is Word.OPEN:
        return word, f"No difference between {first} and {second}{where} that {seeds} can show: {numbers}."
    verb = "learns faster" if difference.score is Score.AREA else "scores higher"
    return Word.BETTER, f"{first} {verb} than {second}{where}: {numbers}, {seeds}."
