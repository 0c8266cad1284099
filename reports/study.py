"""The report of a study -- several sweeps of one experiment: Tables 1 to 4, Figures 1 to 11, the tables of the
ablations, and its page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun, SweepGrid
from cppo_lab.analysis.scoring import describe_gap
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.summary import Statistics, sweep_statistics
from cppo_lab.analysis.study import MAIN, StudyResults, StudySweep, read_study
from cppo_lab.reports import table_texts
from cppo_lab.reports.answers.view import AnswersView, answers_view, kept_answers
from cppo_lab.reports.build import Contents
from cppo_lab.reports.collapses import CollapseView, collapse_view
from cppo_lab.reports.figures.drawing import USUAL_STYLE, Picture, Style
from cppo_lab.reports.figures.gallery import MECHANISMS, SETTINGS, gallery
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.headlines import Headline, headlines
from cppo_lab.reports.paper_text import paper_texts
from cppo_lab.reports.printed import ablation_curves, comparison_table, configuration_table, main_grid
from cppo_lab.reports.record import About
from cppo_lab.reports.registration import Hypotheses, Standing, standing, withdrawn
from cppo_lab.reports.run_list import anchors_of, run_groups
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.table_texts import Table, table_files
from cppo_lab.reports.tables import FullTable, MainTable, TextTable, core_of, full_table, main_table
from cppo_lab.reports.verdict_view import VerdictView, verdict_table, verdict_view


@dataclass(frozen=True)
class Ablation:
    """One sweep other than the main one. If `table` is None, `absent` says why. `notes`: those that the main table does
    not have.
    """

    name: str
    title: str
    question: str
    table: FullTable | None
    notes: tuple[str, ...]
    absent: str


@dataclass(frozen=True)
class StudyTables:
    """Tables 1 to 4 and those of the ablations; None if the main sweep has nothing to show. `statistics`: sweep ->
    its tables, of its `summaries`. `collapses`: by sweep. `answers`: of the main sweep's runs.
    """

    main: MainTable | None
    rule_comparison: TextTable
    configuration: TextTable | None
    full: FullTable | None
    ablations: tuple[Ablation, ...]
    statistics: Mapping[str, Mapping[str, TextTable]]
    summaries: Mapping[str, Statistics]
    collapses: Mapping[str, CollapseView]
    verdicts: VerdictView
    answers: AnswersView | None


def _page(study: StudyResults, tables: StudyTables, pictures: Sequence[Picture], uri: str) -> dict[str, Any]:
    """What the page shows, by the names of the template, apart from `About` and the figures. `anchors` is keyed by
    sweep, like the statistics of the tables.
    """
    gaps: dict[str, list[str]] = {}
    for name, board in study.boards.items():
        for run in board.gaps:
            gaps.setdefault(describe_gap(run), []).append(name)
    lists = {name: str(number) for number, name in enumerate(study.boards)}
    anchors = {name: anchors_of(board, lists[name]) for name, board in study.boards.items()}
    boards = study.boards.values()
    used = {run.run_id for board in boards for run in board.runs}
    unused = {run_id for board in boards for run_id in board.unused["run_id"]} - used
    return {
        "run_count": len({run.mlflow_id or describe_gap(run) for board in boards for run in board.runs}),
        "sweep_count": len(study.sweeps),
        "gaps": [f"{gap}: in {', '.join(sweeps)}" for gap, sweeps in gaps.items()],
        "absent": _absent_parts(study, pictures),
        "headlines": _headlines(study),
        "tables": tables,
        "main_absent": study.why_absent(MAIN) if tables.main is None else "",
        "anchors": anchors,
        "runs": [(name, run_groups(board, lists[name], uri)) for name, board in study.boards.items()],
        "served": uri.startswith("http"),
        "unused": sorted(unused),
        "answers": tables.answers,
    }


def study_core(study: StudyResults) -> str:
    """The core behind the study's runs; several are named together."""
    cores = {core for board in study.boards.values() for core in core_of(board).split("+")}
    return "+".join(sorted(cores)) or schema.PAPER


def _absent_parts(study: StudyResults, pictures: Sequence[Picture]) -> tuple[str, ...]:
    """The sweeps and figures that cannot be shown, each with its reason."""
    sweeps = [f"Sweep {sweep.grid.name}: {sweep.absent}" for sweep in study.sweeps if sweep.board is None]
    figures = [f"{picture.heading}: {picture.absent}" for picture in pictures if picture.absent]
    return (*sweeps, *figures)


def _headlines(study: StudyResults) -> tuple[Headline, ...]:
    """The findings of the main sweep by model, and of each ablation under its title."""
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


@dataclass(frozen=True)
class StudyRequest:
    """What to report: the `sweeps` of study `name`, whose runs are in `experiment` of the store at `uri`, into folder
    `out`.

    The sweep called "main" declares the models in the order of their roles: post-trained, then three Base models by
    size. `title` and `question` head the page; `command` rebuilds it. `partial` allows a study with gaps, which are
    marked. `palette`: the colours of the figures, one of `palette.PALETTES`; `style`: their width and font.
    `stated`: the sweeps' own hypotheses, by sweep.
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
    style: Style = USUAL_STYLE
    stated: Mapping[str, Hypotheses] = field(default_factory=dict)

    def contents(self) -> Contents:
        """Raises UserError as `read_study`."""
        return study_contents(
            self, read_study(self.uri, self.experiment, self.name, self.sweeps, self.partial)
        )


def paper_study_request(
    uri: str,
    out: Path,
    partial: bool = False,
    command: str = "cppo report study --from paper",
    palette: str = PAPER,
    style: Style = USUAL_STYLE,
) -> StudyRequest:
    """The study of the paper's own curves, imported into the store by `cppo reference import`."""
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
        style=style,
    )


def study_contents(request: StudyRequest, study: StudyResults) -> Contents:
    """The report of a scored study."""
    tables = _tables(study, request)
    collapses = tables.collapses.get(MAIN)
    pictures = gallery(study, request.palette) + (collapses.pictures if collapses else ())
    about = About(
        kind="study",
        name=request.name,
        title=request.title,
        question=request.question,
        experiment=request.experiment,
        core=study_core(study),
        command=request.command or f"cppo report {request.name}",
        withdrawn=tuple(
            sentence for name, stated in request.stated.items() for sentence in withdrawn(name, stated)
        ),
    )
    lines = tables.verdicts.lines
    how = [tables.verdicts.rule] if tables.verdicts.rule else []
    texts = paper_texts(study.boards, tables.summaries, lines, how, about.withdrawn)
    return Contents(
        about=about,
        texts=_texts(study, tables) | texts,
        pictures=pictures,
        boards=study.boards,
        template="study.html.j2",
        page=_page(study, tables, pictures, request.uri),
        claims=_own_claims(study, request),
    )


def _tables(study: StudyResults, request: StudyRequest) -> StudyTables:
    board, uri, palette = study.board(MAIN), request.uri, request.palette
    kept = {} if board is None else kept_answers(uri, board)
    used = {run.rule for each in study.boards.values() for run in each.runs if run.rule}
    found = {
        sweep.grid.name: sweep_statistics(sweep.board, baseline=sweep.grid.baseline)
        for sweep in study.sweeps
        if sweep.board is not None
    }
    main = None if board is None else main_table(board, "Mean score by model (Table 1)", found[MAIN])
    return StudyTables(
        main=main,
        rule_comparison=comparison_table("How the rules differ (Table 2)", used),
        configuration=None
        if board is None
        else configuration_table(board, study.models, "Configuration of each model (Table 3)"),
        full=None if board is None else full_table(board, "Score by benchmark (Table 4)"),
        ablations=tuple(_ablation(sweep, main) for sweep in study.sweeps if sweep.grid.name != MAIN),
        statistics={
            sweep.grid.name: statistics_tables(
                sweep.board,
                sweep.grid.title,
                kept if sweep.grid.name == MAIN else {},
                found[sweep.grid.name],
            )
            for sweep in study.sweeps
            if sweep.board is not None
        },
        summaries=found,
        collapses={
            sweep.grid.name: view
            for sweep in study.sweeps
            if sweep.board is not None
            and (view := collapse_view(sweep.board, sweep.grid.title, palette, sweep.grid.baseline))
            is not None
        },
        verdicts=verdict_view(study.boards, study_core(study), whole=True, own=_own_claims(study, request)),
        answers=None if board is None else answers_view(board, kept),
    )


def _own_claims(study: StudyResults, request: StudyRequest) -> dict[Claim, Standing]:
    """The hypotheses of the sweeps that have scores, each with its standing."""
    return {
        claim: standing(stated, claim, study.boards[name])
        for name, stated in request.stated.items()
        if name in study.boards
        for claim in stated.claims
    }


def _ablation(sweep: StudySweep, main: MainTable | None) -> Ablation:
    table = None if sweep.board is None else full_table(sweep.board, sweep.grid.title)
    known = () if main is None else main.notes
    notes = () if table is None else tuple(note for note in table.notes if note not in known)
    return Ablation(sweep.grid.name, sweep.grid.title, sweep.grid.question, table, notes, sweep.absent)


def _texts(study: StudyResults, tables: StudyTables) -> dict[str, str]:
    """Every table in Markdown, LaTeX and CSV, and the list of runs of every sweep."""
    found: dict[str, Table | None] = {
        "table_1": tables.main,
        "table_2": tables.rule_comparison,
        "table_3": tables.configuration,
        "table_4": tables.full,
        "verdicts": verdict_table(tables.verdicts),
    }
    found |= {f"table_{one.name}": one.table for one in tables.ablations}
    for name, sure in tables.statistics.items():
        found |= {f"statistics_{name}_{kind}": table for kind, table in sure.items()}
    for name, view in tables.collapses.items():
        found |= {f"collapses_{name}": view.table, f"collapse_steps_{name}": view.steps}
    texts = table_files(found)
    for name, board in study.boards.items():
        texts[f"long_{name}.csv"] = table_texts.long_csv(board)
        texts[f"runs_{name}.csv"] = table_texts.runs_csv(board)
    return texts
