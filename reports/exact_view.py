"""The section on the surrogate's error: the verdicts on the hypotheses about it, with figures and tables.

The figure has a row per process: error against movement, ratios of errors against the horizon, the position of the
policy's movement, and the bounds relative to the true error.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from cppo_lab.analysis.statistics.claims import pairs
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.exact_study import (
    BIN,
    DISTANCE_TO_END,
    EIGHTHS,
    FEWEST_STEPS,
    Condition,
    ConditionSummary,
    Curves,
    EqualIn,
    controls,
    is_reference,
    log_ratio_slope,
    mean_log_ratio,
    nan_mean,
    of_seeds,
    pairs_of,
    ratio_estimates,
    read_curves,
    reference_of,
    summarise,
)
from cppo_lab.analysis.statistics.values import Quantity
from cppo_lab.analysis.statistics.verdicts import Verdict, verdicts
from cppo_lab.errors import counted, spanned
from cppo_lab.reports.figures.drawing import Key, PanelsInfo, Picture, panel_grid
from cppo_lab.reports.names import ABSENT, OURS, display_name, number, origin, with_interval
from cppo_lab.reports.sections import Scored, Section
from cppo_lab.reports.tables import TextRow, TextTable, completed, run_ids_of
from cppo_lab.reports.verdict_view import claims_table, tally, verdict_line
from cppo_lab.rules import Stroke

Contrast = tuple[str, str]  # a rule, and the rule by whose error its error is divided
_BOUNDS = (
    ("Proposition 4", "bound_ratio", Stroke("#222222")),
    ("product form", "product_ratio", Stroke("#888888", (5.0, 2.0))),
    ("Theorem 1", "theorem_ratio", Stroke("#BBBBBB")),
)
_PROPORTIONAL = Stroke("#888888", (5.0, 2.0))
_APART = 1.05  # horizontal factor between neighbouring series, so that their intervals do not hide each other


@dataclass(frozen=True)
class ExactLine:
    """One series; `low` and `high` are its 95 % intervals, equal to `y` where it has none."""

    name: str
    stroke: Stroke
    points: bool
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ExactPanel:
    """A panel of a process. `even`: y of a line that marks equality; None for no line."""

    model: str
    metric: str
    label: str
    x_label: str
    y_label: str
    log_x: bool
    log_y: bool
    even: float | None
    lines: tuple[ExactLine, ...]
    horizons: tuple[int, ...] = ()  # ticks of the panels that have T on their x axis


@dataclass(frozen=True)
class ExactInfo(PanelsInfo):
    """The whole figure; `panels` are in row-major order, a process in a row. `rules` and `contrasts` are the two
    legends.
    """

    rules: tuple[Key, ...] = ()
    contrasts: tuple[Key, ...] = ()


def contrast_name(contrast: Contrast) -> str:
    """`CPPO / DPPO`."""
    return f"{display_name(contrast[0])} / {display_name(contrast[1])}"


@dataclass(frozen=True, eq=False)
class _Errors:
    """The curves that the section is about. `kinds`: variants that are none of the rules in question -> what they
    are.
    """

    curves: Mapping[Condition, Curves]
    kinds: Mapping[str, str]

    @cached_property
    def summaries(self) -> dict[Condition, ConditionSummary]:
        """The means of each condition."""
        return {condition: summarise(of_runs) for condition, of_runs in self.curves.items()}

    @property
    def models(self) -> list[str]:
        """The processes."""
        return list(dict.fromkeys(condition.model for condition in self.curves))

    @property
    def variants(self) -> list[str]:
        """The rules, without the horizon."""
        return list(dict.fromkeys(condition.variant for condition in self.curves))

    def of_controls(self, models: Sequence[str]) -> tuple[str, bool]:
        """The ratio of the errors of each control to DPPO's, mean over models and horizons, in words; and whether the
        error of any control is certainly smaller than DPPO's.
        """
        words, smaller = [], False
        for variant, kind in self.kinds.items():
            against = reference_of(variant, self.variants)
            by_model = [pairs_of(self.curves, model, variant, against) for model in models]
            if all(by_model) and (ratio := mean_log_ratio(by_model)) is not None:
                words.append(f"{display_name(variant)} ({kind}) {shown_ratio(ratio)}")
                smaller |= ratio.high is not None and ratio.high < 0
        return ", ".join(words), smaller

    def over_reference(self, condition: Condition) -> float | None:
        """The movement of a condition over DPPO's; None if that has no runs."""
        against = condition.variant
        if not is_reference(against):
            against = reference_of(against, self.variants)
        reference = self.summaries.get(replace(condition, variant=against))
        if reference is None or reference.movement <= 0:
            return None
        return self.summaries[condition].movement / reference.movement


def _info(errors: _Errors, contrasts: Sequence[Contrast], title: str, scored: Scored) -> ExactInfo:
    """The figure of all conditions, at the longest horizon where that is no axis. No ratios without `contrasts`."""
    curves, summaries = errors.curves, errors.summaries
    variants = tuple(dict.fromkeys(c.variant for c in curves))
    rules = scored.palette.strokes(variants)
    names = [contrast_name(each) for each in contrasts]
    strokes = scored.palette.strokes(names)
    horizons = tuple(sorted({c.horizon for c in curves}))
    longest = horizons[-1]
    panels = []
    for model in errors.models:
        last = {c: each for c, each in curves.items() if (c.model, c.horizon) == (model, longest)}
        error_lines, ratios, bounds = [], [], []
        for c, each in last.items():  # mean |Delta| of the steps in each bin of movement
            moved = np.isfinite(each.matched) & (each.matched > 0)
            bins, error = np.floor(np.log(each.matched[moved]) / BIN), np.abs(each.error[moved])
            filled = [number for number in np.unique(bins) if (bins == number).sum() >= FEWEST_STEPS]
            x = [math.exp((number + 0.5) * BIN) for number in filled]
            y = [float(error[bins == number].mean()) for number in filled]
            error_lines.append(_line(display_name(c.variant), rules[c.variant], x, y))
        of_model = [(c.horizon, each) for c, each in summaries.items() if c.model == model]
        at = sorted({horizon for horizon, _ in of_model})
        for label, part, stroke in _BOUNDS:  # medians over the rules, by horizon
            medians = [
                np.median([getattr(each, part) for of, each in of_model if of == horizon]) for horizon in at
            ]
            if np.isfinite(medians).all():  # older runs did not log each of them
                bounds.append(_line(label, stroke, at, medians))
        for i, (name, contrast) in enumerate(zip(names, contrasts, strict=True)):
            of_horizons = ratio_estimates(pairs_of(curves, model, *contrast))
            if of_horizons:
                places = tuple(h * _APART**i for h in of_horizons)
                ends = ((each.value, each.low, each.high) for each in of_horizons.values())
                shown = ([math.exp(each[0] if end is None else end) for end in each] for each in ends)
                ratios.append(ExactLine(name, strokes[name], True, places, *zip(*shown, strict=True)))
        panels += [
            ExactPanel(
                model, "error", f"Error against movement, T = {longest}", "movement, mean TV", "mean |Δ|", True, True,
                None, tuple(error_lines),
            ),
            *([ExactPanel(
                model, "ratio", "Ratio of errors at equal movement", "horizon T", "|Δ| / |Δ|", True, True, 1.0,
                tuple(ratios), horizons,
            )] if contrasts else []),
            ExactPanel(
                model, "position", f"Where the policy moved, T = {longest}", "eighth of the response",
                "movement / its mean", False, False, 1.0,
                tuple(_position_line(c.variant, summaries[c].by_position, rules[c.variant]) for c in last),
            ),
            ExactPanel(
                model, "weight", "Error per movement; dashed: as T - t", "eighth of the response",
                "|Δ| / movement / its mean", False, False, None,
                (
                    *(_position_line(c.variant, summaries[c].error_by_position, rules[c.variant]) for c in last),
                    _position_line("T - t", DISTANCE_TO_END, _PROPORTIONAL),
                ),
            ),
            ExactPanel(
                model, "bound", "Bound over truth", "horizon T", "median of bound / |Δ|", True, True, None,
                tuple(bounds), horizons,
            ),
        ]  # fmt: skip
    return ExactInfo(
        title=title,
        source=origin(scored.board.core),
        panels=tuple(panels),
        rules=tuple(Key(display_name(name), rules[name]) for name in variants),
        contrasts=tuple(Key(name, strokes[name]) for name in names),
        run_ids=run_ids_of(scored.board.runs),
    )


def _position_line(variant: str, by_position: Sequence[float], stroke: Stroke) -> ExactLine:
    mean = float(nan_mean(np.asarray(by_position))) or math.nan  # of a policy that never moves
    return _line(display_name(variant), stroke, EIGHTHS, np.divide(by_position, mean).tolist())


def _line(name: str, stroke: Stroke, x: Sequence[float], y: Sequence[float]) -> ExactLine:
    values = tuple(map(float, y))
    return ExactLine(name, stroke, False, tuple(map(float, x)), values, values, values)


def draw_exact(info: ExactInfo, figure: Figure) -> None:
    """All panels with a common legend."""
    columns = len({panel.metric for panel in info.panels})
    shown = replace(info, keys=(*info.rules, *info.contrasts))
    for panel, ax in panel_grid(figure, shown, columns, (3.25, 2.8)):
        title = f"{panel.model}: {panel.label}" if panel.metric == "error" else panel.label
        ax.set_title(title, fontsize="small", parse_math=False)
        if panel.even is not None:
            ax.axhline(panel.even, color="#888888", linewidth=0.8, zorder=1)
        for line in panel.lines:
            if line.points:
                spread = [np.subtract(line.y, line.low), np.subtract(line.high, line.y)]
                ax.errorbar(line.x, line.y, spread, **line.stroke.line(), marker="o", markersize=3, capsize=2)
            else:
                marker = "o" if len(line.x) == 1 else None  # a single point without a marker is invisible
                ax.plot(line.x, line.y, **line.stroke.line(), label=line.name, marker=marker, markersize=3)
        ax.set(xlabel=panel.x_label, ylabel=panel.y_label)
        if not any(
            value > 0 for line in panel.lines for value in line.y
        ):  # a log scale needs a value above 0
            ax.text(0.5, 0.5, "too few steps to compare", ha="center", va="center", transform=ax.transAxes)
            ax.set(xticks=[], yticks=[])
            continue
        if panel.log_x:
            ax.set_xscale("log")
        if panel.log_y:
            ax.set_yscale("log")
        if panel.horizons:
            ax.set_xticks(panel.horizons, map(str, panel.horizons))
            ax.xaxis.set_minor_locator(NullLocator())
            # A single horizon would be drawn to the width of APART.
            ax.set_xlim(panel.horizons[0] / 2, panel.horizons[-1] * 2)
        elif panel.log_x:  # 0.002, 0.005, 0.01: matplotlib's own labels between decades overlap
            low, high = ax.get_xlim()
            ax.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter("{x:g}" if high < 50 * low else NullFormatter())
        if panel.metric == "ratio":  # 0.6, not 6 x 10^-1
            low, high = ax.get_ylim()
            if high > 8 * low:
                ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            ax.yaxis.set_major_formatter("{x:g}")
            ax.yaxis.set_minor_formatter("{x:g}")
        if panel.metric == "bound" and panel.lines:
            ax.legend()


_METHOD = (
    "The error is that of the surrogate, |Δ| with J(pi) - J(mu) = L' - Δ, computed exactly at every step."
)
_RATIOS = (
    " Two rules are compared at equal movement: steps are put into bins of mean total variation, each 25 % wide; the "
    "ratio of their mean errors is the geometric mean over their common bins. The interval is a jackknife over seeds "
    "with Student's t. Below 1, the first rule's error is smaller. The factor per tenfold horizon is the factor by "
    "which the ratio changes when responses are ten times as long. "
)
_OF_RUNS = (
    "Movement comes after the choice of a rule, and steps of equal movement are made in other states. So the ratio "
    "describes what happens over a run. It does not isolate what a rule does to an update."
)
_OF_UPDATES = (
    "Each step measures one update of a rule from the state and batch of one training that all rules share, brought to "
    "the movement of that training's update."
)

_NO_TEST_SEED = "of all seeds in this report (none is a test seed)"


def exact_section(scored: Scored) -> Section | None:
    """The section; None if no run has logged the surrogate's error."""
    board, standings, title = scored.board, scored.standings, scored.title
    everything = read_curves(board)
    if not everything:
        return None
    claims = tuple(claim for claim in standings if claim.of_errors)
    seeds = {seed for claim in claims for seed in claim.seeds or ()}
    tests = of_seeds(everything, seeds)
    curves = tests or everything
    variants = list(dict.fromkeys(condition.variant for condition in curves))
    errors = _Errors(curves, {name: kind for name, kind in controls(board).items() if name in variants})
    # The comparisons of the hypotheses, and every control with DPPO; without hypotheses, every rule with DPPO.
    asked = [pair for claim in claims for pair in pairs(claim, ())]
    others = [name for name in (errors.kinds if asked else variants) if not is_reference(name)]
    asked += [(name, reference_of(name, variants)) for name in others]
    contrasts = [pair for pair in dict.fromkeys(asked) if {*pair} <= {*variants}]
    judged = verdicts({claim.sweep: board for claim in claims}, claims)
    whole = replace(errors, curves=everything)
    lines = tuple(
        verdict_line(verdict, board, standings[verdict.claim], _beside_controls(verdict, whole))
        for verdict in judged
    )
    along = any("along.match" in params for params in board.data.params.values())
    method = _METHOD + (_RATIOS + (_OF_UPDATES if along else _OF_RUNS)) * bool(contrasts)
    heading = f"Error of the surrogate ({title})"
    tables = {"exact_ratios": _ratio_table(errors, contrasts), "exact_conditions": _condition_table(errors)}
    tables = {stem: completed(table, board, title) for stem, table in tables.items() if table.rows}
    # The registration of all hypotheses, if it differs at most in the number of runs.
    registered = {line.registered for line in lines}
    alike = {re.sub(r"\d+ runs that test it", "runs that test it", text) for text in registered}
    shared = (registered if len(registered) == 1 else alike).pop() if len(alike) == 1 else ""
    which = "of all seeds" if not seeds else "of the test seeds" if tests else _NO_TEST_SEED
    view = {
        "summary": tally(lines, " about the error") or "The sweep file states no hypothesis about the error.",
        "lines": lines,
        "registered": shared,
        "method": method,
        "notes": [*_notes(errors, which)],
        "tables": tables.values(),
        "anchors": scored.anchors,
    }
    last = {"registered": [line.registered for line in lines]}
    about = (f"Hypotheses about the error ({heading})", board.core, "hypothesis")
    return Section(
        "exact",
        "Error of the surrogate",
        view,
        None if lines else "",
        tables={**tables, "exact_hypotheses": claims_table(*about, lines, last, (method,))},
        pictures=(Picture.of("exact", _info(errors, contrasts, heading, scored), draw_exact),),
        lines=lines,
        how=method if lines else "",
    )


def _beside_controls(verdict: Verdict, errors: _Errors) -> str:
    """What the controls show where a rule's error is claimed to be smaller than DPPO's; else empty."""
    claim, deciding = verdict.claim, verdict.deciding
    if claim.score is not Quantity.ERROR or claim.margin is not None:
        return ""
    if deciding is None or not is_reference(deciding.against):
        return ""
    tests = replace(errors, curves=of_seeds(errors.curves, claim.seeds or ()))
    ratios, smaller = tests.of_controls([deciding.model] if deciding.model else claim.models or tests.models)
    if not ratios:
        return ""
    text = f" The same ratio of the controls: {ratios}."
    if smaller:
        text += (
            " The error of a control is certainly smaller than DPPO's, so this verdict speaks neither for nor against "
            "the rule's mechanism."
        )
    return text


def _notes(errors: _Errors, which: str) -> Iterator[str]:
    """What the controls of the sweep show, by process, or that it has none; and what all runs have in common."""
    if not errors.kinds:
        yield (
            "There is no control among these runs (DPPO without a trust region, with rule.delta=1, or a placebo, "
            "DPPO at another learning rate): a smaller error at equal movement need not be a rule's doing."
        )
    for model in errors.models:
        ratios, smaller = errors.of_controls([model])
        if ratios:
            yield (
                f"Controls against DPPO on {model}, mean over T: {ratios}."
                + " So a ratio below 1 speaks neither for nor against a rule's mechanism there." * smaller
            )
    seeds = {seed for of_runs in errors.curves.values() for seed in of_runs.seeds}
    yield f"Figures and tables are {which}: {counted(len(seeds), 'seed')} ({spanned(seeds)})."
    summaries = errors.summaries
    moved = [summary for summary in summaries.values() if summary.movement > 0]
    if moved:
        before = _span([100 * summary.before / summary.movement for summary in moved], ".0f")
        yield (
            f"By mismatch and staleness, mu is {before} % as far from the policy before a step's updates "
            "as after them (exact/movement_before over exact/movement)."
        )
    over = [ratio for condition in summaries if (ratio := errors.over_reference(condition)) is not None]
    if over:
        yield f"Mean movement of the rules over that of DPPO: {_span(over, '.2f')} (table of conditions)."


def _span(values: Sequence[float], form: str) -> str:
    """`4 to 8`; `4` if both ends read so."""
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (min(values), max(values))))


def _ratio_table(errors: _Errors, contrasts: Sequence[Contrast]) -> TextTable:
    """Ratios by horizon, their mean and their slope; a row for each contrast, process and kind of equality."""
    horizons, rows = sorted({condition.horizon for condition in errors.curves}), []
    for contrast, model, equal in product(contrasts, errors.models, EqualIn):
        pairs = pairs_of(errors.curves, model, *contrast, equal)
        if not pairs:
            continue
        by_horizon, rule = ratio_estimates(pairs), contrast[0]
        ratios = (*map(by_horizon.get, horizons), mean_log_ratio([pairs]), log_ratio_slope([pairs]))
        label = contrast_name(contrast) + (f" ({errors.kinds[rule]})" if rule in errors.kinds else "")
        rows.append(TextRow(label, rule == OURS, (model, equal.value, *map(shown_ratio, ratios))))
    headings = ("process", "at equal", *(f"T = {h}" for h in horizons), "mean over T", "factor per tenfold T")
    notes = (
        "Geometric means; 95 % intervals in brackets, not adjusted for their number.",
        "At equal movement each step counts the same. With nothing equal it is the ratio of the plain means over all "
        "steps, in which steps with large errors dominate.",
    )
    return TextTable("Ratio of errors", "rules", headings, rows, notes)


def shown_ratio(log_ratio: Estimate | None) -> str:
    """`0.84 (0.78 to 0.91)`: a ratio of errors with its 95 % interval, if known."""
    return with_interval(log_ratio, lambda log: f"{math.exp(log):.2f}")


def _condition_table(errors: _Errors) -> TextTable:
    """Error, movement, return and bounds of each condition."""
    rows = []
    for condition in sorted(errors.curves, key=lambda condition: (condition.model, condition.horizon)):
        summary = errors.summaries[condition]
        cells = (
            condition.model,
            str(condition.horizon),
            str(summary.runs),
            f"{summary.error:.3g}",
            f"{summary.movement:.3g}",
            number(errors.over_reference(condition)),
            f"{100 * summary.before / summary.movement:.0f} %" if summary.movement else ABSENT,
            f"{summary.area:.3f}",
            f"{100 * summary.falls:.0f} %",
            *(number(getattr(summary, ratio), ".2g") for _, ratio, _ in _BOUNDS),
            *(ABSENT if math.isnan(share) else f"{100 * share:.1f} %" for share in summary.premise),
            with_interval(summary.position_exponent, number),
        )
        rows.append(TextRow(display_name(condition.variant), condition.variant == OURS, cells))
    headings = (
        "process",
        "T",
        "runs",
        "mean |Δ|",
        "movement",
        "movement over DPPO's",
        "movement before the update",
        "mean return",
        "steps on which the return falls",
        "bound / |Δ|",
        "product bound / |Δ|",
        "Theorem 1 / |Δ|",
        "visits beyond the token limit",
        "positions beyond the token limit",
        "prefixes beyond the budget",
        "exponent of T - t",
    )
    notes = (
        "Means over steps and runs; medians for the bounds, with xi = 1: half of each is valid, too, as rewards lie in "
        "[0, 1]. Theorem 1: its constant at the delta_b and l that were measured. Beyond the limits: what the theorem "
        "takes for granted after an update, w_t D_t <= delta where mu goes, for some state at a position, and S_t <= "
        "delta + delta_b W_(t-1). Exponent: x of error per movement ~ (T - t)^x over the eighths; the paper's is 1.",
    )
    return TextTable("Conditions", "rule", headings, rows, notes)
