"""The report of a sweep: its page, and the sections that only such a page has, among them the effects of a factorial
sweep.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.inputs import NO_AXES, Axes, SweepGrid
from cppo_lab.analysis.scoring import Scoreboard, describe_gaps
from cppo_lab.analysis.statistics.claims import NONE_STATED
from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.exact_study import METRICS_READ
from cppo_lab.analysis.statistics.paired import Effect, effects
from cppo_lab.analysis.statistics.values import Measure, Quantity, Score, run_values
from cppo_lab.analysis.statistics.verdicts import holm_with_gaps, with_quantity
from cppo_lab.analysis.study import MAIN, score_grid
from cppo_lab.errors import counted
from cppo_lab.reports.answers import answers_section, kept_answers
from cppo_lab.reports.audit import audit_section
from cppo_lab.reports.build import Contents, GridRequest
from cppo_lab.reports.exact_view import exact_section, shown_ratio
from cppo_lab.reports.figures import axes
from cppo_lab.reports.figures.curves import FEW, LABELS, curves_info, diagnostics_info, draw, draw_diagnostics
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.health import SHOWN, collapse_section, mismatch_section
from cppo_lab.reports.names import OURS, display_name, estimate_text, p_text, value_text
from cppo_lab.reports.sections import Scored, Section, run_section, verdict_section
from cppo_lab.reports.statistics_tables import statistics_section, with_looks
from cppo_lab.reports.tables import TextRow, TextTable, completed, full_table, main_grid, main_table
from cppo_lab.reports.words import findings_section, headlines

_FIGURE_4_MODELS = ("Qwen3-1.7B-Base", "Qwen3-8B-Base", "Qwen3-30B-A3B-Base")


@dataclass(frozen=True, kw_only=True)
class ReportRequest(GridRequest):
    """The report of a sweep, the only sweep in `sweeps`.

    `axes`: the positions of its variants on its axes. `factorial`: whether its file requests the effects of its axes.
    """

    axes: Axes = NO_AXES
    factorial: bool = False

    def contents(self) -> Contents:
        """Raises UserError as `score_grid`."""
        (grid,) = self.sweeps
        claims = self.stated.get(grid.name, NONE_STATED).claims
        board = score_grid(self.uri, self.experiment, grid, claims, self.partial, _is_shown)
        return sweep_contents(self, board)


def paper_request(uri: str, out: Path, **about: Any) -> ReportRequest:
    """The report of the paper's main grid, from the curves imported into the store by `cppo reference import`."""
    return ReportRequest(
        name=MAIN,
        uri=uri,
        experiment=schema.experiment_name(schema.PAPER),
        sweeps=(SweepGrid(MAIN, "", "", main_grid()),),
        out=out,
        title="The paper's main results, recomputed from its curves",
        question="Do the paper's plotted curves give its printed Tables 1 and 4, and how firm is the order?",
        **{"command": "cppo report main --from paper", **about},
    )


def _is_shown(metric: str) -> bool:
    """Whether the report uses a metric; thousands of runs have millions of points of the others."""
    named = metric in {*LABELS, *SHOWN, *METRICS_READ, *axes.DRIFT.values()}
    return named or schema.is_evaluation(metric) or schema.parse_validation_metric(metric) is not None


def sweep_contents(request: ReportRequest, board: Scoreboard) -> Contents:
    """The report of a scored sweep."""
    name, (grid,) = request.name, request.sweeps
    scored = request.scored(grid, board, request.title, answers=kept_answers(request.uri, board))
    of_paper = request.experiment == schema.experiment_name(schema.PAPER) and name == MAIN
    verdicts = verdict_section({name: scored}, board.core)
    title, palette, anchors = scored.title, scored.palette, scored.anchors
    shown = {"curves": curves_info(board, f"Validation curves ({title})", palette=palette)}
    if of_paper:  # its Figure 4 is a file
        heading = "Validation curves (Figure 4)"
        shown["4"] = curves_info(board, heading, _FIGURE_4_MODELS, palette=palette)
    curves = Section(
        "curves",
        "Validation curves",
        {
            "crowded": any(cell.expected > FEW for cell in board.cells.values()),
            "several": board.means_over_benchmarks,
        },
        pictures=tuple(Picture.of(name, info, draw) for name, info in shown.items()),
    )
    by_setting = diagnostics = drift = None
    if info := axes.axes_info(board, request.axes, f"Score by setting ({title})", palette):
        keys = " and ".join(axis.key for axis in info.axes)
        log = [axis.key for axis in info.axes if axis.scale == axes.LOG and not info.surface]
        scale = f" The axis of {log[0]} is logarithmic." if log else ""
        caption = f"Mean score of the last 30 % of the window by {keys}, {info.around}.{scale}"
        by_setting = figure_section("axes", info, axes.draw, caption)
        by_setting = replace(by_setting, name="ablation", title="Score by setting", hint=None)
    if of_training := diagnostics_info(board, f"Training diagnostics ({title})", palette):
        diagnostics = Section(
            "diagnostics",
            "Training diagnostics",
            {"several_seeds": any(cell.expected > 1 for cell in board.cells.values())},
            "",
            pictures=(Picture.of("diagnostics", of_training, draw_diagnostics),),
        )
    if info := axes.drift_info(board, request.axes, f"Drift by age and position ({title})", palette):
        caption = (
            "How far pi was from mu before a step's first update, by the age of mu in rollout batches and by third of "
            f"the response: the mean of -log rho over the steps in which mu had its full age, {info.around}."
        )
        drift = figure_section("drift", info, axes.draw, caption)
    table_1, table_4 = ("Table 1", "Table 4") if of_paper else (title, title)
    main = main_table(board, f"Mean score by model ({table_1})", scored.statistics)
    main = with_looks(main, scored)
    full = full_table(board, f"Score by benchmark ({table_4})")
    of_full = {"table": full, "anchors": anchors}
    errors = exact_section(scored)
    errors_first = errors is not None and bool(errors.lines)
    sections = [  # in the order of the page; None for a section with nothing to show
        errors if errors_first else None,
        effects_section(scored, request.axes) if request.factorial else None,
        by_setting,
        None if by_setting else curves,
        Section("scores", "Scores", {"table": main, "anchors": anchors}, tables={"table_main": main}),
        verdicts if verdicts.lines or not errors else None,
        None if errors_first else errors,
        replace(curves, hint="") if by_setting else None,
        findings_section(headlines(board)),
        statistics_section(scored),
        collapse_section(scored),
        Section("benchmarks", "Scores by benchmark", of_full, "", tables={"table_full": full}),
        audit_section(scored) if of_paper else None,
        diagnostics,
        mismatch_section(scored),
        drift,
        answers_section(scored),
        run_section({name: scored}, len(board.runs), sorted(board.unused["run_id"])),
    ]
    return request.report(
        "sweep",
        board.core,
        {name: scored},
        scored,
        sections,
        gaps=describe_gaps(board.gaps),
        gap_count=len(board.gaps),
        counts=counted(len(board.runs), "run"),
        caution=verdicts.view["caution"],
        absent=(),
    )


def figure_section(name: str, info: Any, draw: Callable[[Any, Any], None], caption: str = "") -> Section:
    """A folded section with a figure."""
    picture = Picture.of(name, info, draw, caption)
    view = {"figures": [picture.name]}
    return Section(f"{picture.name}_part", info.title, view, "", "figure_list", pictures=(picture,))


# The effects of a factorial sweep: what each change of an axis does to a score, alone and together.

_EFFECT_NOTES = (
    "Points, with the 95 % interval of the mean over seeds: each gives one contrast of its runs, the mean over the "
    "settings of the other axes. Numbers: the highest value against the lowest; else each value against the first. Two "
    "changes: by how much the second makes the difference of the first larger. Mean: over all settings.",
    "adjusted p: two-sided, of the final mean, with Holm's adjustment over the table.",
)
_EFFECT_VALUES = (
    "model",
    "group",
    "change",
    "estimate",
    "low",
    "high",
    "seeds",
)  # of the final mean, fractions
_FINAL, _ERROR = "final mean", "error"
_SCORES: Mapping[Measure, str] = {
    Score.FINAL: _FINAL,
    Score.AREA: "area",
    Quantity.RETURN: "mean return",
    Quantity.LOG_ERROR: _ERROR,
}
_OF_ERRORS = "error: a ratio, of geometric means of the surrogate's |error| over the steps."


def effects_section(scored: Scored, places: Axes) -> Section | None:
    """The section; None if every effect lacks a run in each seed."""
    board, measured = scored.board, {}
    for score, name in _SCORES.items():
        runs, of_score = run_values(board), dict[Effect, Estimate]()
        if isinstance(score, Quantity):
            runs = with_quantity(board, runs, score)
        for model in board.models:
            of_model = [place for place in places.places if (model, place.variant) in board.cells]
            of_score |= effects(runs, model, of_model, scored.baseline, score)
        if of_score:
            measured[name] = of_score
    final = measured.get(_FINAL)
    if not final:
        return None
    adjusted = holm_with_gaps([estimate.p_value() for estimate in final.values()])
    rows, shown = [], []
    for (effect, estimate), p in zip(final.items(), adjusted, strict=True):
        group, change = display_name(effect.group), _change(effect, places)
        if effect.against:
            group += f" minus {display_name(effect.against)}"
        shown.append((effect.model, group, change, estimate))
        texts = (
            shown_ratio(of_score.get(effect))
            if name == _ERROR
            else estimate_text(of_score.get(effect), signed=True)
            for name, of_score in measured.items()
        )
        cells = (change, *texts, p_text(p), str(estimate.n))
        rows.append(TextRow(group, effect.group == OURS, cells, (effect.model, effect.group)))
    notes = (*_EFFECT_NOTES, _OF_ERRORS) if _ERROR in measured else _EFFECT_NOTES
    table = TextTable("Effects", "method", ("change", *measured, "adjusted p", "seeds"), rows, notes)
    table = completed(table, board, scored.title)
    info = axes.effects_info(board, shown, f"Effects ({scored.title})", scored.palette)
    values = [
        dict(zip(_EFFECT_VALUES, (*names, each.value, each.low, each.high, each.n), strict=True))
        for *names, each in shown
    ]
    return Section(
        "effects",
        "Effects",
        {"tables": [table], "anchors": scored.anchors},
        tables={"effects": table},
        pictures=(Picture.of("effects", info, axes.draw_effects, f"Final mean, {info.around}."),),
        values={"effects": values},
    )


def _change(effect: Effect, places: Axes) -> str:
    """`staleness 0 to 8 × mismatch 0.002 to 0.2`."""
    words = (
        f"{places.keys[axis].rpartition('.')[2]} {value_text(before)} to {value_text(after)}"
        for axis, before, after in effect.changes
    )
    return " \N{MULTIPLICATION SIGN} ".join(words) or "mean"
