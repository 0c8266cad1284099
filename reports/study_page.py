"""The page of a study: frozen info in, one self-contained HTML text out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cppo_lab import schema
from cppo_lab.analysis.scoring import describe_gap
from cppo_lab.analysis.study import MAIN, StudyResults
from cppo_lab.reports.charts import Charts, charts_of
from cppo_lab.reports.figures.ablations import full_method
from cppo_lab.reports.figures.curves import curves_info
from cppo_lab.reports.figures.diagnostics import diagnostics_info
from cppo_lab.reports.figures.inline import inline_svg
from cppo_lab.reports.figures.picture import Absent, Picture
from cppo_lab.reports.headlines import Headline, headlines
from cppo_lab.reports.names import origin
from cppo_lab.reports.page import render_template
from cppo_lab.reports.run_list import RunGroup, anchors_of, run_groups
from cppo_lab.reports.tables import FullTable, MainTable, core_of
from cppo_lab.reports.text_tables import TextTable
from cppo_lab.reports.verdict_view import VerdictView


@dataclass(frozen=True)
class PageFigure:
    """One numbered figure: `svg` is markup of our own, empty where there is a `reason` not to draw it. `data`: the file
    with its numbers.
    """

    heading: str
    caption: str
    svg: str
    reason: str
    data: str = ""


@dataclass(frozen=True)
class Ablation:
    """One sweep beside the main one; `table` None: `absent` says why. `notes`: those that the main table has not."""

    name: str
    title: str
    question: str
    table: FullTable | None
    notes: tuple[str, ...]
    absent: str


@dataclass(frozen=True)
class StudyTables:
    """Tables 1 to 4 and those of the ablations; None where the main sweep has nothing to show. `statistics`: sweep ->
    its tables.
    """

    main: MainTable | None
    distinction: TextTable
    configuration: TextTable | None
    full: FullTable | None
    ablations: tuple[Ablation, ...]
    statistics: Mapping[str, Mapping[str, TextTable]]
    verdicts: VerdictView


@dataclass(frozen=True)
class StudyPage:
    """Everything on the page. `anchors`, `charts` and `statistics` are by sweep."""

    name: str
    title: str
    question: str
    experiment: str
    command: str
    core: str
    origin: str
    run_count: int
    sweep_count: int
    gaps: tuple[str, ...]
    absent: tuple[str, ...]
    verdicts: VerdictView
    headlines: tuple[Headline, ...]
    main: MainTable | None
    main_absent: str
    distinction: TextTable
    configuration: TextTable | None
    full: FullTable | None
    ablations: tuple[Ablation, ...]
    statistics: Mapping[str, Mapping[str, TextTable]]
    charts: Mapping[str, Charts]
    anchors: Mapping[str, Mapping[tuple[str, str], str]]
    figures: tuple[PageFigure, ...]
    runs: tuple[tuple[str, tuple[RunGroup, ...]], ...]
    served: bool
    unused: tuple[str, ...]
    files: tuple[str, ...]


def study_page(
    study: StudyResults,
    tables: StudyTables,
    pictures: Sequence[Picture],
    about: tuple[str, str, str],
    uri: str,
    files: Sequence[str],
) -> StudyPage:
    """Puts the page together; `about` is (title, question, command), `uri` that of the store."""
    title, question, command = about
    core = study_core(study)
    shown = [(sweep.grid, sweep.board) for sweep in study.sweeps if sweep.board is not None]
    gaps: dict[str, list[str]] = {}
    for grid, board in shown:
        for run in board.gaps:
            gaps.setdefault(describe_gap(run), []).append(grid.name)
    lists = {grid.name: str(number) for number, (grid, _) in enumerate(shown)}
    anchors = {grid.name: anchors_of(board, lists[grid.name]) for grid, board in shown}
    used = {run.run_id for board in study.boards for run in board.runs}
    unused = {run_id for board in study.boards for run_id in board.unused["run_id"]} - used
    return StudyPage(
        name=study.name,
        title=title,
        question=question,
        experiment=study.experiment,
        command=command,
        core=core,
        origin=origin(core),
        run_count=len({run.mlflow_id or describe_gap(run) for board in study.boards for run in board.runs}),
        sweep_count=len(study.sweeps),
        gaps=tuple(f"{gap}: in {', '.join(sweeps)}" for gap, sweeps in gaps.items()),
        absent=absent_parts(study, pictures),
        verdicts=tables.verdicts,
        headlines=study_headlines(study),
        main=tables.main,
        main_absent=study.why_absent(MAIN) if tables.main is None else "",
        distinction=tables.distinction,
        configuration=tables.configuration,
        full=tables.full,
        ablations=tables.ablations,
        statistics=tables.statistics,
        charts=study_charts(study, anchors),
        anchors=anchors,
        figures=tuple(page_figure(picture) for picture in pictures),
        runs=tuple((grid.name, run_groups(board, lists[grid.name], uri)) for grid, board in shown),
        served=uri.startswith("http"),
        unused=tuple(sorted(unused)),
        files=tuple(files),
    )


def render_study(page: StudyPage) -> str:
    """The page as HTML; every text is escaped, only the drawings are markup."""
    return render_template("study.html.j2", page)


def study_charts(
    study: StudyResults, anchors: Mapping[str, Mapping[tuple[str, str], str]]
) -> Mapping[str, Charts]:
    """Sweep -> its curves; those of the main sweep with its diagnostics. Colours are those of the figures."""
    found = {}
    for number, sweep in enumerate(study.sweeps):
        board, name = sweep.board, sweep.grid.name
        if board is None:
            continue
        diagnostics = diagnostics_info(board, "") if name == MAIN else None
        shown = curves_info(board, "", aliases={} if name == MAIN else full_method(study, board))
        found[name] = charts_of(board, str(number), anchors[name], shown, diagnostics)
    return found


def study_core(study: StudyResults) -> str:
    """The core behind the study's runs; several are named together."""
    cores = {core for board in study.boards for core in core_of(board).split("+")}
    return "+".join(sorted(cores)) or schema.PAPER


def absent_parts(study: StudyResults, pictures: Sequence[Picture]) -> tuple[str, ...]:
    """The sweeps and figures that cannot be shown, each with its reason."""
    sweeps = [f"Sweep {sweep.grid.name}: {sweep.absent}" for sweep in study.sweeps if sweep.board is None]
    figures = [
        f"{picture.heading}: {picture.drawing.reason}"
        for picture in pictures
        if isinstance(picture.drawing, Absent)
    ]
    return (*sweeps, *figures)


def study_headlines(study: StudyResults) -> tuple[Headline, ...]:
    """What can be said of the main sweep, model by model, and of each ablation under its title."""
    found: list[Headline] = []
    for sweep in study.sweeps:
        if sweep.board is None:
            continue
        of_sweep = headlines(sweep.board)
        if sweep.grid.name == MAIN:
            found.extend(of_sweep)
        else:
            found.extend(
                Headline(f"{sweep.grid.title} ({entry.about})", entry.sentences) for entry in of_sweep
            )
    return tuple(found)


def page_figure(picture: Picture) -> PageFigure:
    """A figure as it is on the page: without its title, which the caption has."""
    if isinstance(picture.drawing, Absent):
        return PageFigure(picture.heading, picture.caption, "", picture.drawing.reason)
    draw = partial(picture.drawing, headed=False)
    svg = inline_svg(draw, picture.name, (8.0, 4.0), picture.heading)
    caption = f"{picture.caption} Source: {picture.source}."
    return PageFigure(picture.heading, caption, svg, "", f"{picture.name}.csv")
