"""The report of a hyper-parameter search: figures, tables, and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cppo_lab.analysis.search import FAILED, SearchResult, Value, ranking
from cppo_lab.analysis.search_file import read_search
from cppo_lab.analysis.search_noise import SeedValues, read_seed_values
from cppo_lab.reports.build import Contents
from cppo_lab.reports.figures.search_gallery import search_figures
from cppo_lab.reports.record import About
from cppo_lab.reports.search_tables import TrialTable, space_table, trial_table, trials_csv, trials_text
from cppo_lab.reports.search_text import certainty, finding, launch_commands, states_text, tune_command
from cppo_lab.reports.text_tables import TextTable, table_files


@dataclass(frozen=True)
class SearchRequest:
    """What to report: `study` in `experiment` of the store at `uri`, into folder `out`.

    `command` is what rebuilds the report, `tune` what continues the search (by default, what its file suggests).
    `shipped`: the default settings of the configuration, by key; those that the search tunes are marked in figures and
    tables. `chosen`: see `launch_commands`.
    """

    uri: str
    experiment: str
    study: str
    out: Path
    command: str = ""
    tune: str = ""
    shipped: Mapping[str, Value] = field(default_factory=dict)
    chosen: tuple[str, ...] | None = ()

    def contents(self) -> Contents:
        """Raises UserError as `read_search`."""
        result = read_search(self.uri, self.experiment, self.study)
        return search_contents(self, result, read_seed_values(self.uri, self.experiment, result))


@dataclass(frozen=True)
class SearchPage:
    """The content of the page, apart from `About`. `failures`: (number of the trial, reason). `not_in_main`: whether
    the main sweep cannot train the best trial.
    """

    title: str
    mlflow_id: str
    model: str
    states: str
    finding: tuple[str, ...]
    certainty: tuple[str, ...]
    space: TextTable
    trials: TrialTable
    failures: tuple[tuple[int, str], ...]
    launches: tuple[str, ...]
    not_in_main: bool
    tune: str
    trial_count: int


def search_contents(request: SearchRequest, result: SearchResult, seeds: Sequence[SeedValues]) -> Contents:
    """The report of a search."""
    space, trials = space_table(result, request.shipped), trial_table(result, seeds)
    texts = table_files({"table_trials": trials_text(trials), "table_space": space})
    return Contents(
        about=About(
            kind="search",
            name=request.study,
            title=result.name,
            question=result.question,
            experiment=request.experiment,
            core=result.core,
            command=request.command or f"cppo report {result.name}",
        ),
        texts=texts | {"table_trials.csv": trials_csv(result, seeds)},
        pictures=search_figures(result, request.shipped),
        boards={},
        template="search.html.j2",
        page=partial(
            _page,
            result,
            seeds,
            (space, trials),
            request.tune or tune_command(result),
            request.chosen,
        ),
    )


def _page(
    result: SearchResult,
    seeds: Sequence[SeedValues],
    tables: tuple[TextTable, TrialTable],
    tune: str,
    chosen: Sequence[str] | None,
) -> SearchPage:
    space, trials = tables
    return SearchPage(
        title=result.title,
        mlflow_id=result.mlflow_id,
        model=result.model,
        states=states_text(result),
        finding=finding(result),
        certainty=certainty(result, seeds),
        space=space,
        trials=trials,
        failures=tuple(
            (trial.number, trial.reason or "no reason was recorded")
            for trial in result.trials
            if trial.state == FAILED
        ),
        launches=launch_commands(result, chosen),
        not_in_main=chosen is None and bool(ranking(result)),
        tune=tune,
        trial_count=len(result.trials),
    )
