"""A sweep in the store -> a folder with tables, figures and one page. All or nothing: the folder is swapped
in whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.audit import audit_tables, shared_curves
from cppo_lab.analysis.grid import ExpectedRun
from cppo_lab.analysis.reader import list_runs, read_sweep
from cppo_lab.analysis.scoring import Scoreboard, score_sweep
from cppo_lab.reports import csv_tables, markup
from cppo_lab.reports.answers.view import answers_view, kept_answers
from cppo_lab.reports.audit_view import AuditView, audit_view
from cppo_lab.reports.discrepancies import oddities
from cppo_lab.reports.drawings import draw_ahead, without_cache
from cppo_lab.reports.figures import curves, diagnostics
from cppo_lab.reports.figures.data import figure_csv
from cppo_lab.reports.figures.files import render
from cppo_lab.reports.figures.inline import inline_curves, inline_diagnostics
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.folder import PAGE, Built, is_current, require_ours, swap_in
from cppo_lab.reports.inputs import report_inputs
from cppo_lab.reports.mismatch import SHOWN, MismatchView, mismatch_view
from cppo_lab.reports.names import origin
from cppo_lab.reports.page import page_info, render_page
from cppo_lab.reports.printed import ablation_curves, main_grid, printed_table
from cppo_lab.reports.record import About, listed_files, record
from cppo_lab.reports.saved import RECORD
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.tables import FullTable, MainTable, core_of, full_table, main_table
from cppo_lab.reports.text_tables import TextTable, text_files
from cppo_lab.reports.verdict_table import verdict_table
from cppo_lab.reports.verdict_view import VerdictView, verdict_view

MAIN = "main"
Drawing = tuple[partial[None], curves.CurvesInfo | diagnostics.DiagnosticsInfo]  # how to draw what
FIGURE_4_MODELS = ("Qwen3-1.7B-Base", "Qwen3-8B-Base", "Qwen3-30B-A3B-Base")


@dataclass(frozen=True)
class ReportRequest:
    """What to report: the runs `expected` of sweep `name` in `experiment` of the store at `uri`, into folder
    `out`.

    `title` and `question` head the page; `command` is what rebuilds it. `partial` reports a grid with gaps,
    marked. `palette`: the colours of the figures, one of `palette.PALETTES`.
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


def paper_request(
    uri: str,
    out: Path,
    partial: bool = False,
    command: str = "cppo report main --from paper",
    palette: str = PAPER,
) -> ReportRequest:
    """The report of the paper's own main grid, from the curves that `cppo reference import` put into the
    store.
    """
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
    )


def build_report(request: ReportRequest, force: bool = False) -> Path:
    """Builds the report and returns the path of its page, `index.html`; see `make_report`."""
    return make_report(request, force).page


def make_report(request: ReportRequest, force: bool = False) -> Built:
    """Builds the report, unless the folder has the one that the same runs gave before (`force`: also then).

    The same runs give the same bytes. Until the last moment nothing at `request.out` changes. Raises
    UserError, with nothing written, if the runs cannot be read or scored (see `read_sweep`, `score_sweep`),
    or if `request.out` is something else than a report of ours.
    """
    out = request.out.absolute()
    require_ours(out)
    run_ids = [entry.run_id for entry in request.expected if entry.run_id is not None]
    listing = list_runs(request.uri, request.experiment)
    inputs = report_inputs(request, listing.versions({request.name: run_ids}))
    if not force and is_current(out, inputs):
        return Built(request.out / PAGE, anew=False)
    data = read_sweep(request.uri, request.experiment, request.name, _is_shown, run_ids, listing)
    board = score_sweep(data, request.expected, request.partial)
    with without_cache(force):
        files = _files(request, board)
    swap_in(out, files, (request.name, origin(core_of(board))), inputs)
    return Built(request.out / PAGE, anew=True)


def _is_shown(metric: str) -> bool:
    """Whether the report has a use for a metric: thousands of runs have millions of points of others."""
    return (
        metric in diagnostics.LABELS or metric in SHOWN or schema.parse_validation_metric(metric) is not None
    )


def current_inputs(request: ReportRequest) -> str:
    """The inputs of the report if it were made now."""
    run_ids = [entry.run_id for entry in request.expected if entry.run_id is not None]
    listing = list_runs(request.uri, request.experiment)
    return report_inputs(request, listing.versions({request.name: run_ids}))


def _files(request: ReportRequest, board: Scoreboard) -> dict[str, bytes]:
    """Every file of the report by name."""
    of_paper = request.experiment == schema.experiment_name(schema.PAPER) and request.name == MAIN
    heads = ("Table 1", "Table 4") if of_paper else (request.title,) * 2
    main = main_table(board, f"Mean score by model ({heads[0]})")
    full = full_table(board, f"Score by benchmark ({heads[1]})")
    shown = curves.curves_info(board, f"Validation curves ({request.title})", palette=request.palette)
    traces = diagnostics.diagnostics_info(board, f"Training diagnostics ({request.title})", request.palette)
    verdicts = verdict_view({request.name: board}, core_of(board))
    kept = kept_answers(request.uri, board)
    sure = statistics_tables(board, request.title, kept)
    gap = mismatch_view(board, request.title, request.palette)
    texts = _table_files(board, (main, full), verdicts, sure, gap)
    command = request.command or f"cppo report {request.name}"
    _draw_ahead(command, shown, traces)
    view = None
    if of_paper and not board.gaps:
        view, audit_texts = _audit(board)
        texts |= audit_texts
    drawings: dict[str, Drawing] = {"figure_curves": (partial(curves.draw, shown), shown)}
    if of_paper:
        figure_4 = curves.curves_info(
            board, "Validation curves (Figure 4)", FIGURE_4_MODELS, palette=request.palette
        )
        drawings["figure_4"] = (partial(curves.draw, figure_4), figure_4)
    if traces is not None:
        drawings["figure_diagnostics"] = (partial(diagnostics.draw, traces), traces)
    pictures: dict[str, bytes] = {}
    for name, (draw, info) in drawings.items():
        pictures |= _pictures(command, name, draw, info)
    texts["tables.tex"] = markup.latex_wrapper(texts)
    about = (request.name, request.title, request.question, command)
    tables, offered = (main, full, tuple(sure.values())), listed_files([*texts, *pictures])
    answers = answers_view(board, kept)
    page = page_info(
        board, tables, verdicts, (shown, traces), view, about, request.uri, offered, gap, answers
    )
    texts[PAGE] = render_page(page)
    files = {name: text.encode() for name, text in texts.items()} | pictures
    drawn = {name: draw for name, (draw, _) in drawings.items()}
    head = About("sweep", request.name, request.title, request.experiment, core_of(board), command)
    return files | {RECORD: record(head, {request.name: board}, drawn, files)}


def _table_files(
    board: Scoreboard,
    tables: tuple[MainTable, FullTable],
    verdicts: VerdictView,
    sure: Mapping[str, TextTable],
    gap: MismatchView | None,
) -> dict[str, str]:
    """Every table in Markdown, LaTeX and CSV, and the list of runs."""
    main, full = tables
    texts = {
        "table_main.md": markup.main_markdown(main),
        "table_main.tex": markup.main_latex(main),
        "table_main.csv": csv_tables.main_csv(main),
        "table_full.md": markup.full_markdown(full),
        "table_full.tex": markup.full_latex(full),
        "table_full.csv": csv_tables.full_csv(full),
        "table_long.csv": csv_tables.long_csv(board),
        "runs.csv": csv_tables.runs_csv(board),
    }
    further = {f"statistics_{kind}": one for kind, one in sure.items()}
    further |= {f"mismatch_{kind}": one for kind, one in gap.tables.items()} if gap else {}
    for name, table in {"verdicts": verdict_table(verdicts), **further}.items():
        texts |= {} if table is None else text_files(name, table)
    return texts


def _draw_ahead(command: str, shown: curves.CurvesInfo, traces: diagnostics.DiagnosticsInfo | None) -> None:
    """Make the largest drawings, those of the files and those of the page, in two processes."""
    calls: list[partial[Any]] = [
        partial(_pictures, command, "figure_curves", partial(curves.draw, shown), shown)
    ]
    if traces is not None:
        draw = partial(diagnostics.draw, traces)
        calls += [
            partial(inline_diagnostics, traces),
            partial(_pictures, command, "figure_diagnostics", draw, traces),
        ]
    draw_ahead([calls[0], partial(inline_curves, shown), *calls[1:]])


def _pictures(
    command: str, name: str, draw: partial[None], info: curves.CurvesInfo | diagnostics.DiagnosticsInfo
) -> dict[str, bytes]:
    title = f"{info.title} ({info.source})"
    files = {f"{name}.{kind}": data for kind, data in render(draw, title, info.run_ids, command).items()}
    return files | {f"{name}.csv": figure_csv(info).encode()}


def _audit(board: Scoreboard) -> tuple[AuditView, dict[str, str]]:
    audit = audit_tables(board, printed_table("table_full"))
    ablations = ablation_curves()
    found = oddities(audit, board, ablations, shared_curves(board, ablations))
    view = audit_view(audit, found)
    return view, {"audit.md": markup.audit_markdown(view), "audit.csv": csv_tables.audit_csv(audit)}
