"""The report of one sweep: its tables and figures, and its page."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.grid import NO_AXES, USUAL, Axes, Baseline, ExpectedRun
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, describe_gaps, score_sweep
from cppo_lab.analysis.statistics.exact_study import READ
from cppo_lab.analysis.statistics.registration import NONE_STATED, Hypotheses, withdrawn
from cppo_lab.reports.answers.view import kept_answers
from cppo_lab.reports.audit import audit_section
from cppo_lab.reports.build import Contents, GridRequest
from cppo_lab.reports.collapses import collapse_section
from cppo_lab.reports.exact_view import exact_section
from cppo_lab.reports.figures import axes, training, validation
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.headlines import headlines
from cppo_lab.reports.mismatch import SHOWN, mismatch_section
from cppo_lab.reports.paper_text import paper_texts
from cppo_lab.reports.printed import main_grid
from cppo_lab.reports.record import About
from cppo_lab.reports.sections import (
    Scored,
    Section,
    answers_section,
    findings_section,
    run_files,
    run_section,
    statistics,
    verdict_section,
)
from cppo_lab.reports.tables import full_table, main_table
from cppo_lab.reports.verdict_view import short_answers

MAIN = "main"
FIGURE_4_MODELS = ("Qwen3-1.7B-Base", "Qwen3-8B-Base", "Qwen3-30B-A3B-Base")


@dataclass(frozen=True, kw_only=True)
class ReportRequest(GridRequest):
    """The report of the runs `expected` of a sweep.

    `stated`: the sweep's own hypotheses. `axes`: the positions of its variants on its axes. `baseline`: see
    `summary.baseline_of`. `beside`: sweeps whose pages are linked. `pairing`: whether its file requests
    comparison seed by seed.
    """

    expected: tuple[ExpectedRun, ...]
    stated: Hypotheses = NONE_STATED
    axes: Axes = NO_AXES
    baseline: Baseline = USUAL
    beside: tuple[str, ...] = ()
    pairing: bool | None = None

    def contents(self) -> Contents:
        """Raises UserError as `read_sweep` and `score_sweep`."""
        run_ids = [entry.run_id for entry in self.expected if entry.run_id is not None]
        data = read_sweep(self.uri, self.experiment, self.name, _is_shown, run_ids)
        return sweep_contents(self, score_sweep(data, self.expected, self.partial, self.pairing))


def paper_request(uri: str, out: Path, **about: Any) -> ReportRequest:
    """The report of the paper's own main grid, from the curves imported into the store by `cppo reference import`."""
    return ReportRequest(
        name=MAIN,
        uri=uri,
        experiment=schema.experiment_name(schema.PAPER),
        expected=main_grid(),
        out=out,
        title="The paper's main results, recomputed from its curves",
        question="Do the paper's plotted curves give its printed Tables 1 and 4, and how firm is the order?",
        **{"command": "cppo report main --from paper", **about},
    )


def _is_shown(metric: str) -> bool:
    """Whether the report uses a metric; thousands of runs have millions of points of the others."""
    named = metric in training.LABELS or metric in SHOWN or metric in READ
    return named or schema.parse_validation_metric(metric) is not None


@dataclass(frozen=True, eq=False)
class SweepReport(Scored):
    """The scored sweep of a report, the positions of its variants on its axes, and whether it is the paper's main
    grid.
    """

    places: Axes = NO_AXES
    of_paper: bool = False

    @cached_property
    def verdicts(self) -> Section:
        """The section on the claims about scores."""
        return verdict_section({self.name: self}, self.core)

    @cached_property
    def exact(self) -> Section | None:
        """The section on the surrogate's error."""
        return exact_section(self)

    @cached_property
    def by_setting(self) -> axes.AxesInfo | None:
        """The figure of the scores over the axes."""
        return axes.axes_info(self.board, self.places, f"Score by setting ({self.title})", self.palette)

    def heading(self, table: str) -> str:
        """The paper's `table`, or the sweep's title."""
        return table if self.of_paper else self.title


def _errors_first(report: SweepReport) -> Section | None:
    return report.exact if report.exact and report.exact.lines else None


def _errors_later(report: SweepReport) -> Section | None:
    return None if _errors_first(report) else report.exact


def _by_setting(report: SweepReport) -> Section | None:
    info = report.by_setting
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
    shown = [
        ("curves", validation.curves_info(board, f"Validation curves ({report.title})", palette=palette))
    ]
    if report.of_paper:
        title = "Validation curves (Figure 4)"
        shown.append(("4", validation.curves_info(board, title, FIGURE_4_MODELS, palette=palette)))
    pictures = tuple(_picture(name, info, validation.draw) for name, info in shown)
    crowded = any(cell.expected > validation.FEW for cell in board.cells.values())
    return Section("curves", "Validation curves", {"crowded": crowded}, pictures=pictures)


def _curves_first(report: SweepReport) -> Section | None:
    return None if report.by_setting else _curves(report)


def _curves_later(report: SweepReport) -> Section | None:
    return replace(_curves(report), hint="") if report.by_setting else None


def _scores(report: SweepReport) -> Section:
    table = main_table(report.board, f"Mean score by model ({report.heading('Table 1')})", report.statistics)
    view = {"table": table, "anchors": report.anchors}
    return Section("scores", "Scores", view, tables={"table_main": table})


def _verdicts(report: SweepReport) -> Section | None:
    return report.verdicts if report.verdicts.lines or not report.exact else None


def _benchmarks(report: SweepReport) -> Section:
    table = full_table(report.board, f"Score by benchmark ({report.heading('Table 4')})")
    view = {"table": table, "anchors": report.anchors}
    return Section("benchmarks", "Scores by benchmark", view, "", tables={"table_full": table})


def _audit(report: SweepReport) -> Section | None:
    return audit_section(report) if report.of_paper else None


def _diagnostics(report: SweepReport) -> Section | None:
    title = f"Training diagnostics ({report.title})"
    info = training.diagnostics_info(report.board, title, report.palette)
    several = any(cell.expected > 1 for cell in report.board.cells.values())
    if info is None:
        return None
    picture = _picture("diagnostics", info, training.draw)
    view = {"several_seeds": several}
    return Section("diagnostics", "Training diagnostics", view, "", pictures=(picture,))


def _runs(report: SweepReport) -> Section:
    return run_section({report.name: report}, len(report.board.runs), sorted(report.board.unused["run_id"]))


# The sections of a sweep's page, in its order.
SWEEP: tuple[Callable[[SweepReport], Section | None], ...] = (
    _errors_first,
    _by_setting,
    _curves_first,
    _scores,
    _verdicts,
    _errors_later,
    _curves_later,
    lambda report: findings_section(headlines(report.board)),
    statistics,
    collapse_section,
    _benchmarks,
    _audit,
    _diagnostics,
    mismatch_section,
    answers_section,
    _runs,
)


def sweep_contents(request: ReportRequest, board: Scoreboard) -> Contents:
    """The report of a scored sweep."""
    report = SweepReport(
        name=request.name,
        title=request.title,
        board=board,
        uri=request.uri,
        palette=request.palette,
        baseline=request.baseline,
        stated=request.stated,
        answers=kept_answers(request.uri, board),
        places=request.axes,
        of_paper=request.experiment == schema.experiment_name(schema.PAPER) and request.name == MAIN,
    )
    gone = withdrawn(request.name, request.stated)
    about = About.of("sweep", request, report.core, gone, beside=request.beside)
    sections = tuple(section for make in SWEEP if (section := make(report)) is not None)
    judged = [line.verdict for line in report.verdicts.lines if line.verdict.claim in report.own]
    of_errors = [line for section in sections for line in section.lines if line.verdict.claim.of_errors]
    gaps = describe_gaps(board.gaps)
    missing = f", of which {len(board.gaps)} have no result yet" if gaps else ""
    return Contents(
        about=about,
        texts=run_files(report, "table_long", "runs")
        | paper_texts({request.name: board}, {request.name: report.statistics}, sections, about.withdrawn),
        pictures=(),
        boards={request.name: board},
        template="page.html.j2",
        page={
            "kind": "report",
            "short": short_answers(judged, of_errors, report.statistics),
            "caution": report.verdicts.view["caution"],
            "counts": f"{len(board.runs)} runs{missing}.",
            "gaps": gaps,
            "gap_count": len(board.gaps),
            "absent": (),
            "anchors": {request.name: report.anchors},
        },
        sections=sections,
    )


def figure_section(name: str, info: Any, draw: Callable[[Any, Any], None], caption: str = "") -> Section:
    """A folded section of one figure."""
    picture = _picture(name, info, draw, caption)
    view = {"figures": [picture.name]}
    return Section(f"{picture.name}_part", info.title, view, "", "figure_list", pictures=(picture,))


def _picture(name: str, info: Any, draw: Callable[[Any, Any], None], caption: str = "") -> Picture:
    return Picture(f"figure_{name}", "", info.title, caption, info, draw)
