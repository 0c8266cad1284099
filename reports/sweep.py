"""The report of a sweep: its page, and the sections that only such a page has, among them the effects of a factorial
sweep.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.inputs import NO_AXES, Axes, SweepGrid
from cppo_lab.analysis.scoring import Scoreboard, describe_gaps
from cppo_lab.analysis.statistics.claims import NONE_STATED, Hypotheses, withdrawn
from cppo_lab.analysis.statistics.estimate import Estimate, holm
from cppo_lab.analysis.statistics.exact_study import METRICS_READ
from cppo_lab.analysis.statistics.paired import Effect, effects
from cppo_lab.analysis.statistics.values import Measure, Quantity, Score, run_values
from cppo_lab.analysis.statistics.verdicts import with_quantity
from cppo_lab.analysis.study import MAIN, score_grid
from cppo_lab.errors import counted, has
from cppo_lab.reports.answers import answers_section, kept_answers
from cppo_lab.reports.audit import audit_section
from cppo_lab.reports.build import About, Contents, GridRequest
from cppo_lab.reports.exact_view import exact_section, shown_ratio
from cppo_lab.reports.figures import axes, training, validation
from cppo_lab.reports.figures.drawing import PALETTES, Picture
from cppo_lab.reports.health import SHOWN, collapse_section, mismatch_section
from cppo_lab.reports.names import OURS, display_name, estimate_text, p_text, value_text
from cppo_lab.reports.sections import (
    Scored,
    Section,
    run_files,
    run_section,
    verdict_section,
)
from cppo_lab.reports.statistics_tables import statistics_section, with_looks
from cppo_lab.reports.tables import TextRow, TextTable, completed, full_table, main_grid, main_table
from cppo_lab.reports.verdict_view import short_answers
from cppo_lab.reports.words import findings_section, headlines, paper_texts

_FIGURE_4_MODELS = ("Qwen3-1.7B-Base", "Qwen3-8B-Base", "Qwen3-30B-A3B-Base")


@dataclass(frozen=True, kw_only=True)
class ReportRequest(GridRequest):
    """The report of a sweep, the only sweep in `sweeps`.

    `stated`: the sweep's hypotheses. `axes`: the positions of its variants on its axes. `beside`: sweeps whose pages
    are linked. `factorial`: whether its file requests the effects of its axes.
    """

    stated: Hypotheses = NONE_STATED
    axes: Axes = NO_AXES
    beside: tuple[str, ...] = ()
    factorial: bool = False

    def contents(self) -> Contents:
        """Raises UserError as `score_grid`."""
        claims, (grid,) = self.stated.claims, self.sweeps
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
    named = metric in {*training.LABELS, *SHOWN, *METRICS_READ, *axes.DRIFT.values()}
    return named or schema.is_evaluation(metric) or schema.parse_validation_metric(metric) is not None


@dataclass(frozen=True, eq=False)
class SweepReport(Scored):
    """The scored sweep of a report, the positions of its variants on its axes, and whether it is the paper's main
    grid, or `factorial`.
    """

    places: Axes = NO_AXES
    of_paper: bool = False
    factorial: bool = False

    @cached_property
    def verdicts(self) -> Section:
        """The section on the claims about scores."""
        return verdict_section({self.name: self}, self.board.core)

    def heading(self, table: str) -> str:
        """The paper's `table`, or the sweep's title."""
        return table if self.of_paper else self.title


def sweep_contents(request: ReportRequest, board: Scoreboard) -> Contents:
    """The report of a scored sweep."""
    report = SweepReport(
        name=request.name,
        title=request.title,
        board=board,
        uri=request.uri,
        palette=PALETTES[request.palette],
        baseline=request.sweeps[0].baseline,
        stated=request.stated,
        answers=kept_answers(request.uri, board),
        places=request.axes,
        factorial=request.factorial,
        of_paper=request.experiment == schema.experiment_name(schema.PAPER) and request.name == MAIN,
    )
    sentences = withdrawn(request.name, request.stated)
    about = About.of("sweep", request, board.core, sentences, beside=request.beside)
    sections = tuple(section for section in sweep_sections(report) if section)
    lines = (line for section in sections for line in section.lines)
    hypotheses = [line for line in lines if line.verdict.claim in report.standings]
    gaps = describe_gaps(board.gaps)
    missing = f", of which {len(board.gaps)} {has(len(board.gaps))} no result yet" if gaps else ""
    return Contents(
        about=about,
        texts=run_files(board, "table_long", "runs") | paper_texts([report], sections, about.withdrawn),
        pictures=(),
        boards={request.name: board},
        template="page.html.j2",
        page={
            "kind": "report",
            "short": short_answers(hypotheses, report.statistics),
            "caution": report.verdicts.view["caution"],
            "counts": f"{counted(len(board.runs), 'run')}{missing}.",
            "gaps": gaps,
            "gap_count": len(board.gaps),
            "absent": (),
            "anchors": {request.name: report.anchors},
        },
        sections=sections,
    )


def sweep_sections(report: SweepReport) -> list[Section | None]:
    """The sections of a sweep's page, in its order; None for a section with nothing to show."""
    board, by_setting, curves = report.board, _by_setting(report), _curves(report)
    errors = exact_section(report)
    errors_first = errors is not None and bool(errors.lines)
    return [
        errors if errors_first else None,
        effects_section(report, report.places) if report.factorial else None,
        by_setting,
        None if by_setting else curves,
        _scores(report),
        report.verdicts if report.verdicts.lines or not errors else None,
        None if errors_first else errors,
        replace(curves, hint="") if by_setting else None,
        findings_section(headlines(board)),
        statistics_section(report),
        collapse_section(report),
        _benchmarks(report),
        audit_section(report) if report.of_paper else None,
        _diagnostics(report),
        mismatch_section(report),
        _drift(report),
        answers_section(report),
        run_section({report.name: report}, len(board.runs), sorted(board.unused["run_id"])),
    ]


def _by_setting(report: SweepReport) -> Section | None:
    title = f"Score by setting ({report.title})"
    info = axes.axes_info(report.board, report.places, title, report.palette)
    if info is None:
        return None
    keys = " and ".join(axis.key for axis in info.axes)
    log = [axis.key for axis in info.axes if axis.scale == axes.LOG and not info.surface]
    scale = f" The axis of {log[0]} is logarithmic." if log else ""
    caption = f"Mean score of the last 30 % of the window by {keys}, {info.around}.{scale}"
    section = figure_section("axes", info, axes.draw, caption)
    return replace(section, name="ablation", title="Score by setting", hint=None)


def _curves(report: SweepReport) -> Section:
    """The validation curves; for the paper's grid, also its Figure 4 in a file."""
    board, palette = report.board, report.palette
    title = f"Validation curves ({report.title})"
    shown = {"curves": validation.curves_info(board, title, palette=palette)}
    if report.of_paper:
        title = "Validation curves (Figure 4)"
        shown["4"] = validation.curves_info(board, title, _FIGURE_4_MODELS, palette=palette)
    pictures = tuple(Picture.of(name, info, validation.draw) for name, info in shown.items())
    crowded = any(cell.expected > validation.FEW for cell in board.cells.values())
    view = {"crowded": crowded, "several": board.means_over_benchmarks}
    return Section("curves", "Validation curves", view, pictures=pictures)


def _scores(report: SweepReport) -> Section:
    table = main_table(report.board, f"Mean score by model ({report.heading('Table 1')})", report.statistics)
    table = with_looks(table, report)
    view = {"table": table, "anchors": report.anchors}
    return Section("scores", "Scores", view, tables={"table_main": table})


def _benchmarks(report: SweepReport) -> Section:
    table = full_table(report.board, f"Score by benchmark ({report.heading('Table 4')})")
    view = {"table": table, "anchors": report.anchors}
    return Section("benchmarks", "Scores by benchmark", view, "", tables={"table_full": table})


def _diagnostics(report: SweepReport) -> Section | None:
    title = f"Training diagnostics ({report.title})"
    info = training.diagnostics_info(report.board, title, report.palette)
    if info is None:
        return None
    view = {"several_seeds": any(cell.expected > 1 for cell in report.board.cells.values())}
    pictures = (Picture.of("diagnostics", info, training.draw),)
    return Section("diagnostics", "Training diagnostics", view, "", pictures=pictures)


def _drift(report: SweepReport) -> Section | None:
    title = f"Drift by age and position ({report.title})"
    info = axes.drift_info(report.board, report.places, title, report.palette)
    if info is None:
        return None
    caption = (
        "How far pi was from mu before a step's first update, by the age of mu in rollout batches and by third of the "
        f"response: the mean of -log rho over the steps in which mu had its full age, {info.around}."
    )
    return figure_section("drift", info, axes.draw, caption)


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
    board, title = scored.board, f"Effects ({scored.title})"
    measured = {name: _measured(scored, places, score) for score, name in _SCORES.items()}
    final, columns = measured[_FINAL], {name: of_score for name, of_score in measured.items() if of_score}
    if not final:
        return None
    adjusted = holm([1.0 if (p := estimate.p_value()) is None else p for estimate in final.values()])
    rows, shown = [], []
    for (effect, estimate), p in zip(final.items(), adjusted, strict=True):
        shown.append((effect.model, _group(effect), _change(effect, places), estimate))
        texts = (
            shown_ratio(of_score.get(effect))
            if name == _ERROR
            else estimate_text(of_score.get(effect), signed=True)
            for name, of_score in columns.items()
        )
        tested = p_text(None if estimate.error is None else p)
        cells = (shown[-1][2], *texts, tested, str(estimate.n))
        rows.append(TextRow(shown[-1][1], effect.group == OURS, cells, (effect.model, effect.group)))
    notes = (*_EFFECT_NOTES, _OF_ERRORS) if _ERROR in columns else _EFFECT_NOTES
    table = TextTable("Effects", "method", ("change", *columns, "adjusted p", "seeds"), rows, notes)
    table = completed(table, board, scored.title)
    info = axes.effects_info(board, shown, title, scored.palette)
    values = ((*names, each.value, each.low, each.high, each.n) for *names, each in shown)
    return Section(
        "effects",
        "Effects",
        {"tables": [table], "anchors": scored.anchors},
        tables={"effects": table},
        pictures=(Picture.of("effects", info, axes.draw_effects, f"Final mean, {info.around}."),),
        values={"effects": [dict(zip(_EFFECT_VALUES, row, strict=True)) for row in values]},
    )


def _measured(scored: Scored, places: Axes, score: Measure) -> dict[Effect, Estimate]:
    board, runs, measured = scored.board, run_values(scored.board), dict[Effect, Estimate]()
    if isinstance(score, Quantity):
        runs = with_quantity(board, runs, score)
    for model in board.models:
        of_model = [place for place in places.places if (model, place.variant) in board.cells]
        measured |= effects(runs, model, of_model, scored.baseline, score)
    return measured


def _group(effect: Effect) -> str:
    name = display_name(effect.group)
    return f"{name} minus {display_name(effect.against)}" if effect.against else name


def _change(effect: Effect, places: Axes) -> str:
    """`staleness 0 to 8 × mismatch 0.002 to 0.2`."""
    words = (
        f"{places.keys[axis].rpartition('.')[2]} {value_text(before)} to {value_text(after)}"
        for axis, before, after in effect.changes
    )
    return " \N{MULTIPLICATION SIGN} ".join(words) or "mean"
