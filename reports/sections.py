"""A section of a page: what it shows, its tables, its figures and its verdicts; and the sections of any scored sweep.

A report is a list of sections of its `Scored` sweep or study, in `sweep.sweep_sections` and `study.study_sections`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cppo_lab.analysis.answers import RunAnswers
from cppo_lab.analysis.grid import USUAL, Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.registration import NONE_STATED, Hypotheses, Standing, standing
from cppo_lab.analysis.statistics.summary import Statistics, sweep_statistics
from cppo_lab.reports import table_texts
from cppo_lab.reports.answers.view import answers_view
from cppo_lab.reports.figures.drawing import Picture
from cppo_lab.reports.figures.palette import PAPER
from cppo_lab.reports.headlines import Headline
from cppo_lab.reports.run_list import anchors_of, run_groups
from cppo_lab.reports.statistics_tables import statistics_tables
from cppo_lab.reports.table_texts import Table
from cppo_lab.reports.tables import core_of
from cppo_lab.reports.verdict_view import VerdictLine, verdict_table, verdict_view


@dataclass(frozen=True, eq=False)
class Section:
    """One part of a page; the macro of templates/parts.html.j2 with its `name` (or `macro`) renders its `view`.

    `hint`: the part is folded under its title and this text; None: it is not folded. `tables`: by the stem of their
    files, those that are None have none. `lines`: its claims; `how`: how they were judged, for the methods of a paper.
    `values`: what the record has of it, by name.
    """

    name: str
    title: str
    view: Mapping[str, Any]
    hint: str | None = None
    macro: str = ""
    tables: Mapping[str, Table | None] = field(default_factory=dict)
    pictures: tuple[Picture, ...] = ()
    lines: tuple[VerdictLine, ...] = ()
    how: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scored:
    """A scored sweep, and what several sections need of it.

    `answers`: MLflow run -> its answers, of the runs that kept any. `suffix`: of the names of its files in a study.
    `number`: of its list of runs on the page.
    """

    name: str
    title: str
    board: Scoreboard
    uri: str
    palette: str = PAPER
    baseline: Baseline = USUAL
    stated: Hypotheses = NONE_STATED
    answers: Mapping[str, RunAnswers] = field(default_factory=dict)
    suffix: str = ""
    number: int = 0

    @cached_property
    def statistics(self) -> Statistics:
        """The statistics of the sweep."""
        return sweep_statistics(self.board, baseline=self.baseline)

    @cached_property
    def own(self) -> dict[Claim, Standing]:
        """The sweep's hypotheses, each with its standing."""
        return {claim: standing(self.stated, claim, self.board) for claim in self.stated.claims}

    @cached_property
    def anchors(self) -> Mapping[tuple[str, str], str]:
        """(model, variant) -> id of its rows in the list of runs."""
        return anchors_of(self.board, str(self.number))

    @property
    def core(self) -> str:
        """The core behind its runs."""
        return core_of(self.board)


def statistics(scored: Scored) -> Section:
    """Intervals, differences and ranks."""
    tables = statistics_tables(scored.board, scored.title, scored.answers, scored.statistics)
    return Section(
        "statistics",
        "Uncertainty",
        {"tables": tables.values(), "anchors": scored.anchors},
        "intervals, differences, ranks",
        tables={f"statistics{scored.suffix}_{kind}": table for kind, table in tables.items()},
    )


def verdict_section(scored: Mapping[str, Scored], core: str, whole: bool = False) -> Section:
    """The claims about scores that these sweeps can test, with what `verdict_view` says of them."""
    own = {claim: how for sweep in scored.values() for claim, how in sweep.own.items() if not claim.of_errors}
    view = verdict_view({name: sweep.board for name, sweep in scored.items()}, core, whole, own)
    tables = {"verdicts": verdict_table(view)}
    return Section("verdicts", "Verdicts", vars(view), tables=tables, lines=view.lines, how=view.rule)


def answers_section(scored: Scored) -> Section | None:
    """Problems, texts and tokens; None if no run kept any."""
    view = answers_view(scored.board, scored.answers)
    return None if view is None else Section("answers", "Answers", view, "problems, texts, tokens")


def findings_section(entries: Sequence[Headline]) -> Section:
    """The findings in words."""
    return Section("findings", "Findings", {"entries": entries}, "in words, model by model")


def run_files(board: Scoreboard, scores: str, runs: str) -> dict[str, str]:
    """The CSV files of all scores, and of all runs."""
    return {f"{scores}.csv": table_texts.long_csv(board), f"{runs}.csv": table_texts.runs_csv(board)}


def run_section(scored: Mapping[str, Scored], count: int, unused: list[str]) -> Section:
    """The lists of runs, by sweep. `unused`: runs in the store that are not declared."""
    sweeps = scored.values()
    lists = [(sweep.name, run_groups(sweep.board, str(sweep.number), sweep.uri)) for sweep in sweeps]
    served = all(sweep.uri.startswith("http") for sweep in sweeps)
    view = {"lists": lists, "served": served, "unused": unused}
    return Section("runs", "Runs", view, f"{count} runs: state, step, score, MLflow run")
