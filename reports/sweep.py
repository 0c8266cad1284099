"""The report of one sweep: its tables and figures, and its page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.audit import audit_tables, shared_curves
from cppo_lab.analysis.exact_study import READ
from cppo_lab.analysis.grid import NO_AXES, USUAL, Axes, Baseline, ExpectedRun
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.analysis.scoring import Scoreboard, describe_gaps, score_sweep
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.analysis.statistics.verdicts import verdicts
from cppo_lab.reports import table_texts
from cppo_lab.reports.answer import ShortAnswers, short_answers
from cppo_lab.reports.answers.view import AnswersView, answers_view, kept_answers
from cppo_lab.reports.audit import AuditView, audit_csv, audit_markdown, audit_view, discrepancies
from cppo_lab.reports.build import Contents
from cppo_lab.reports.collapses import CollapseView, collapse_view
from cppo_lab.reports.exact_view import ExactView, exact_view
from cppo_lab.reports.figures import axes, training, validation
from cppo_lab.reports.figures.drawing import USUAL_STYLE, Picture, Style
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.headlines import headlines
from cppo_lab.reports.mismatch import SHOWN, MismatchView, mismatch_view
from cppo_lab.reports.paper_text import Judged, paper_texts
from cppo_lab.reports.printed import ablation_curves, main_grid, printed_table
from cppo_lab.reports.record import About
from cppo_lab.reports.registration import NONE_STATED, Hypotheses, standing, withdrawn
from cppo_lab.reports.run_list import anchors_of, run_groups
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.table_texts import Table, table_files
from cppo_lab.reports.tables import FullTable, MainTable, TextTable, core_of, full_table, main_table
from cppo_lab.reports.verdict_view import VerdictView, verdict_table, verdict_view

MAIN = "main"
FIGURE_4_MODELS = ("Qwen3-1.7B-Base", "Qwen3-8B-Base", "Qwen3-30B-A3B-Base")
_LIST = "0"  # the page has one list of runs


@dataclass(frozen=True)
class ReportRequest:
    """What to report: the runs `expected` of sweep `name` in `experiment` of the store at `uri`, into folder
    `out`.

    `title` and `question` head the page; `command` rebuilds it. `partial` allows a grid with gaps, which are
    marked. `palette`: the colours of the figures, one of `palette.PALETTES`; `style`: their width and font.
    `stated`: the sweep's own hypotheses. `axes`: the positions of its variants on its axes. `baseline`: see
    `summary.baseline_of`. `beside`: sweeps whose pages are linked. `pairing`: whether its file requests
    comparison seed by seed.
    """

    name: str
    uri: str
    experiment: str
    expected: tuple[ExpectedRun, ...]
    out: Path
    title: str
    question: str
    partial: bool = False
    command: str = ""
    palette: str = PAPER
    style: Style = USUAL_STYLE
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


def paper_request(
    uri: str,
    out: Path,
    partial: bool = False,
    command: str = "cppo report main --from paper",
    palette: str = PAPER,
    style: Style = USUAL_STYLE,
) -> ReportRequest:
    """The report of the paper's own main grid, from the curves imported into the store by `cppo reference import`."""
    return ReportRequest(
        name=MAIN,
        uri=uri,
        experiment=schema.experiment_name(schema.PAPER),
        expected=main_grid(),
        out=out,
        title="The paper's main results, recomputed from its curves",
        question="Do the paper's plotted curves give its printed Tables 1 and 4, and how firm is the order?",
        partial=partial,
        command=command,
        palette=palette,
        style=style,
    )


def _is_shown(metric: str) -> bool:
    """Whether the report uses a metric; thousands of runs have millions of points of the others."""
    named = metric in training.LABELS or metric in SHOWN or metric in READ
    return named or schema.parse_validation_metric(metric) is not None


@dataclass(frozen=True, eq=False)
class _Parts:
    """The tables and figures of a sweep. `statistics` and the tables of `mismatch` map a kind to its table."""

    short: ShortAnswers
    main: MainTable
    full: FullTable
    verdicts: VerdictView
    statistics: Mapping[str, TextTable]
    collapses: CollapseView | None
    mismatch: MismatchView | None
    exact: ExactView | None
    ablation: axes.AxesInfo | None
    curves: validation.CurvesInfo
    diagnostics: training.DiagnosticsInfo | None
    audit: AuditView | None
    answers: AnswersView | None


def sweep_contents(request: ReportRequest, board: Scoreboard) -> Contents:
    """The report of a scored sweep."""
    of_paper = request.experiment == schema.experiment_name(schema.PAPER) and request.name == MAIN
    heads = ("Table 1", "Table 4") if of_paper else (request.title,) * 2
    kept = kept_answers(request.uri, board)
    own = {one: standing(request.stated, one, board) for one in request.stated.claims}
    audit, audit_texts = _audit(board) if of_paper and not board.gaps else (None, {})
    found = sweep_statistics(board, baseline=request.baseline)
    parts = _Parts(
        short=short_answers(verdicts({request.name: board}, tuple(own)), found),
        main=main_table(board, f"Mean score by model ({heads[0]})", found),
        full=full_table(board, f"Score by benchmark ({heads[1]})"),
        verdicts=verdict_view(
            {request.name: board},
            core_of(board),
            own=own,
        ),
        statistics=statistics_tables(board, request.title, kept, found),
        collapses=collapse_view(board, request.title, request.palette, request.baseline),
        mismatch=mismatch_view(board, request.title, request.palette),
        exact=exact_view(board, request.stated, request.title, request.palette),
        ablation=axes.axes_info(board, request.axes, f"Score by setting ({request.title})", request.palette),
        curves=validation.curves_info(board, f"Validation curves ({request.title})", palette=request.palette),
        diagnostics=training.diagnostics_info(
            board, f"Training diagnostics ({request.title})", request.palette
        ),
        audit=audit,
        answers=answers_view(board, kept),
    )
    about = About(
        kind="sweep",
        name=request.name,
        title=request.title,
        question=request.question,
        experiment=request.experiment,
        core=core_of(board),
        command=request.command or f"cppo report {request.name}",
        beside=request.beside,
        withdrawn=withdrawn(request.name, request.stated),
    )
    exact = parts.exact
    lines: list[Judged] = [*(exact.lines if exact else ()), *parts.verdicts.lines]
    how = [text for text in (exact.method if exact and exact.lines else "", parts.verdicts.rule) if text]
    texts = paper_texts({request.name: board}, {request.name: found}, lines, how, about.withdrawn)
    return Contents(
        about=about,
        texts=_texts(board, parts) | audit_texts | texts,
        pictures=_pictures(board, parts, request.palette if of_paper else None),
        boards={request.name: board},
        template="page.html.j2",
        page=_page(board, parts, request.uri),
        claims=own,
        judged=parts.exact.judged if parts.exact else (),
    )


def _texts(board: Scoreboard, parts: _Parts) -> dict[str, str]:
    """Every table in Markdown, LaTeX and CSV, and the list of runs."""
    tables: dict[str, Table | None] = {
        "table_main": parts.main,
        "table_full": parts.full,
        "verdicts": verdict_table(parts.verdicts),
    }
    if parts.collapses is not None:
        tables |= {"collapses": parts.collapses.table, "collapse_steps": parts.collapses.steps}
    tables |= {f"statistics_{kind}": one for kind, one in parts.statistics.items()}
    tables |= (
        {f"mismatch_{kind}": one for kind, one in parts.mismatch.tables.items()} if parts.mismatch else {}
    )
    tables |= {f"exact_{kind}": one for kind, one in parts.exact.files.items()} if parts.exact else {}
    lists = {"table_long.csv": table_texts.long_csv(board), "runs.csv": table_texts.runs_csv(board)}
    return table_files(tables) | lists


def _page(board: Scoreboard, parts: _Parts, uri: str) -> dict[str, Any]:
    """What the page shows, by the names of the template, apart from `About` and the figures."""
    return vars(parts) | {
        "run_count": len(board.runs),
        "several_seeds": any(cell.expected > 1 for cell in board.cells.values()),
        "crowded": any(cell.expected > validation.FEW for cell in board.cells.values()),
        "gap_count": len(board.gaps),
        "gaps": describe_gaps(board.gaps),
        "headlines": headlines(board),
        "anchors": anchors_of(board, _LIST),
        "runs": run_groups(board, _LIST, uri),
        "served": uri.startswith("http"),
        "unused": sorted(board.unused["run_id"]),
    }


def _pictures(board: Scoreboard, parts: _Parts, paper_palette: str | None) -> tuple[Picture, ...]:
    """All figures; with a `paper_palette`, also the paper's Figure 4 in that palette."""
    pictures = [
        *((parts.exact.picture,) if parts.exact else ()),
        *(parts.collapses.pictures if parts.collapses else ()),
        _picture("curves", parts.curves, validation.draw),
    ]
    if parts.ablation is not None:
        pictures.append(_picture("axes", parts.ablation, axes.draw, _axes_words(parts.ablation)))
    if paper_palette is not None:
        title = "Validation curves (Figure 4)"
        shown = validation.curves_info(board, title, FIGURE_4_MODELS, palette=paper_palette)
        pictures.append(_picture("4", shown, validation.draw))
    if parts.diagnostics is not None:
        pictures.append(_picture("diagnostics", parts.diagnostics, training.draw))
    return (*pictures, *((parts.mismatch.picture,) if parts.mismatch else ()))


def _picture(name: str, info: Any, draw: Callable[[Any, Any], None], caption: str = "") -> Picture:
    return Picture(f"figure_{name}", "", info.title, caption, info, draw)


def _axes_words(info: axes.AxesInfo) -> str:
    """The caption of the figure over the axes."""
    keys = " and ".join(axis.key for axis in info.axes)
    several = any(max(line.runs) > 1 for panel in info.panels for line in panel.lines) or any(
        cell.runs > 1 for panel in info.panels for cell in panel.cells
    )
    around = (
        "with the 95 % interval of the mean over seeds" if several else "of one run each, without an interval"
    )
    log = [axis.key for axis in info.axes if axis.scale == axes.LOG and not info.surface]
    scale = f" The axis of {log[0]} is logarithmic." if log else ""
    return f"Mean score of the last 30 % of the window by {keys}, {around}.{scale}"


def _audit(board: Scoreboard) -> tuple[AuditView, dict[str, str]]:
    audit = audit_tables(board, printed_table("table_full"))
    ablations = ablation_curves()
    found = discrepancies(audit, board, ablations, shared_curves(board, ablations))
    view = audit_view(audit, found)
    return view, {"audit.md": audit_markdown(view), "audit.csv": audit_csv(audit)}
