"""The claims on a page: the sentences that it begins with, a verdict for each claim in words and with its comparisons,
and the same as a table.
"""

import math
from collections import Counter
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
from cppo_lab.analysis.statistics.estimate import ONE_RUN, Estimate, SlopeEstimate
from cppo_lab.analysis.statistics.paired import Difference, with_holm
from cppo_lab.analysis.statistics.power import MOST_SEEDS, POWER, ReachedPower
from cppo_lab.analysis.statistics.summary import CANNOT, Statistics
from cppo_lab.analysis.statistics.values import Measure, Quantity, Score, run_values
from cppo_lab.analysis.statistics.verdicts import (
    Comparison,
    Verdict,
    VerdictOutcome,
    Word,
    contradictions,
    judge,
    verdicts,
    word_of,
    word_of_comparison,
)
from cppo_lab.core_records import core_if_installed
from cppo_lab.errors import counted
from cppo_lab.reports.names import ABSENT, display_name, estimate_text, p_text, points
from cppo_lab.reports.tables import TWO_SIDED_LEVEL, TextRow, TextTable, cell_row

_SCORES: Mapping[Score, str] = {
    Score.BEST: "best step",
    Score.CORRECTED: "best step, corrected",
    Score.FINAL: "final mean",
    Score.AREA: "area under the curve",
}
_OF_SCORE = {**_SCORES, Score.CORRECTED: "corrected best step"}  # within a sentence


@dataclass(frozen=True)
class VerdictLine:
    """A claim as reports show it. `registered`: whether it was registered before its runs. `exploratory`: it was not,
    or some of its runs are missing here, or the claim before it is not supported. `estimate`: difference, interval and
    runs as a single line. `sentence`: the reason for the outcome; `beside`: the end of it that says what controls show.
    `observed`: the direction of the observed differences. `deviation`: the result of the comparison that the design of
    the runs asks for, if another was registered. `others`: the outcome by the other scores, empty if the claim is not
    about a score.
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
    stopped = {claim.sweep for claim in standings if claim.sequential}
    unplanned = {
        claim: _STOPPED if claim.sweep in stopped else _NOT_REGISTERED
        for claim in claims
        if claim.sweep in stopped or claim not in CLAIMS
    }
    standings = {**unplanned, **standings}
    of_scores = [
        verdict for verdict in judged if verdict.claim.kind is not Kind.COLLAPSE and verdict.comparisons
    ]
    alone = bool(of_scores) and all(map(_single_runs, of_scores))
    lines = tuple(
        verdict_line(verdict, boards[verdict.claim.sweep], standings.get(verdict.claim), alone=alone)
        for verdict in judged
    )
    caution = ""
    if core == schema.PAPER:
        caution = "The runs are the paper's own, read off its curves: "
        caution += "the claims are compared with the paper's own data."
    elif core_if_installed(core).miniature:
        what = "Verdicts" if judged else "Results"
        caution = f"{what} of core={core} are no evidence for or against the paper."
    # How these verdicts were reached: by which score, in pairs or not, and when a claim holds.
    scores = {verdict.score for verdict in judged if verdict.claim.compares_scores} or {Score.FINAL}
    by_score = "Each claim is judged by the score it names."
    if len(scores) == 1:
        by_score = _SCORE_WORDS[scores.pop()]
    sizes = {
        _size(verdict.claim, verdict.claim.smallest) for verdict in judged if verdict.claim.margin is None
    }
    smallest = "the size that its claim names" if len(sizes) > 1 else next(iter(sizes), "1 point")
    alike, margin = [verdict.claim for verdict in judged if verdict.claim.margin is not None], ""
    if alike:
        named = f"{100 * MARGIN:g} points, our margin, since the paper gives none"
        if not all(claim in CLAIMS for claim in alike):
            named = "the margin that the claim names"
        margin = f" Two methods are equivalent if it lies within {named}."
    comparisons = [comparison for verdict in judged for comparison in verdict.comparisons]
    paired = any(
        pair is not None and pair.paired and pair.estimate.unknown != ONE_RUN
        for pair in (comparison.difference for comparison in comparisons)
    )
    rule = (
        f"A method is better where the 95 % interval of the difference lies above 0; an advantage below {smallest} "
        f"counts as none.{margin} p is one-sided; a claim is supported "
        "if each is at most 0.025 without adjustment, and tables show it after Holm's."
    )
    if any(verdict.claim.sequential for verdict in judged):
        rule += (
            f" Sequential claims are judged after each seed from number {schema.FIRST_LOOK} on; their intervals and p "
            "hold for all these looks together, and others do not allow for them."
        )
    in_pairs = " Runs of one seed are compared in pairs." * paired
    tested = any(comparison.p_for is not None for comparison in comparisons)
    absent = [claim for claim in CLAIMS if claims and whole and claim.sweep not in boards]
    return VerdictView(
        summary=tally(lines) or "The paper makes no claim about the variants of this sweep.",
        caution=caution,
        lines=lines,
        method=f"{by_score}{in_pairs} {rule}" + _POWER_WORDS * any(verdict.power for verdict in judged),
        rule=f"{by_score} {rule}" if tested else "",
        cannot=CANNOT if alone else (),
        not_judged=tuple(f"{claim.text} (sweep {claim.sweep})" for claim in absent),
    )


_NOT_REGISTERED = Standing("Not registered. Exploratory.", False)
_STOPPED = Standing(
    "Not registered, and seeds were added until sequential hypotheses were decided, which its interval does not allow "
    "for. Exploratory.",
    False,
)
_SCORE_WORDS: Mapping[Measure, str] = {
    Score.FINAL: "Judged by the mean of the last 30 % of the window: it has no selection bias, and collapses count.",
    Score.AREA: "Judged by the area under the validation curve.",
    Score.BEST: "Judged by the best step, whose score is too high by selection.",
    Score.CORRECTED: "Judged by the best step, corrected for its selection.",
}
_POWER_WORDS = (
    " The power is about the probability that the claim comes out supported with so many runs, if the true difference "
    "is the one named and their spread the true one, which few seeds show only roughly; next to it is the number of "
    "runs of each method and model for a power of 0.8."
)


def tally(lines: Sequence[VerdictLine], about: str = "") -> str:
    """`3 claims: 1 supported, 1 undecided; exploratory: 1 supported.`; empty without any."""
    parts = []
    for exploratory in (False, True):
        counts = Counter(line.verdict.outcome for line in lines if line.exploratory is exploratory)
        if said := ", ".join(
            f"{counts[outcome]} {outcome.value.replace(',', ' but')}"
            for outcome in VerdictOutcome
            if counts[outcome]
        ):
            parts.append(f"exploratory: {said}" if exploratory else said)
    return f"{counted(len(lines), 'claim')}{about}: {'; '.join(parts)}." if parts else ""


def verdict_line(
    verdict: Verdict, board: Scoreboard, standing: Standing | None, beside: str = "", alone: bool = False
) -> VerdictLine:
    """`alone`: the page says once, for all claims, that single runs decide nothing."""
    claim, deciding, words = verdict.claim, verdict.deciding, power_words(verdict.power)
    sentence = reason(verdict)
    if deciding is not None and _single_runs(verdict) and not claim.of_errors:
        least = "The" if alone else "With one run on each side nothing is decided; the"
        pair = _pair(deciding, claim.kind is Kind.TREND)
        sentence = f"{least} least clear is {pair}.{_missing(verdict)}{_exploratory(verdict)}"
    # It confirms nothing if the claim before it is not supported although this claim is decided, or by its standing; a
    # claim of the paper has none.
    before = verdict.unsupported_before is not None and verdict.outcome is not VerdictOutcome.UNDECIDED
    estimate = observed = ""
    # `+1.20 points, 95 % interval +0.40 to +2.00 (8 and 8 runs)` of the comparison that determines the outcome.
    if deciding is not None and deciding.difference is not None:
        value, interval = _written(claim, deciding.estimate)
        around = "no interval" if interval == ABSENT else f"95 % interval {interval}"
        estimate = f"{value} {claim.unit}, {around} ({_runs(deciding.difference)})"
        if claim.of_errors:
            of = f"of the error of {display_name(deciding.against)}"
            estimate = f"{value} {of if claim.score is Quantity.ERROR else 'per tenfold T'}, {around}"
    # The direction of the estimates is all that single runs show: whether a comparison would hold if the observed
    # difference were the true difference.
    values = [comparison.estimate.value for comparison in verdict.comparisons if comparison.estimate]
    if values and not claim.of_errors:
        agree = sum(value > 0 if claim.margin is None else abs(value) < claim.margin for value in values)
        observed = f"The observed differences agree with the claim in {agree} of {len(values)} comparisons."
        if len(values) == 1:
            observed = f"The observed difference {'agrees with' if agree else 'disagrees with'} the claim."
    lead, headings = ("rule", _OF_ERRORS) if claim.of_errors else ("method", _HEADINGS)
    over, rows = "over models" if claim.kind is Kind.TREND else "mean over models", []
    for comparison in verdict.comparisons:
        difference, word = comparison.difference, word_of_comparison(claim, comparison).value
        value, interval = _written(claim, comparison.estimate)
        runs = share = ABSENT
        if difference is not None:
            counts = difference.ours, difference.theirs
            runs = " and ".join(map(str, counts[: 2 if difference.against and not claim.of_errors else 1]))
            # Not of single runs, where it would be 0 or 1 on a model, nor of shares and slopes.
            if difference.improvement is not None and difference.improvement.low is not None:
                share = f"{difference.improvement.value:.2f}"
        tests: tuple[str, ...] = p_text(comparison.p_adjusted), share
        if claim.of_errors:
            over = "mean over processes"
            value += " per tenfold T" * (claim.score is Quantity.ERROR_SLOPE)
            equal_return = "{} ({})".format(*_written(claim, comparison.at_equal_return))
            tests = equal_return, p_text(comparison.p_for), p_text(comparison.p_against)
        about = display_name(comparison.against) or "0", comparison.model or over, runs
        row = cell_row(comparison.model, comparison.variant, (*about, value, interval, *tests, word))
        rows.append(replace(row, shaded=False, pair=None) if claim.of_errors else row)
    return VerdictLine(
        verdict=verdict,
        registered="" if standing is None else standing.words,
        exploratory=before or (standing is not None and not standing.confirmatory),
        estimate=estimate,
        sentence=sentence + beside,
        comparisons=TextTable(f"Comparisons of: {claim.text}", lead, headings, rows),
        power=f"{power_question(claim)}: {words}" if words else ABSENT,
        beside=beside,
        deviation="" if claim.pairing is None else _deviation(claim, board),
        observed=observed,
        others="; ".join(f"{_SCORES[score]}: {outcome.value}" for score, outcome in verdict.others.items()),
    )


def _deviation(claim: Claim, board: Scoreboard) -> str:
    """The result as the design of the runs asks for, beside that of the registered analysis."""
    verdict = judge(replace(claim, pairing=None), board, run_values(board))
    why = (
        "takes the runs of one seed as independent, but their design pairs them. Compared in pairs"
        if not claim.pairing
        else "compares the runs of one seed in pairs, but their design does not. Taken as independent"
    )
    listed = "; ".join(
        "{} {} ({})".format(_pair(comparison), *_written(claim, comparison.estimate))
        for comparison in verdict.comparisons
        if comparison.difference is not None
    )
    return f"Deviation from the registered analysis, which {why}: {verdict.outcome.value}. {listed}, in {claim.unit}."


def _single_runs(verdict: Verdict) -> bool:
    """Whether every comparison is of single runs: of a run with a run, or with 0."""
    differences = [comparison.difference for comparison in verdict.comparisons]
    return bool(differences) and all(
        difference is not None
        and (difference.ours == difference.theirs or not difference.against)
        and difference.estimate.unknown == ONE_RUN
        for difference in differences
    )


# A reported difference: which, its number and interval, and the runs that it uses.


def _pair(comparison: Comparison, trend: bool = False) -> str:
    """`CPPO against DPPO on m`; only the first if it is compared with 0."""
    pair, model = display_name(comparison.variant), comparison.model
    if comparison.against:
        pair += f" against {display_name(comparison.against)}"
    where = f"on {model}" if model else "over the models" if trend else "in the mean over the models"
    return f"{pair} {where}"


def _written(claim: Claim, estimate: Estimate | None) -> tuple[str, str]:
    """`+1.20` and `+0.40 to +2.00`; of a claim about errors `0.842` and `0.781 to 0.908`; ABSENT for no interval."""
    if estimate is None:
        return ABSENT, ABSENT

    def form(value: float) -> str:
        return f"{value:.3f}" if claim.of_errors else points(value, signed=True)

    value, low, high = claim.as_reported(estimate)
    return form(value), ABSENT if low is None or high is None else f"{form(low)} to {form(high)}"


def _runs(difference: Difference) -> str:
    """`8 runs each`, `8 and 5 runs`; without a second side `8 runs`."""
    ours, theirs = difference.ours, difference.theirs
    if not difference.against:
        return counted(ours, "run")
    if ours != theirs:
        return f"{ours} and {theirs} runs"
    return f"{ours} runs each" if ours > 1 else "one run each"


def _size(claim: Claim, size: float) -> str:
    """A difference in words, as in `2 points`; of errors `10 %`."""
    if claim.of_errors:
        return f"{-100 * math.expm1(-size):g} %"
    number = f"{100 * size:g}"
    return f"{number} {claim.unit.replace('points', 'point', 1) if number == '1' else claim.unit}"


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
    "against",
    "process",
    "seeds",
    "ratio",
    "95 % interval",
    "at equal return, too",
    "p for",
    "p against",
    "comparison",
)


def claims_table(
    title: str,
    core: str,
    lead: str,
    lines: Sequence[VerdictLine],
    last: Mapping[str, Sequence[str]],
    notes: Sequence[str],
) -> TextTable | None:
    """The comparisons of these claims below one another, each labelled with its claim; None without any. `last`:
    further columns, a text a line.
    """
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


def short_answers(hypotheses: Sequence[VerdictLine], statistics: Statistics) -> list[tuple[Word, str]]:
    """What each comparison shows, and a sentence with its difference, 95 % interval and runs: those of the sweep's own
    `hypotheses`, then those about trends and errors, with what controls show; without any, those with the baseline,
    whose p-values have Holm's adjustment. What is not confirmatory says so.
    """
    if not hypotheses:
        # The final means minus that of the baseline: over the models if there are several and all have both variants,
        # else on each model.
        several = len({model for model, _ in statistics.cells}) > 1
        overall = statistics.overall if several else ()
        whole = {difference.variant for difference in overall}
        tested = with_holm(overall)
        tested += [
            (difference, statistics.adjusted.get((difference.model, difference.variant, Score.FINAL)))
            for difference in statistics.final
            if difference.variant not in whole
        ]
        return [
            _answer(difference, SMALLEST, True, p is not None and p < TWO_SIDED_LEVEL)
            for difference, p in tested
        ]
    of_scores, others = [], []
    for line in hypotheses:
        claim, deciding = line.verdict.claim, line.verdict.deciding
        if claim.of_errors or claim.kind is Kind.TREND:
            word = Word.OPEN if deciding is None else word_of_comparison(claim, deciding)
            shows = ", ".join(filter(None, (line.outcome, line.estimate)))
            others.append((word, f"{claim.text}: {shows}.{line.beside}"))
        elif claim.compares_scores:
            # A claim that holds needs all its comparisons; of another each may be found by chance.
            compared = [comparison for comparison in line.verdict.comparisons if comparison.against]
            differences = [
                comparison.difference for comparison in compared if comparison.difference is not None
            ]
            decided = {
                difference: line.verdict.outcome.holds or (p is not None and p < TWO_SIDED_LEVEL)
                for difference, p in with_holm(differences)
            }
            of_scores += [
                (Word.OPEN, f"{_pair(comparison)} is not known: {comparison.why}.")
                if comparison.difference is None
                else _answer(
                    comparison.difference,
                    claim.margin or claim.smallest,
                    line.exploratory,
                    decided[comparison.difference],
                )
                for comparison in compared
            ]
    return of_scores + others


def _answer(difference: Difference, smallest: float, exploratory: bool, decided: bool) -> tuple[Word, str]:
    estimate, names = difference.estimate, [difference.variant, difference.against]
    word = word_of(estimate, smallest, decided)
    if word is Word.WORSE:
        names, estimate = names[::-1], replace(estimate, value=-estimate.value)
        difference = replace(difference, ours=difference.theirs, theirs=difference.ours)
    first, second = map(display_name, names)
    where = f" on {difference.model}" if difference.model else " over the models"
    numbers, runs = f"{estimate_text(estimate, signed=True)} points", _runs(difference)
    standing = " Exploratory." * exploratory
    # Tables beside it may show another score, which may differ the other way round.
    numbers += f" of the {_OF_SCORE[difference.score]}" if isinstance(difference.score, Score) else ""
    if estimate.unknown:
        why = "" if estimate.unknown == ONE_RUN else f"; {estimate.unknown}"
        return (
            word,
            f"{runs[0].upper()}{runs[1:]} cannot decide between {first} and {second}{where}: {numbers}{why}.",
        )
    if word is Word.SAME:
        within = f"{100 * smallest:g} point" + ("s" if smallest != SMALLEST else "")
        return word, f"{first} and {second} are within {within}{where}: {numbers}, {runs}.{standing}"
    if word is Word.OPEN:
        # Its interval, which is not adjusted, may exclude 0.
        adjusted = word_of(estimate, smallest) is not Word.OPEN
        show = "show after Holm's adjustment for all comparisons" if adjusted else "show"
        return word, f"No difference between {first} and {second}{where} that {runs} can {show}: {numbers}."
    verb = "learns faster" if difference.score is Score.AREA else "scores higher"
    return Word.BETTER, f"{first} {verb} than {second}{where}: {numbers}, {runs}.{standing}"


# A verdict in a sentence or two.


def reason(verdict: Verdict) -> str:
    """The reason for the outcome."""
    claim, deciding, looked, outcome = verdict.claim, verdict.deciding, verdict.looked, verdict.outcome
    if deciding is None:
        return f"Nothing of sweep {claim.sweep!r} can be compared yet."
    count = len(verdict.comparisons)
    alike = sum(comparison.outcome is outcome for comparison in verdict.comparisons)
    clause = "Open:"
    many = f"{alike} of {count} comparisons {'is' if alike == 1 else 'are'} open; the weakest:"
    if outcome is VerdictOutcome.NOT_SUPPORTED:
        clause = "There is no relevant advantage:"
        many = f"{alike} of {count} comparisons show{'s' * (alike == 1)} no relevant advantage; the clearest:"
        if against := len(contradictions(claim, verdict.comparisons)):  # a tie is none
            alike, clause = against, "It is contradicted:"
            many = f"{alike} of {count} comparisons contradict{'s' * (alike == 1)} it; the strongest:"
    elif outcome is VerdictOutcome.SUPPORTED:
        clause, many = "It holds:", f"All {count} comparisons hold; the closest:"
    elif outcome is VerdictOutcome.SMALL:
        below = "below the smallest relevant effect"
        clause = f"It holds, but the effect is {below}:"
        many = f"All {count} comparisons hold, but in {alike} the effect is {below}; the smallest:"
    pair, lead = _pair(deciding, claim.kind is Kind.TREND), deciding.difference
    value, interval = _written(claim, deciding.estimate)
    text = f"{pair}, {claim.unit} {value}" if claim.of_errors else f"{pair}, {value} {claim.unit}"
    if lead is None:
        text = f"{pair}, where {deciding.why}."
    elif interval == ABSENT:
        text += f", without an interval: {lead.estimate.unknown}."
    else:
        slope, n = lead.estimate, lead.estimate.n
        how = f"{n} pairs of runs" if lead.paired else "unpaired runs"
        if claim.kind is Kind.TREND:
            models = slope.models if isinstance(slope, SlopeEstimate) else None
            by_models = models is not None and slope.half == models.half
            width = "their scatter around the line" if by_models else "the spread over seeds"
            how = f"slope over {n} models, which differ in more than length; width by {width}"
        elif claim.kind is Kind.POSITIVE or claim.of_errors:
            how = f"{n} {'seeds' if claim.of_errors else 'runs'}"
        is_change = claim.kind in (Kind.COLLAPSE, Kind.TREND, Kind.POSITIVE)
        limit = (
            f"{'less than' if is_change else 'an advantage below'} {_size(claim, claim.smallest)} counts as none"
            if claim.margin is None
            else f"margin {_size(claim, claim.margin)}"
        )
        if deciding.at_equal_return is not None:
            limit += f"; at an equal return, too: {_written(claim, deciding.at_equal_return)[0]}"
        text += f" (95 % interval {interval}, {how}; {limit})."
    sentence = f"{clause if count == 1 else many} {text}"
    if claim.sequential:
        state = "open" if verdict.outcome is VerdictOutcome.UNDECIDED else "decided"
        looks = counted(max(0, looked - schema.FIRST_LOOK + 1), "look")
        sentence += f" Sequential: {state} after {looked} of {len(claim.seeds or ())} seeds, {looks}."
    return sentence + _exploratory(verdict) + ("" if claim.sequential else _missing(verdict))


def _exploratory(verdict: Verdict) -> str:
    before = verdict.unsupported_before
    return f" Exploratory: the claim before it is not supported ({before.text})." if before else ""


def _missing(verdict: Verdict) -> str:
    missing = " Runs of the sweep are missing, unfinished or not part of this report, so this may change."
    return missing if verdict.provisional else ""


def power_words(power: ReachedPower | None) -> str:
    """The power of the runs, and the number of runs for a power of POWER; empty without a comparison."""
    if power is None:
        return ""
    if power.unknown:
        return f"none: {power.unknown}"
    seeds = f"more than {MOST_SEEDS}" if power.needed is None else power.needed
    return f"{power.power:.2f}; {POWER} takes {seeds} seeds"


def power_question(claim: Claim) -> str:
    """The true difference at which `power_words` holds."""
    if claim.margin is not None:
        return "power if there is no difference"
    if claim.of_errors:
        return f"power at a {claim.unit.split(' ')[0]} of {math.exp(-claim.lead):.2f}"
    return f"power at {_size(claim, claim.lead)}"
