"""The curves of a sweep as data for the page's script, which draws them and shows values at the pointer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import named
from cppo_lab.analysis.study import MAIN
from cppo_lab.reports.escapes import escape_json
from cppo_lab.reports.figures.curves import CurvesInfo
from cppo_lab.reports.figures.diagnostics import DiagnosticPanel, DiagnosticsInfo
from cppo_lab.reports.figures.lines import Line, line_of
from cppo_lab.reports.names import benchmark_name, display_name, in_order
from cppo_lab.reports.printed import ablation_curves, printed_table
from cppo_lab.reports.tables import core_of
from cppo_lab.rules import Stroke

Anchors = Mapping[tuple[str, str], str]  # (model, variant) -> id of its rows in the list of runs
OURS, MEAN, PAPER = "run", "mean", "paper"
_REPOSITORY = "model.repository"  # the logged configuration key
MANY = 300  # runs of a sweep; above this the page has only the means over seeds, to limit its size
_DIGITS = 6  # significant digits of every value


@dataclass(frozen=True)
class Series:
    """One line. `panel` and `method` are indices; `kind`: a run, the mean over runs, or a curve of the paper.

    `best` is the selected (step, value) of a run; `runs` is the id of its rows in the list of runs, empty for the
    paper's curves.
    """

    panel: int
    method: int
    kind: str
    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    best: tuple[int, float] | None = None
    collapsed: bool = False
    runs: str = ""


@dataclass(frozen=True)
class View:
    """One quantity on all panels."""

    name: str
    axis: str
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Charts:
    """The curves of one sweep: a panel per model, a (label, colour) per method, one view shown at a time."""

    key: str
    panels: tuple[str, ...]
    methods: tuple[tuple[str, str], ...]
    views: tuple[View, ...]


def charts_of(
    board: Scoreboard,
    key: str,
    anchors: Anchors,
    shown: CurvesInfo,
    diagnostics: DiagnosticsInfo | None = None,
) -> Charts:
    """Validation by benchmark and by their mean, then the diagnostics if there are any.

    `shown`: the figure of the same board, which determines the colours.
    """
    drawn = {line.variant: line.stroke for panel in shown.panels for line in panel.lines}
    variants = tuple(name for name in in_order(board.variants) if name in drawn)
    core = core_of(board)
    source = "" if core == schema.PAPER else f", core={core}"
    benchmarks = [schema.MEAN, *board.benchmarks]
    views = []
    for benchmark in benchmarks:
        series = [*_validation(board, benchmark, drawn, variants, anchors)]
        if series:
            series += _of_the_paper(board, benchmark, variants)
            heading = "Mean of the benchmarks" if benchmark == schema.MEAN else benchmark_name(benchmark)
            views.append(View(heading, f"Avg@{board.curves.samples} (%){source}", tuple(series)))
    if diagnostics is not None:
        for metric in diagnostics.metrics:
            panels = [panel for panel in diagnostics.panels if panel.metric == metric]
            found = tuple(_traces(board.models, panels, variants, anchors))
            label = panels[0].label
            views.append(View(label[0].upper() + label[1:], label + source, found))
    methods = tuple((display_name(name), drawn[name].colour) for name in variants)
    return Charts(key, board.models, methods, tuple(views))


def _validation(
    board: Scoreboard,
    benchmark: str,
    drawn: Mapping[str, Stroke],
    variants: tuple[str, ...],
    anchors: Anchors,
) -> Iterable[Series]:
    for panel, model in enumerate(board.models):
        if benchmark != schema.MEAN and benchmark not in board.benchmarks_of(model):
            continue
        for method, variant in enumerate(variants):
            runs = board.runs_of(model, variant)
            line = line_of(board, runs, drawn[variant], benchmark) if runs else None
            if line is not None:
                seeds = {run.run_id or "": run.seed for run in runs}
                alone = len(runs) == 1 or len(board.runs) <= MANY
                found = _lines(line, panel, method, seeds, anchors[model, variant])
                yield from (series for series in found if alone or series.kind == MEAN)


def _lines(
    line: Line, panel: int, method: int, seeds: Mapping[str, int | None], runs: str
) -> Iterable[Series]:
    for each in line.seeds:
        seed = seeds.get(each.run_id)
        name = each.run_id if seed is None else f"seed {seed}, {each.run_id}"
        values = tuple(map(_short, each.values))
        best = None if each.best is None else (each.best[0], _short(each.best[1]))
        yield Series(panel, method, OURS, name, each.steps, values, best, each.collapsed, runs)
    if len(line.seeds) > 1:
        name = f"mean of {len(line.seeds)} runs"
        yield Series(panel, method, MEAN, name, line.steps, tuple(map(_short, line.mean)), runs=runs)


def _traces(
    models: tuple[str, ...], panels: Iterable[DiagnosticPanel], variants: tuple[str, ...], anchors: Anchors
) -> Iterable[Series]:
    for panel in panels:
        for trace in panel.traces:
            if trace.variant not in variants:  # it has no validation, so it is not in the legend
                continue
            name = "one run" if trace.runs == 1 else f"mean of {trace.runs} runs"
            yield Series(
                models.index(panel.model),
                variants.index(trace.variant),
                OURS if trace.runs == 1 else MEAN,
                name,
                tuple(map(_short, trace.steps)),
                tuple(map(_short, trace.mean)),
                runs=anchors[panel.model, trace.variant],
            )


def _of_the_paper(board: Scoreboard, benchmark: str, variants: tuple[str, ...]) -> Iterable[Series]:
    """The paper's curves of the same model and method; none for the paper's own board and for other models."""
    if core_of(board) == schema.PAPER:
        return
    for panel, model in enumerate(board.models):
        curves = _paper_curves(board.data.sweep, _paper_model(board, model), benchmark)
        for method, variant in enumerate(variants):
            curve = curves.get(named(variant, tuple(curves)))
            if curve is not None:
                steps, values = zip(*curve, strict=True)
                shown = tuple(_short(100 * value) for value in values)
                yield Series(panel, method, PAPER, "the paper's", steps, shown)


def _paper_model(board: Scoreboard, model: str) -> str:
    """The paper's name of a model, from its repository (`Qwen/Qwen3-8B-Base`); empty if unknown."""
    for run in board.runs:
        if run.model == model and run.mlflow_id is not None:
            return board.data.params.get(run.mlflow_id, {}).get(_REPOSITORY, "").rpartition("/")[2]
    return ""


@cache
def _paper_curves(sweep: str, model: str, benchmark: str) -> dict[str, tuple[tuple[int, float], ...]]:
    """Variant -> (step, fraction) of the paper's curves; for its ablations only means exist."""
    found: dict[str, dict[int, list[float]]] = {}
    if model and sweep == MAIN:
        for line in _printed_curves():
            if line["model"] == model and benchmark in (schema.MEAN, line["benchmark"]):
                at = found.setdefault(line["method"], {}).setdefault(int(line["step"]), [])
                at.append(float(line["avg_at_16"]))
    elif model and benchmark == schema.MEAN:
        ablations = ablation_curves()
        rows = ablations[(ablations["ablation"] == sweep) & (ablations["model"] == model)]
        for variant, step, value in zip(rows["variant"], rows["step"], rows["value"], strict=True):
            found.setdefault(str(variant), {})[int(step)] = [float(value)]
    return {
        variant: tuple((step, sum(values) / len(values)) for step, values in sorted(points.items()))
        for variant, points in found.items()
    }


@cache
def _printed_curves() -> list[dict[str, str]]:
    return printed_table("validation_curves")


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def charts_json(charts: Charts) -> str:
    """The charts as JSON that is safe inside a <script> element: no name in it can end the element."""
    content: dict[str, Any] = {
        "panels": charts.panels,
        "methods": charts.methods,
        "views": [
            {"name": view.name, "axis": view.axis, "series": [_json(series) for series in view.series]}
            for view in charts.views
        ],
    }
    return escape_json(content)


def _json(series: Series) -> dict[str, Any]:
    content: dict[str, Any] = {"p": series.panel, "m": series.method, "kind": series.kind}
    content |= {"name": series.name, "x": series.steps, "y": series.values}
    if series.best is not None:
        content["best"] = series.best
    if series.collapsed:
        content["collapsed"] = True
    return content | ({"runs": series.runs} if series.runs else {})
