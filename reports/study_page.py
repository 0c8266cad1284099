"""The content of a study's page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cppo_lab import schema
from cppo_lab.analysis.scoring import describe_gap
from cppo_lab.analysis.study import MAIN, StudyResults
from cppo_lab.reports.answers.view import AnswersView
from cppo_lab.reports.collapses import CollapseView
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.headlines import Headline, headlines
from cppo_lab.reports.run_list import RunGroup, anchors_of, run_groups
from cppo_lab.reports.tables import FullTable, MainTable, core_of
from cppo_lab.reports.text_tables import TextTable
from cppo_lab.reports.verdict_view import VerdictView


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
    its tables. `collapses`: by sweep. `answers`: of the main sweep's runs.
    """

    main: MainTable | None
    rule_comparison: TextTable
    configuration: TextTable | None
    full: FullTable | None
    ablations: tuple[Ablation, ...]
    statistics: Mapping[str, Mapping[str, TextTable]]
    collapses: Mapping[str, CollapseView]
    verdicts: VerdictView
    answers: AnswersView | None


@dataclass(frozen=True)
class StudyPage:
    """The content of the page, apart from `About`. `anchors` is keyed by sweep, like the statistics of the tables."""

    run_count: int
    sweep_count: int
    gaps: tuple[str, ...]
    absent: tuple[str, ...]
    headlines: tuple[Headline, ...]
    tables: StudyTables
    main_absent: str
    anchors: Mapping[str, Mapping[tuple[str, str], str]]
    runs: tuple[tuple[str, tuple[RunGroup, ...]], ...]
    served: bool
    unused: tuple[str, ...]
    answers: AnswersView | None


def study_page(study: StudyResults, tables: StudyTables, pictures: Sequence[Picture], uri: str) -> StudyPage:
    """Assemble the page; `uri` is that of the store."""
    gaps: dict[str, list[str]] = {}
    for name, board in study.boards.items():
        for run in board.gaps:
            gaps.setdefault(describe_gap(run), []).append(name)
    lists = {name: str(number) for number, name in enumerate(study.boards)}
    anchors = {name: anchors_of(board, lists[name]) for name, board in study.boards.items()}
    boards = study.boards.values()
    used = {run.run_id for board in boards for run in board.runs}
    unused = {run_id for board in boards for run_id in board.unused["run_id"]} - used
    return StudyPage(
        run_count=len({run.mlflow_id or describe_gap(run) for board in boards for run in board.runs}),
        sweep_count=len(study.sweeps),
        gaps=tuple(f"{gap}: in {', '.join(sweeps)}" for gap, sweeps in gaps.items()),
        absent=absent_parts(study, pictures),
        headlines=study_headlines(study),
        tables=tables,
        main_absent=study.why_absent(MAIN) if tables.main is None else "",
        anchors=anchors,
        runs=tuple((name, run_groups(board, lists[name], uri)) for name, board in study.boards.items()),
        served=uri.startswith("http"),
        unused=tuple(sorted(unused)),
        answers=tables.answers,
    )


def study_core(study: StudyResults) -> str:
    """The core behind the study's runs; several are named together."""
    cores = {core for board in study.boards.values() for core in core_of(board).split("+")}
    return "+".join(sorted(cores)) or schema.PAPER


def absent_parts(study: StudyResults, pictures: Sequence[Picture]) -> tuple[str, ...]:
    """The sweeps and figures that cannot be shown, each with its reason."""
    sweeps = [f"Sweep {sweep.grid.name}: {sweep.absent}" for sweep in study.sweeps if sweep.board is None]
    figures = [f"{picture.heading}: {picture.absent}" for picture in pictures if picture.absent]
    return (*sweeps, *figures)


def study_headlines(study: StudyResults) -> tuple[Headline, ...]:
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
