"""A section of a page: what it shows, its tables, its figures and its verdicts; the scored sweep that all are made of;
the section on verdicts, and that with the list of runs to which the numbers of a page link, with the files of both.

A report is a list of sections of its `Scored` sweep or study, in `sweep.sweep_contents` and `study.study_contents`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.inputs import USUAL, Baseline
from cppo_lab.analysis.reader import RunAnswers
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import NONE_STATED, Claim, Hypotheses, Standing, standing
from cppo_lab.analysis.statistics.summary import Statistics, sweep_statistics
from cppo_lab.analysis.statistics.values import run_values
from cppo_lab.errors import counted
from cppo_lab.reports.figures.drawing import PAPER, Palette, Picture
from cppo_lab.reports.names import ABSENT, csv_text, display_name, number, percent, points
from cppo_lab.reports.tables import TextTable
from cppo_lab.reports.verdict_view import VerdictLine, claims_table, verdict_view


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
    tables: Mapping[str, TextTable | None] = field(default_factory=dict)
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
    palette: Palette = PAPER
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
    def standings(self) -> dict[Claim, Standing]:
        """The sweep's hypotheses, each with its standing."""
        return {claim: standing(self.stated, claim, self.board) for claim in self.stated.claims}

    @cached_property
    def anchors(self) -> Mapping[tuple[str, str], str]:
        """(model, variant) -> id of its rows in the list of runs; without names, which may have any characters."""
        return {pair: f"runs-{self.number}-{place}" for place, pair in enumerate(self.board.cells)}


def verdict_section(scored: Mapping[str, Scored], core: str, whole: bool = False) -> Section:
    """The claims about scores that these sweeps can test, with what `verdict_view` says of them."""
    standings = {
        claim: how
        for sweep in scored.values()
        for claim, how in sweep.standings.items()
        if not claim.of_errors
    }
    view = verdict_view({name: sweep.board for name, sweep in scored.items()}, core, whole, standings)
    notes = [view.summary, view.method]
    notes += [f"{line.verdict.claim.text}: {line.deviation}" for line in view.lines if line.deviation]
    notes += [view.caution] if view.caution else []
    notes += [f"One run per method cannot say: {'; '.join(view.cannot)}."] if view.cannot else []
    last = {"power of the claim": [line.power for line in view.lines]}
    tables = {"verdicts": claims_table("Verdicts", core, "claim", view.lines, last, notes)}
    return Section("verdicts", "Verdicts", vars(view), tables=tables, lines=view.lines, how=view.rule)


def long_csv(board: Scoreboard) -> str:
    """One row per (model, variant, benchmark): mean, standard deviation and number of runs, in percent."""
    header = [
        "core",
        "model",
        "t_stop",
        "method",
        "benchmark",
        "state",
        "provisional",
        "runs",
        "n",
        "mean",
        "std",
    ]
    rows = []
    for (model, variant), cell in board.cells.items():
        about = [cell.state.value, int(cell.provisional), cell.expected]
        of_cell = {**cell.components, "avg": cell.score, "base": cell.base, "gain": cell.gain}
        for name, stat in of_cell.items():
            n, mean, std = (stat.n, stat.mean, stat.std) if stat else (0, None, None)
            rows.append([board.core, model, cell.t_stop, variant, name, *about, n, *_percents(mean, std)])
    return csv_text(header, rows)


def _percents(*fractions: float | None) -> list[Decimal | None]:
    return [None if fraction is None else percent(fraction) for fraction in fractions]


def runs_csv(board: Scoreboard) -> str:
    """One row per expected run: what it is, its state, the selected step and score (percent), the last score, the score
    `final` of the statistics, and the digest of the weights that it began with.
    """
    header = [
        "model",
        "method",
        "seed",
        "rule",
        "core",
        "run_id",
        "mlflow_run_id",
        "status",
        "state",
        "t_stop",
        "step",
        "tied_steps",
        "avg",
        *board.benchmarks,
        "base",
        "last_step",
        "last",
        "final",
        "warm_start",
    ]
    final = {(run.model, run.variant, run.seed): run.final for run in run_values(board)}
    starts = dict(zip(board.data.runs["mlflow_id"], board.data.runs["warm_start"], strict=True))
    rows = []
    for run in board.runs:
        choice, place = run.choice, (run.model, run.variant, run.seed)
        of_run = (run.rule, run.core, run.run_id, run.mlflow_id, run.status, run.state.value, run.t_stop)
        ties = " ".join(map(str, choice.ties))
        scores = _percents(choice.score, *map(choice.components.get, board.benchmarks), choice.base)
        last = (choice.last_step, *_percents(choice.last_score, final.get(place)))
        rows.append([*place, *of_run, choice.step, ties, *scores, *last, starts.get(run.mlflow_id)])
    return csv_text(header, rows)


def run_section(scored: Mapping[str, Scored], count: int, unused: list[str]) -> Section:
    """The lists of runs, by sweep. `unused`: runs in the store that are not declared."""
    sweeps = scored.values()
    lists = [(sweep.name, run_groups(sweep)) for sweep in sweeps]
    served = all(sweep.uri.startswith("http") for sweep in sweeps)
    view = {"lists": lists, "served": served, "unused": unused}
    return Section("runs", "Runs", view, f"{counted(count, 'run')}: state, step, score, MLflow run")


_NOT_SHOWN = ("seed", "core", "rule.name")  # shown in other columns, or by the method's name
_MOST_SETTINGS = 8  # of a run; MLflow has all
MANY = 1000  # rows of a list: some 400 KB; the files beside the page have every run


def run_groups(scored: Scored) -> list[dict[str, Any]]:
    """The runs of a sweep, cell by cell as declared: `runs` are the rows of a cell of the tables, as texts by name;
    `anchor` is their id on the page; `left_out` counts the runs that are not shown.

    With more than MANY runs, each cell shows its first runs, the same number for all cells; with more than MANY cells,
    only the first cells are shown.

    `path`: a run's page relative to the address of an MLflow server; `link`: that page on the store's server; both are
    empty if there is none. `settings`: those other than the seed that differ from those of other runs of the sweep on
    the same model. `note`: its scores on further benchmarks, and what users have noted.
    """
    board = scored.board
    most = len(board.runs) if len(board.runs) <= MANY else max(1, MANY // len(board.cells))
    groups, differing = [], {}
    for model in board.models:
        # The configuration keys in which its runs differ. A missing key counts as a distinct value.
        logged = (board.params_of(run) for run in board.runs if run.model == model)
        values = pd.DataFrame(list(filter(None, logged))).nunique(dropna=False)
        differing[model] = [str(key) for key in values.index[values > 1] if key not in _NOT_SHOWN]
    for pair, anchor in islice(scored.anchors.items(), MANY):
        runs = board.runs_of(*pair)
        lines = []
        for run in runs[:most]:
            choice, data, mlflow_id, params = run.choice, board.data, run.mlflow_id, board.params_of(run)
            settings = [f"{key}={params[key]}" for key in differing[run.model] if key in params]
            if (more := len(settings) - _MOST_SETTINGS) > 0:
                settings[_MOST_SETTINGS:] = [f"and {more} more"]
            notes = [
                f"{name.split('/')[1]} {points(rows['value'].iloc[-1])}"
                for name in filter(schema.is_evaluation, data.metrics["metric"].cat.categories)
                if len(rows := board.points(name, run))
            ]
            path = mlflow_path(data.experiment_id, mlflow_id) if mlflow_id else ""
            line = {
                "label": display_name(run.variant),
                "model": run.model,
                "seed": number(run.seed, "d"),
                "state": run.state.value + (f": {run.reason}" if run.reason else ""),
                "t_stop": number(run.t_stop, "d"),
                "step": number(choice.step, "d"),
                "score": points(choice.score),
                "run_id": run.run_id or ABSENT,
                "mlflow_id": mlflow_id or ABSENT,
                "path": path,
                "link": path and mlflow_link(scored.uri, path),
                "settings": ", ".join(settings),
                "note": "; ".join(filter(None, [*notes, data.notes.get(mlflow_id)])),
            }
            lines.append(line)
        groups.append({"anchor": anchor, "runs": tuple(lines), "left_out": len(runs) - len(lines)})
    if unlisted := len(board.runs) - sum(len(board.runs_of(*pair)) for pair in [*scored.anchors][:MANY]):
        groups.append({"anchor": "", "runs": (), "left_out": unlisted})
    return groups


def mlflow_path(experiment_id: str, mlflow_id: str) -> str:
    """A run's page relative to the address of an MLflow server.

    MLflow redirects `#/runs/<id>` to its pages for language-model traces.
    """
    ids = quote(experiment_id, safe=""), quote(mlflow_id, safe="")
    return "#/experiments/{}/runs/{}?workflowType=machine_learning".format(*ids)


def mlflow_link(uri: str, path: str) -> str:
    """The address of a page on the server at `uri`, without user and password; empty for any other store."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return ""
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/", "", "")) + path
