"""The report of a study -- several sweeps of one experiment: Tables 1 to 4, Figures 1 to 11, the tables of the
ablations, and its page.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cppo_lab import schema
from cppo_lab.analysis.grid import ExpectedRun, SweepGrid
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.summary import sweep_statistics
from cppo_lab.analysis.study import MAIN, StudyResults, StudySweep, read_study
from cppo_lab.reports import csv_tables
from cppo_lab.reports.answers.view import answers_view, kept_answers
from cppo_lab.reports.build import Contents
from cppo_lab.reports.collapses import collapse_view
from cppo_lab.reports.configuration import configuration_table
from cppo_lab.reports.figures.gallery import MECHANISMS, SETTINGS, gallery
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.printed import ablation_curves, main_grid
from cppo_lab.reports.record import About
from cppo_lab.reports.registration import Hypotheses, Standing, standing, withdrawn
from cppo_lab.reports.rule_comparison import comparison_table
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.study_page import Ablation, StudyTables, study_core, study_page
from cppo_lab.reports.tables import MainTable, full_table, main_table
from cppo_lab.reports.text_tables import Table, table_files
from cppo_lab.reports.verdict_table import verdict_table
from cppo_lab.reports.verdict_view import verdict_view


@dataclass(frozen=True)
class StudyRequest:
    """What to report: the `sweeps` of study `name`, whose runs are in `experiment` of the store at `uri`, into folder
    `out`.

    The sweep called "main" declares the models in the order of their roles: post-trained, then three Base models by
    size. `title` and `question` head the page; `command` rebuilds it. `partial` allows a study with gaps, which are
    marked. `palette`: the colours of the figures, one of `palette.PALETTES`. `stated`: the sweeps' own hypotheses, by
    sweep.
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
    )


def study_contents(request: StudyRequest, study: StudyResults) -> Contents:
    """The report of a scored study."""
    tables = _tables(study, request)
    collapses = tables.collapses.get(MAIN)
    pictures = gallery(study, request.palette) + (collapses.pictures if collapses else ())
    return Contents(
        about=About(
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
        ),
        texts=_texts(study, tables),
        pictures=pictures,
        boards=study.boards,
        template="study.html.j2",
        page=partial(study_page, study, tables, pictures, request.uri),
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
        texts[f"long_{name}.csv"] = csv_tables.long_csv(board)
        texts[f"runs_{name}.csv"] = csv_tables.runs_csv(board)
    return texts
