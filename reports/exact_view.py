"""The section on the surrogate's error: the verdicts on the hypotheses about it, with figures and tables."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cppo_lab.analysis.exact_claims import ErrorClaim, ErrorComparison, ErrorVerdict, judge_errors, of_seeds
from cppo_lab.analysis.exact_study import (
    REFERENCE,
    Condition,
    ConditionSummary,
    Curves,
    controls,
    mean_estimate,
    pairs_of,
    read_curves,
    summarise,
)
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.verdicts import MISSING, VerdictOutcome, power_words
from cppo_lab.reports.exact_tables import condition_table, ratio_table, shown_ratio
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.figures.exact_core import (
    Contrast,
    ExactInfo,
    draw_exact,
    exact_info,
)
from cppo_lab.reports.names import ABSENT, display_name, origin, p_text
from cppo_lab.reports.record import power_values
from cppo_lab.reports.registration import Hypotheses, Standing, is_exploratory, standing
from cppo_lab.reports.tables import TextRow, TextTable, core_of, run_ids_of
from cppo_lab.reports.verdict_view import tally

_METHOD = (
    "The error is that of the surrogate, |Δ| with J(pi) - J(mu) = L' - Δ, computed exactly at every step. Two rules "
    "are compared at equal movement: steps are put into bins of mean total variation, each 25 % wide; the ratio of "
    "their mean errors is the geometric mean over their common bins. The interval is a jackknife over seeds with "
    "Student's t. Below 1, the first rule's error is smaller. The factor per tenfold horizon is the factor by which "
    "the ratio changes when responses are ten times as long. Movement comes after the choice of a rule, and steps of "
    "equal movement are made in other states. So the ratio describes what happens over a run. It does not isolate "
    "what a rule does to an update."
)


@dataclass(frozen=True)
class ErrorLine:
    """One hypothesis on the page, as text. `rows`: its comparisons, with one text for each of HEADINGS."""

    sweep: str
    key: str
    text: str
    registered: str
    exploratory: bool
    outcome: str
    estimate: str
    sentence: str
    rows: tuple[tuple[str, ...], ...]
    deviation: str = ""


HEADINGS = (
    *(
        "rule",
        "against",
        "process",
        "seeds",
        "ratio",
        "95 % interval",
        "at equal return, too",
        "p for",
        "p against",
    ),
    "outcome",
)


@dataclass(frozen=True, eq=False)
class ExactView:
    """The section. `tables`: part of the file name -> table. `judged`: the verdicts
    as in the record.
    """

    summary: str
    lines: tuple[ErrorLine, ...]
    headings: tuple[str, ...]
    method: str
    notes: tuple[str, ...]
    tables: Mapping[str, TextTable]
    info: ExactInfo
    judged: tuple[Mapping[str, Any], ...]

    @property
    def registered(self) -> str:
        """The registration that all hypotheses share apart from their numbers of runs; empty if they differ."""
        for said in (
            {line.registered for line in self.lines},
            {re.sub(r"\d+ runs that test it", "runs that test it", line.registered) for line in self.lines},
        ):
            if len(said) == 1:
                return said.pop()
        return ""

    @property
    def files(self) -> Mapping[str, TextTable]:
        """The tables of the page, and one table of its verdicts."""
        rows = tuple(
            TextRow(
                line.text, False, (line.outcome + " (exploratory)" * line.exploratory, *row, line.registered)
            )
            for line in self.lines
            for row in line.rows
        )
        if not rows:
            return self.tables
        core, title = self.tables["ratios"].core, f"Hypotheses about the error ({self.info.title})"
        headings = ("outcome", *self.headings[:-1], "comparison", "registered")
        table = TextTable(
            title, core, "hypothesis", headings, rows, (f"Source: {origin(core)}.", self.method)
        )
        return {**self.tables, "hypotheses": table}

    @property
    def picture(self) -> Picture:
        """The figure with its files."""
        return Picture("figure_exact", "", self.info.title, "", self.info, draw_exact)


def exact_view(board: Scoreboard, stated: Hypotheses, title: str, palette: str) -> ExactView | None:
    """The section; None if no run has logged the surrogate's error."""
    everything = read_curves(board)
    if not everything:
        return None
    seeds = {seed for claim in stated.errors for seed in claim.seeds}
    tests = {c: own for c, one in everything.items() if (own := of_seeds(one, tuple(seeds))).seeds}
    curves = tests or everything
    kinds = {
        variant: kind for variant, kind in controls(board).items() if variant in {c.variant for c in curves}
    }
    contrasts = _contrasts(stated.errors, curves, kinds)
    found = {c: summarise(one) for c, one in curves.items()}
    missing = {claim.key: not claim.tests <= board.results for claim in stated.errors}
    verdicts = judge_errors(stated.errors, everything, missing)
    standings = {claim.key: standing(stated, claim, board) for claim in stated.errors}
    sentences = {
        verdict.claim.key: _sentence(verdict) + _beside_controls(verdict, everything, kinds)
        for verdict in verdicts
    }
    core = core_of(board)
    return ExactView(
        summary=_summary(verdicts, standings),
        lines=tuple(
            _line(verdict, standings[verdict.claim.key], sentences[verdict.claim.key]) for verdict in verdicts
        ),
        headings=HEADINGS,
        method=_METHOD,
        notes=(*_control_notes(curves, kinds), *_notes(curves, found, _which(bool(seeds), bool(tests)))),
        tables={
            "ratios": ratio_table(curves, contrasts, kinds, core, title),
            "conditions": condition_table(found, core, title),
        },
        info=exact_info(
            curves,
            found,
            contrasts,
            f"Error of the surrogate ({title})",
            origin(core),
            run_ids_of(board.runs),
            palette,
        ),
        judged=tuple(
            _judged(verdict, standings[verdict.claim.key], sentences[verdict.claim.key])
            for verdict in verdicts
        ),
    )


def _contrasts(
    claims: Sequence[ErrorClaim], curves: Mapping[Condition, Curves], kinds: Mapping[str, str]
) -> tuple[Contrast, ...]:
    """The comparisons of the hypotheses, and every control with DPPO; without hypotheses, every rule with DPPO."""
    variants = tuple(dict.fromkeys(c.variant for c in curves))
    asked = [(one, other) for claim in claims for one in claim.better for other in claim.than]
    asked += [(variant, REFERENCE) for variant in (kinds if asked else variants) if variant != REFERENCE]
    return tuple(pair for pair in dict.fromkeys(asked) if all(name in variants for name in pair))


def _ratios_of_controls(
    curves: Mapping[Condition, Curves], models: Sequence[str], kinds: Mapping[str, str]
) -> dict[str, Estimate]:
    """The log ratio of the errors of each control to DPPO's, mean over models and horizons."""
    pairs = {variant: [pairs_of(curves, model, variant, REFERENCE) for model in models] for variant in kinds}
    ratios = {variant: mean_estimate(by_model) for variant, by_model in pairs.items() if all(by_model)}
    return {variant: ratio for variant, ratio in ratios.items() if ratio is not None}


def _listed(ratios: Mapping[str, Estimate], kinds: Mapping[str, str]) -> str:
    return ", ".join(
        f"{display_name(variant)} ({kinds[variant]}) {shown_ratio(ratio)}"
        for variant, ratio in ratios.items()
    )


def _do_as_much(ratios: Mapping[str, Estimate]) -> bool:
    """Whether the error of a control is certainly smaller than DPPO's."""
    return any(ratio.high is not None and ratio.high < 0 for ratio in ratios.values())


def _beside_controls(
    verdict: ErrorVerdict, curves: Mapping[Condition, Curves], kinds: Mapping[str, str]
) -> str:
    """What the controls show where a rule's error is claimed to be smaller than DPPO's; else empty."""
    claim, deciding = verdict.claim, verdict.deciding
    if claim.slope or claim.within is not None or deciding is None or deciding.against != REFERENCE:
        return ""
    tests = {c: own for c, one in curves.items() if (own := of_seeds(one, claim.seeds)).seeds}
    models = (
        [deciding.model] if deciding.model else list(claim.models or dict.fromkeys(c.model for c in tests))
    )
    ratios = _ratios_of_controls(tests, models, kinds)
    if not ratios:
        return ""
    text = f" The same ratio of the controls: {_listed(ratios, kinds)}."
    if _do_as_much(ratios):
        text += (
            " The error of a control is certainly smaller than DPPO's, so this verdict speaks neither for nor against "
            "the rule's mechanism."
        )
    return text


def _control_notes(curves: Mapping[Condition, Curves], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """What the controls of the sweep show, by process; or that it has none."""
    if not kinds:
        return (
            "There is no control among these runs (DPPO without a trust region, with rule.delta=1, or a placebo, "
            "DPPO at another learning rate): a smaller error at equal movement need not be a rule's doing.",
        )
    notes = []
    for model in dict.fromkeys(c.model for c in curves):
        if ratios := _ratios_of_controls(curves, [model], kinds):
            note = f"Controls against DPPO on {model}, mean over T: {_listed(ratios, kinds)}."
            if _do_as_much(ratios):
                note += " So a ratio below 1 speaks neither for nor against a rule's mechanism there."
            notes.append(note)
    return tuple(notes)


def _summary(found: Sequence[ErrorVerdict], own: Mapping[str, Standing]) -> str:
    if not found:
        return "The sweep file states no hypothesis about the error."
    outcomes = [(one.outcome, _is_exploratory(one, own[one.claim.key])) for one in found]
    return tally(" about the error", outcomes)


def _is_exploratory(verdict: ErrorVerdict, own: Standing) -> bool:
    return is_exploratory(verdict.outcome, verdict.closed_by is not None, own)


def _line(verdict: ErrorVerdict, own: Standing, sentence: str) -> ErrorLine:
    rows = tuple(_row(verdict.claim, one) for one in verdict.comparisons)
    found, short = verdict.deciding, ""
    if found is not None and found.advantage is not None:
        what = "per tenfold T" if verdict.claim.slope else f"of the error of {display_name(found.against)}"
        short = f"{_ratio(found.advantage)} {what}, 95 % interval {_interval(found.advantage)}"
    return ErrorLine(
        sweep=verdict.claim.sweep,
        key=verdict.claim.key,
        text=verdict.claim.text,
        registered=own.words,
        exploratory=_is_exploratory(verdict, own),
        outcome=verdict.outcome.value,
        estimate=short,
        sentence=sentence,
        rows=rows,
    )


def _sentence(verdict: ErrorVerdict) -> str:
    """The result in words."""
    found, claim = verdict.deciding, verdict.claim
    if found is None or found.advantage is None:
        text = "No runs that test it can be compared yet."
    else:
        text = f"{_numbers(claim, found)} {_meaning(verdict, found.advantage)}"
    if verdict.closed_by is not None:
        text += f" Exploratory: the hypothesis before it is not supported ({verdict.closed_by.text})."
    if verdict.provisional:
        text += f" {MISSING}"
    if words := power_words(verdict.power):
        text += f" {_power_question(claim)}: {words}."
    return text


def _power_question(claim: ErrorClaim) -> str:
    """The truth at which the power holds."""
    if claim.within is not None:
        return "Power if there is no difference"
    return f"Power at a {'factor' if claim.slope else 'ratio'} of {math.exp(-claim.lead):.2f}"


def _numbers(claim: ErrorClaim, found: ErrorComparison) -> str:
    place = f"on {found.model}" if found.model else "in the mean over the processes"
    pair = f"{display_name(found.variant)} against {display_name(found.against)} {place}"
    what = "factor per tenfold horizon" if claim.slope else "ratio of errors at equal movement"
    ratio = f"{pair}: {what} {_ratio(found.advantage)}, 95 % interval {_interval(found.advantage)}"
    seeds = "" if found.advantage is None else f", {found.advantage.n} seeds"
    return f"{ratio}{seeds}; at an equal return before the update, too: {_ratio(found.by_return)}."


def _meaning(verdict: ErrorVerdict, advantage: Estimate) -> str:
    claim = verdict.claim
    size = f"{100 * (claim.smallest if claim.within is None else claim.within):g} %"
    if verdict.outcome is VerdictOutcome.UNDECIDED:
        return "Neither the claim nor its opposite can be excluded."
    if claim.within is not None:
        alike = verdict.outcome is VerdictOutcome.SUPPORTED
        return f"The two are {'equivalent' if alike else 'not equivalent'} within {size}."
    if verdict.outcome is VerdictOutcome.SUPPORTED:
        return "The advantage is above 0."
    if verdict.outcome is VerdictOutcome.SMALL:
        return f"The advantage is above 0 and below {size}, the smallest that counts."
    if advantage.high is not None and advantage.high < 0:
        return "The opposite holds: the second rule's error is smaller."
    return f"An advantage of {size} or more is excluded: any effect in the claimed direction is smaller."


def _row(claim: ErrorClaim, one: ErrorComparison) -> tuple[str, ...]:
    return (
        display_name(one.variant),
        display_name(one.against),
        one.model or "mean over processes",
        ABSENT if one.advantage is None else str(one.advantage.n),
        _ratio(one.advantage) + (" per tenfold T" if claim.slope else ""),
        _interval(one.advantage),
        f"{_ratio(one.by_return)} ({_interval(one.by_return)})",
        p_text(one.p_for),
        p_text(one.p_against),
        one.outcome.value,
    )


def _ratio(advantage: Estimate | None) -> str:
    return ABSENT if advantage is None else f"{math.exp(-advantage.value):.3f}"


def _interval(advantage: Estimate | None) -> str:
    if advantage is None or advantage.low is None or advantage.high is None:
        return "none"
    return f"{math.exp(-advantage.high):.3f} to {math.exp(-advantage.low):.3f}"


def _judged(verdict: ErrorVerdict, own: Standing, sentence: str) -> dict[str, Any]:
    """The verdict for `report.json`: estimates are ratios of errors, or factors per tenfold horizon."""
    found = verdict.deciding
    advantage = None if found is None else found.advantage
    return {
        "claim": verdict.claim.key,
        "text": verdict.claim.text,
        "sweep": verdict.claim.sweep,
        "score": "error_slope" if verdict.claim.slope else "error",
        "outcome": verdict.outcome.value,
        "provisional": verdict.provisional,
        "reason": sentence,
        "estimate": None if advantage is None else math.exp(-advantage.value),
        "low": None if advantage is None or advantage.high is None else math.exp(-advantage.high),
        "high": None if advantage is None or advantage.low is None else math.exp(-advantage.low),
        "pairs": None if advantage is None else advantage.n,
        "exploratory": _is_exploratory(verdict, own),
        "p_adjusted": None if found is None else found.p_for,
        "power": None if verdict.power is None else power_values(verdict.power),
        "others": {},
    }


def _which(stated: bool, tested: bool) -> str:
    """Of which seeds figures and tables are, if hypotheses are stated, and if some of these seeds test them."""
    if not stated:
        return "of all seeds"
    return "of the test seeds" if tested else "of all seeds in this report (none is a test seed)"


def _notes(
    curves: Mapping[Condition, Curves], found: Mapping[Condition, ConditionSummary], which: str
) -> tuple[str, ...]:
    seeds = sorted({seed for one in curves.values() for seed in one.seeds})
    before = [one.before / one.movement for one in found.values() if one.movement > 0]
    notes = [
        f"Figures and tables are {which}: {len(seeds)} seeds, {seeds[0]} to {seeds[-1]}.",
        f"Mismatch and staleness of the sampler cause {100 * min(before):.0f} to "
        f"{100 * max(before):.0f} % of the movement (exact/movement_before).",
    ]
    apart = [
        one.movement / there.movement
        for c, one in found.items()
        if (there := found.get(Condition(c.model, REFERENCE, c.horizon))) is not None and there.movement > 0
    ]
    if apart:
        notes.append(
            f"Mean movement of the rules over that of DPPO: {min(apart):.2f} to {max(apart):.2f} (table of conditions)."
        )
    return tuple(notes)
