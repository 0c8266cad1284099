"""A study -- several sweeps of one experiment -- as a folder with Tables 1 to 4, Figures 1 to 11, the tables of the
ablations and one page. All or nothing, as with the report of one sweep.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun, SweepGrid
from cppo_lab.analysis.reader import list_runs
from cppo_lab.analysis.study import MAIN, StudyResults, StudySweep, read_study
from cppo_lab.reports import csv_tables, markup, text_tables
from cppo_lab.reports.configuration import configuration_table
from cppo_lab.reports.drawings import draw_ahead, without_cache
from cppo_lab.reports.figures.ablations import MECHANISMS, SETTINGS
from cppo_lab.reports.figures.files import render
from cppo_lab.reports.figures.gallery import gallery
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.figures.picture import Absent, Picture
from cppo_lab.reports.folder import PAGE, Built, is_current, require_ours, swap_in
from cppo_lab.reports.inputs import report_inputs
from cppo_lab.reports.names import origin
from cppo_lab.reports.printed import ablation_curves, main_grid
from cppo_lab.reports.record import About, listed_files, record
from cppo_lab.reports.rule_comparison import distinction_table
from cppo_lab.reports.saved import RECORD
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.study_page import (
    Ablation,
    StudyTables,
    page_figure,
    render_study,
    study_core,
    study_page,
)
from cppo_lab.reports.tables import MainTable, full_table, main_table
from cppo_lab.reports.verdict_table import verdict_table
from cppo_lab.reports.verdict_view import verdict_view


@dataclass(frozen=True)
class StudyRequest:
    """What to report: the `sweeps` of study `name`, whose runs are in `experiment` of the store at `uri`, into folder
    `out`.

    The sweep called "main" declares the models in the order of their roles: post-trained, then three Base models by
    size. `title` and `question` head the page, `command` is what rebuilds it. `partial` reports a study with gaps,
    marked. `palette`: the colours of the figures, one of `palette.PALETTES`.
    """

    name: str
    uri: str
    experiment: str
    sweeps: tuple[SweepGrid, ...]
    out: Path
    title: str
    question: str
    partial: bool = False
    command: str = ""
    palette: str = PAPER


def build_study(request: StudyRequest, force: bool = False) -> Path:
    """Builds the report and returns the path of its page, `index.html`; see `make_study`."""
    return make_study(request, force).page


def make_study(request: StudyRequest, force: bool = False) -> Built:
    """Builds the report, unless the folder has the one that the same runs gave before (`force`: also then).

    The same runs give the same bytes. Until the last moment nothing at `request.out` changes. Raises UserError, with
    nothing written, if the runs or their diagnostics cannot be read or scored (see `read_study`), or if `request.out`
    is something else than a report of ours.
    """
    out = request.out.absolute()
    require_ours(out)
    listing = list_runs(request.uri, request.experiment)
    inputs = report_inputs(request, listing.versions(_run_ids(request)))
    if not force and is_current(out, inputs):
        return Built(request.out / PAGE, anew=False)
    study = read_study(
        request.uri, request.experiment, request.name, request.sweeps, request.partial, listing
    )
    with without_cache(force):
        files = _files(request, study)
    swap_in(out, files, (request.name, origin(study_core(study))), inputs)
    return Built(request.out / PAGE, anew=True)


def current_inputs(request: StudyRequest) -> str:
    """The inputs of the report if it were made now."""
    return report_inputs(request, list_runs(request.uri, request.experiment).versions(_run_ids(request)))


def _run_ids(request: StudyRequest) -> dict[str, list[str]]:
    """Of each sweep, those that are known."""
    return {
        sweep.name: [entry.run_id for entry in sweep.expected if entry.run_id is not None]
        for sweep in request.sweeps
    }


def paper_study_request(
    uri: str,
    out: Path,
    partial: bool = False,
    command: str = "cppo report study --from paper",
    palette: str = PAPER,
) -> StudyRequest:
    """The study made of the paper's own curves, from what `cppo reference import` put into the store."""
    ablations: dict[str, dict[ExpectedRun, None]] = {}
    for row in ablation_curves()[["ablation", "model", "variant"]].drop_duplicates().itertuples():
        ablations.setdefault(row.ablation, {})[ExpectedRun(None, row.model, row.variant, None)] = None
    grids = [SweepGrid(MAIN, "Main results", "Is CPPO best on every model?", main_grid())]
    for name, heading in (*MECHANISMS, *SETTINGS):
        question = "An ablation of the paper, from its curves."
        grids.append(SweepGrid(name, heading, question, tuple(ablations[name])))
    return StudyRequest(
        name="study",
        uri=uri,
        experiment=schema.experiment_name(schema.PAPER),
        sweeps=tuple(grids),
        out=out,
        title="The paper's figures, drawn again from its curves",
        question="What do the paper's plotted curves show when they go through the report of our own runs?",
        partial=partial,
        command=command,
        palette=palette,
    )


def _files(request: StudyRequest, study: StudyResults) -> dict[str, bytes]:
    """Every file of the report by name."""
    tables = _tables(study)
    texts = _table_files(study, tables)
    texts["tables.tex"] = markup.latex_wrapper(texts)
    pictures = gallery(study, request.palette)
    command = request.command or f"cppo report {request.name}"
    draw_ahead(
        [call for one in pictures for call in (partial(_draw, one, command), partial(page_figure, one))]
    )
    drawn: dict[str, bytes] = {}
    for picture in pictures:
        drawn |= _draw(picture, command)
    about = (request.title, request.question, command)
    page = study_page(study, tables, pictures, about, request.uri, listed_files([*texts, *drawn]))
    texts[PAGE] = render_study(page)
    files = {name: text.encode() for name, text in texts.items()} | drawn
    boards = {sweep.grid.name: sweep.board for sweep in study.sweeps if sweep.board is not None}
    drawings = {one.name: partial(one.drawing) for one in pictures if not isinstance(one.drawing, Absent)}
    head = About("study", request.name, request.title, request.experiment, study_core(study), command)
    return files | {RECORD: record(head, boards, drawings, files)}


def _draw(picture: Picture, command: str) -> dict[str, bytes]:
    """The files of one figure; none where it cannot be drawn."""
    if isinstance(picture.drawing, Absent):
        return {}
    title = f"{picture.heading} ({picture.source})"
    files = render(picture.drawing, title, picture.run_ids, command)
    drawn = {f"{picture.name}.{kind}": data for kind, data in files.items()}
    return drawn | {f"{picture.name}.csv": picture.data.encode()}


def _tables(study: StudyResults) -> StudyTables:
    board = study.board(MAIN)
    used = {run.rule for each in study.boards for run in each.runs if run.rule}
    distinction = distinction_table("How the rules differ (Table 2)", used)
    main = None if board is None else main_table(board, "Mean score by model (Table 1)")
    ablations = tuple(_ablation(sweep, main) for sweep in study.sweeps if sweep.grid.name != MAIN)
    sure = {
        sweep.grid.name: statistics_tables(sweep.board, sweep.grid.title)
        for sweep in study.sweeps
        if sweep.board is not None
    }
    boards = {sweep.grid.name: sweep.board for sweep in study.sweeps if sweep.board is not None}
    verdicts = verdict_view(boards, study_core(study), whole=True)
    if board is None:
        return StudyTables(None, distinction, None, None, ablations, sure, verdicts)
    return StudyTables(
        main=main,
        distinction=distinction,
        configuration=configuration_table(board, study.models, "Configuration of each model (Table 3)"),
        full=full_table(board, "Score by benchmark (Table 4)"),
        ablations=ablations,
        statistics=sure,
        verdicts=verdicts,
    )


def _ablation(sweep: StudySweep, main: MainTable | None) -> Ablation:
    table = None if sweep.board is None else full_table(sweep.board, sweep.grid.title)
    known = () if main is None else main.notes
    notes = () if table is None else tuple(note for note in table.notes if note not in known)
    return Ablation(sweep.grid.name, sweep.grid.title, sweep.grid.question, table, notes, sweep.absent)


def _table_files(study: StudyResults, tables: StudyTables) -> dict[str, str]:
    """Every table in Markdown, LaTeX and CSV, and the list of runs of every sweep."""
    texts: dict[str, str] = {}
    if tables.main is not None:
        texts |= {
            "table_1.md": markup.main_markdown(tables.main),
            "table_1.tex": markup.main_latex(tables.main),
            "table_1.csv": csv_tables.main_csv(tables.main),
        }
    texts |= text_tables.text_files("table_2", tables.distinction)
    if tables.configuration is not None:
        texts |= text_tables.text_files("table_3", tables.configuration)
    if tables.full is not None:
        texts |= {
            "table_4.md": markup.full_markdown(tables.full),
            "table_4.tex": markup.full_latex(tables.full),
            "table_4.csv": csv_tables.full_csv(tables.full),
        }
    beside = [sweep for sweep in study.sweeps if sweep.grid.name != MAIN]
    for sweep, ablation in zip(beside, tables.ablations, strict=True):
        if ablation.table is not None:
            name = f"table_{sweep.grid.name}"
            texts[f"{name}.md"] = markup.full_markdown(ablation.table)
            texts[f"{name}.tex"] = markup.full_latex(ablation.table)
            texts[f"{name}.csv"] = csv_tables.full_csv(ablation.table)
    claims = verdict_table(tables.verdicts)
    texts |= {} if claims is None else text_tables.text_files("verdicts", claims)
    for name, sure in tables.statistics.items():
        for kind, table in sure.items():
            texts |= text_tables.text_files(f"statistics_{name}_{kind}", table)
    for sweep in study.sweeps:
        if sweep.board is not None:
            texts[f"long_{sweep.grid.name}.csv"] = csv_tables.long_csv(sweep.board)
            texts[f"runs_{sweep.grid.name}.csv"] = csv_tables.runs_csv(sweep.board)
    return texts
