"""The page of a search: frozen info in, one self-contained HTML text out."""

from collections.abc import Sequence
from dataclasses import dataclass

from cppo_lab.analysis.search import FAILED, SearchResult
from cppo_lab.analysis.search_noise import SeedValues
from cppo_lab.reports.figures.inline import InlineFigure
from cppo_lab.reports.figures.search_panels import SearchFigure, inline_panels
from cppo_lab.reports.names import origin
from cppo_lab.reports.page import render_template
from cppo_lab.reports.search_tables import TrialTable
from cppo_lab.reports.search_text import certainty, finding, launch_commands, states_text
from cppo_lab.reports.text_tables import TextTable


@dataclass(frozen=True)
class SearchPageFigure:
    """One figure: its panels, or the reason why there are none."""

    heading: str
    caption: str
    panels: tuple[InlineFigure, ...]
    reason: str


@dataclass(frozen=True)
class SearchPage:
    """Everything on the page. `failures`: (number of the trial, reason)."""

    study: str
    title: str
    question: str
    experiment: str
    mlflow_id: str
    command: str
    core: str
    origin: str
    model: str
    states: str
    finding: tuple[str, ...]
    certainty: tuple[str, ...]
    figures: tuple[SearchPageFigure, ...]
    space: TextTable
    trials: TrialTable
    failures: tuple[tuple[int, str], ...]
    launches: tuple[str, ...]
    tune: str
    trial_count: int
    files: tuple[str, ...]


def search_page(
    result: SearchResult,
    seeds: Sequence[SeedValues],
    tables: tuple[TextTable, TrialTable],
    figures: Sequence[SearchFigure],
    about: tuple[str, str, str],
    files: Sequence[str],
) -> SearchPage:
    """Puts the page together; `tables` are the space and the trials, `about` is (experiment, command of the
    report, command that continues the search)."""
    return SearchPage(
        study=result.study,
        title=result.title,
        question=result.question,
        experiment=about[0],
        mlflow_id=result.mlflow_id,
        command=about[1],
        core=result.core,
        origin=origin(result.core),
        model=result.model,
        states=states_text(result),
        finding=finding(result),
        certainty=certainty(result, seeds),
        figures=tuple(page_figure(figure) for figure in figures),
        space=tables[0],
        trials=tables[1],
        failures=tuple(
            (trial.number, trial.reason or "no reason was recorded")
            for trial in result.trials
            if trial.state == FAILED
        ),
        launches=launch_commands(result),
        tune=about[2],
        trial_count=len(result.trials),
        files=tuple(files),
    )


def page_figure(figure: SearchFigure) -> SearchPageFigure:
    """A figure as it is on the page."""
    return SearchPageFigure(figure.title, figure.caption, inline_panels(figure), figure.absent)


def render_search(page: SearchPage) -> str:
    """The page as HTML; every text is escaped, only the drawings are markup."""
    return render_template("search.html.j2", page)
