"""Curves over training steps: validation scores, with a panel per model; the runs that have not collapsed; training
diagnostics, with a panel per model and logged metric, and a line per variant; and Figure 7, CPPO's prefix budget over
training on the Base models: its effective rate and what it rejects.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.scoring import RunScore, Scoreboard, SelectionState
from cppo_lab.analysis.statistics.collapse import CellCollapse
from cppo_lab.analysis.statistics.estimate import Band, band
from cppo_lab.reports.figures.drawing import (
    PAPER,
    Absent,
    Key,
    Palette,
    PanelsInfo,
    fill,
    keys_of,
    panel_grid,
    sized,
    step_axis,
    surround,
)
from cppo_lab.reports.names import OURS, display_name, in_order, origin, points, score_name
from cppo_lab.reports.tables import printed_table, run_ids_of
from cppo_lab.rules import Stroke

_LABEL_SHARE = 0.2  # share of the panel's width for the word "collapse", a conservative estimate
_HEADROOM = 1.14  # factor above the highest value, for the star's number
_LABEL_POINTS = 10  # height of a line of labels
# Runs of a variant that are drawn individually; with more, only their mean and its band are legible.
FEW = 50

MOST_VARIANTS = 30  # in a figure; more cannot be distinguished, and would overfill the legend


@dataclass(frozen=True)
class SeedLine:
    """One run: its steps and scores (percent) inside its window; `best_step` and `best` are its selected step and
    its score there.
    """

    run_id: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best_step: int | None
    best: float | None
    collapsed: bool


@dataclass(frozen=True)
class Line(Band):
    """One variant: its runs, and the mean of the finished ones with its band at their common steps.

    If no run is finished, the unfinished ones are used. A run that collapsed ends early, and so does the mean: the
    later scores of the others would flatter an unstable method.
    """

    variant: str
    label: str
    stroke: Stroke
    seeds: tuple[SeedLine, ...]
    steps: tuple[int, ...]


def drawn_variants(board: Scoreboard) -> tuple[str, ...]:
    """The variants that a figure shows, in the order of `in_order`: all, or the best on some model."""
    variants = in_order(board.variants)
    best: dict[str, float] = {}
    for (_, variant), cell in board.cells.items():
        if cell.score is not None:
            best[variant] = max(best.get(variant, 0.0), cell.score.mean)
    shown = sorted(variants, key=lambda name: -best.get(name, -1.0))[:MOST_VARIANTS]
    return tuple(name for name in variants if name in shown)


def source_of(board: Scoreboard) -> str:
    """Where a figure's numbers come from, with the variants that `drawn_variants` leaves out."""
    count = len(board.variants)
    left_out = f"; the best {MOST_VARIANTS} of {count} variants" if count > MOST_VARIANTS else ""
    return origin(board.core) + left_out


def line_of(
    board: Scoreboard, runs: Sequence[RunScore], stroke: Stroke, benchmark: str = schema.MEAN
) -> Line | None:
    """The runs of a cell on a benchmark or the benchmarks' mean; None if no run has a validation inside its window."""
    seeds, curves = [], dict[bool, list[pd.Series]]({True: [], False: []})
    for run in runs:
        curve = board.window(run)[benchmark].dropna() * 100
        if len(curve):
            choice = run.choice
            score = choice.score if benchmark == schema.MEAN else choice.components.get(benchmark)
            seed = SeedLine(
                run_id=run.run_id or "",
                steps=tuple(map(int, curve.index)),
                values=tuple(map(float, curve)),
                best_step=None if score is None else choice.step,
                best=None if score is None else 100 * score,
                collapsed=run.state is SelectionState.COLLAPSE,
            )
            seeds.append(seed)
            curves[run.is_result].append(curve)
    if not seeds:
        return None
    together = pd.concat(curves[True] or curves[False], axis=1, join="inner")  # the steps that all have
    return Line(
        **vars(band(together, 0, 100)),
        variant=runs[0].variant,
        label=display_name(runs[0].variant),
        stroke=stroke,
        seeds=tuple(seeds),
        steps=tuple(map(int, together.index)),
    )


def draw_lines(ax: Axes, lines: Sequence[Line]) -> None:
    """Draw all lines of a panel, the last on top, and the word "collapse" at the last cross of each variant with a
    collapsed run, placed without overlaps.

    The y axis is scaled to the lines: a wide band around a collapse is cut off, so that it does not flatten the others.
    """
    seeds, fallen, begins = [seed for line in lines for seed in line.seeds], [], set[tuple[int, float]]()
    for order, line in enumerate(lines):
        draw_line(ax, line, 3 + order)
        ends = [(seed.steps[-1], seed.values[-1]) for seed in line.seeds if seed.collapsed]
        if ends:
            fallen.append((*max(ends), line))
    ax.set_ylim(0, _HEADROOM * max((max(seed.values) for seed in seeds), default=0.0) or 1)
    last = max((seed.steps[-1] for seed in seeds), default=1) or 1
    for step, value, line in sorted(fallen, key=lambda entry: entry[0]):
        left = step > (1 - _LABEL_SHARE) * last
        start = step / last - (_LABEL_SHARE if left else 0.0)
        taken = {level for level, begin in begins if abs(begin - start) < _LABEL_SHARE}
        level = next(number for number in range(len(begins) + 1) if number not in taken)
        begins.add((level, start))
        ax.annotate(
            "collapse",
            (step, value),
            xytext=(-8 if left else 8, 4 + _LABEL_POINTS * level),
            textcoords="offset points",
            ha="right" if left else "left",
            color=line.stroke.colour,
            fontsize=sized(8),
            zorder=62,
        )


def draw_line(ax: Axes, line: Line, front: int) -> None:
    """Draw thin seed lines with the band, the mean line, a dot at each selected step, and a cross where a run
    collapsed.

    With more than FEW runs, draw only the mean, its band, and the cross of the last collapsed run.
    """
    several = len(line.seeds) > 1
    fallen = [seed for seed in line.seeds if seed.collapsed]
    shown = line.seeds if len(line.seeds) <= FEW else ()
    crossed = fallen if shown else sorted(fallen, key=lambda seed: (seed.steps[-1], seed.values[-1]))[-1:]
    fill(ax, line)
    if several:
        for seed in shown:
            ax.plot(seed.steps, seed.values, color=line.stroke.colour, linewidth=0.5, alpha=0.5, zorder=front)
    width = 1.6 if several else 1.2
    ax.plot(line.steps, line.mean, zorder=front, linewidth=width, label=line.label, **line.stroke.marked())
    for seed in shown:
        if seed.best_step is not None and seed.best is not None:
            ax.plot(
                seed.best_step,
                seed.best,
                "o",
                color=line.stroke.colour,
                markersize=4.5,
                markeredgecolor="white",
                zorder=front + 20,
            )
    for seed in crossed:
        end = seed.steps[-1], seed.values[-1]
        ax.plot(*end, "X", markersize=7, color=line.stroke.colour, zorder=front + 20, clip_on=False)


@dataclass(frozen=True)
class Top:
    """The variant with the highest table score. `text` is that score; the star marks its best run."""

    variant: str
    step: int
    score: float
    text: str


@dataclass(frozen=True)
class Panel:
    """One model; its `lines` are of `Line`, or of `SurvivalLine`. `top` is None if no cell competes (collapsed and
    provisional ones do not).
    """

    model: str
    t_stop: int | None
    lines: tuple[Any, ...]
    top: Top | None


def curves_info(
    board: Scoreboard,
    title: str,
    models: Sequence[str] | None = None,
    aliases: Mapping[str, str] = MappingProxyType({}),
    palette: Palette = PAPER,
) -> PanelsInfo:
    """The figure of a scored sweep, for `models` or all models. A variant without curves is not in the legend.

    `aliases`: see `Palette.strokes`.
    """
    runs = [run for run in board.runs if models is None or run.model in models]
    strokes = palette.strokes(drawn_variants(board), aliases)
    panels = []
    for model in dict.fromkeys(run.model for run in runs):
        of_cells = (line_of(board, board.runs_of(model, name), stroke) for name, stroke in strokes.items())
        lines = tuple(filter(None, of_cells))
        stops = [run.t_stop for run in runs if run.model == model and run.t_stop is not None]
        top = None
        competing = [
            (ranked.mean, line)
            for line in reversed(lines)  # of ties, the line drawn on top
            if (ranked := board.cells[model, line.variant].ranked) is not None
        ]
        if competing:
            mean, line = max(competing, key=lambda entry: entry[0])
            best = ((seed.best, -(seed.best_step or 0)) for seed in line.seeds if seed.best is not None)
            (score, step), number = max(best), points(mean)  # the same number as in the table
            top = Top(line.variant, -step, score, number if len(line.seeds) == 1 else f"mean {number}")
        panels.append(Panel(model, max(stops, default=None), lines, top))
    return PanelsInfo(
        title,
        source_of(board),
        run_ids_of(runs),
        tuple(panels),
        keys_of(strokes, {line.variant for panel in panels for line in panel.lines}),
        f"mean {score_name(board)} (%)",
    )


def scored_keys(board: Scoreboard, panel: Panel) -> tuple[Key, ...]:
    """The lines of a panel, each labelled with the score of the table."""
    entries = []
    for line in panel.lines:
        cell = board.cells[panel.model, line.variant]
        score = "" if cell.score is None else points(cell.score.mean)
        text = SelectionState.COLLAPSE.value if cell.state is SelectionState.COLLAPSE else score
        entries.append(Key(f"{line.label}: {text}{'†' if cell.provisional else ''}", line.stroke))
    return tuple(entries)


def draw_panel(panel: Panel, ax: Axes, y_label: str | None = "") -> None:
    """Draw a model: thin seed lines with their band, the mean line, a dot at each selected step, a star at the best
    run.
    """
    draw_lines(ax, panel.lines)
    if (top := panel.top) is not None:
        colour = next(line.stroke.colour for line in panel.lines if line.variant == top.variant)
        last = max(seed.steps[-1] for line in panel.lines for seed in line.seeds)
        place = (top.step, top.score)
        ax.plot(*place, "*", markersize=12, color=colour, markeredgecolor="white", zorder=60)
        ax.annotate(
            top.text,
            place,
            xytext=(0, 7),
            textcoords="offset points",
            ha="right" if top.step > 0.9 * last else "center",
            color=colour,
            fontsize=sized(9),
            fontweight="bold",
            zorder=61,
        )
    stop = "" if panel.t_stop is None else f" (T_stop = {panel.t_stop})"
    ax.set_title(panel.model + stop, parse_math=False)
    step_axis(ax)
    ax.set_ylabel(y_label or "")


def draw(info: PanelsInfo, fig: Figure, in_row: int = 2) -> None:
    """All panels, `in_row` in a row, with title and source and a shared legend."""
    columns = min(in_row, len(info.panels))
    size = {1: (7.2, 4.2), 2: (5.4, 3.3)}.get(columns, (3.9, 3.3))
    for panel, ax in panel_grid(fig, info, in_row, size):
        place = ax.get_subplotspec()
        draw_panel(panel, ax, info.y_label if place is not None and place.is_first_col() else "")


# The share of runs that have not collapsed, over training steps, with a panel per model with a collapse.

_APART = 0.6  # percent between lines that would coincide


@dataclass(frozen=True)
class SurvivalLine:
    """A variant: the percentage of its runs that survive each step at which any of them collapses, from step 0 to the
    last observed step. `at_risk`: runs still observed there.
    """

    variant: str
    label: str
    stroke: Stroke
    runs: int
    steps: tuple[int, ...]
    surviving: tuple[float, ...]
    at_risk: tuple[int, ...]


def survival_info(
    board: Scoreboard,
    cells: Mapping[tuple[str, str], CellCollapse],
    title: str,
    palette: Palette = PAPER,
) -> PanelsInfo | None:
    """The figure of a scored sweep; None if no run collapsed."""
    strokes = palette.strokes(drawn_variants(board))
    panels = []
    for model in board.models:
        of_model = {name: cells[model, name] for name in strokes if (model, name) in cells}
        lines = []
        for variant, cell in of_model.items():
            points = [(0, 1.0, cell.runs)]
            points += [
                (point.step, point.share.value, point.at_risk - point.collapses) for point in cell.curve
            ]
            if points[-1][0] < cell.last_step:
                points.append((cell.last_step, *points[-1][1:]))
            steps, shares, at_risk = zip(*points, strict=True)
            about = (variant, display_name(variant), strokes[variant], cell.runs)
            lines.append(SurvivalLine(*about, steps, tuple(100 * share for share in shares), at_risk))
        if any(cell.collapsed for cell in of_model.values()):
            panels.append(Panel(model, None, tuple(lines), None))
    if not panels:
        return None
    keys = keys_of(strokes, {line.variant for panel in panels for line in panel.lines})
    return PanelsInfo(title, source_of(board), run_ids_of(board.runs), tuple(panels), keys)


def draw_survival(info: PanelsInfo, fig: Figure) -> None:
    """All panels, two in a row, with title and source and a shared legend. Coinciding lines are shifted slightly."""
    for panel, ax in panel_grid(fig, info, 2, (5.4, 3.3)):
        for order, line in enumerate(panel.lines):
            heights = [height - _APART * order for height in line.surviving]
            ax.step(
                line.steps, heights, where="post", linewidth=1.4, zorder=3 + order, **line.stroke.marked()
            )
        ax.set_ylim(-6, 104)
        ax.set_ylabel("runs not collapsed (%)")
        ax.set_title(panel.model, parse_math=False)
        step_axis(ax)


# Training diagnostics.

_LIMIT, _FLOOR = "#8a1c1c", "#555555"  # the colours of marked values
_DASHES = (0, (4, 3))
_IN_ROW = 3  # panels of a single model
_MOST_COLUMNS = 4  # models that stand side by side
POINTS = (
    120  # per line at most: neighbouring steps are averaged, which also reduces the noise of single batches
)
LABELS = {
    "train/reward": "reward (fraction)",
    "train/response_length": "response length (tokens)",
    "train/relative_logprob_error": "relative log-prob error",
    "rule/masked_fraction": "masked fraction",
    "rule/divergence_mean": "mean divergence",
    "rule/delta_b_mean": "effective delta_b",
    "rule/prefix_budget_share": "prefix-budget share of masked",
}


@dataclass(frozen=True)
class Trace(Band):
    """One variant: the mean over its runs with its band, at the centre of each bin of steps. `smooth`: a moving average
    to draw over it, empty for none.
    """

    variant: str
    name: str
    stroke: Stroke
    runs: int
    steps: tuple[float, ...]
    smooth: tuple[float, ...] = ()


@dataclass(frozen=True)
class DiagnosticPanel:
    """A metric on a model; `limit`: a value that is marked, None for none."""

    model: str
    metric: str
    label: str
    traces: tuple[Trace, ...]
    limit: float | None = None


def diagnostics_info(board: Scoreboard, title: str, palette: Palette = PAPER) -> PanelsInfo | None:
    """The diagnostics that any of the board's runs logged, all metrics of a model, then those of the next; None if none
    did.
    """
    logged = frozenset(board.data.metrics["metric"].unique())
    strokes = palette.strokes(drawn_variants(board))
    panels = [
        DiagnosticPanel(model, metric, label, traces_of(board, model, metric, strokes))
        for model in board.models
        for metric, label in LABELS.items()
        if metric in logged
    ]
    return diagnostics_of(board, title, panels, strokes) if panels else None


def diagnostics_of(
    board: Scoreboard, title: str, panels: Sequence[DiagnosticPanel], strokes: Mapping[str, Stroke]
) -> PanelsInfo:
    """The figure of these panels."""
    keys = keys_of(strokes, {trace.variant for panel in panels for trace in panel.traces})
    return PanelsInfo(title, source_of(board), run_ids_of(board.runs), tuple(panels), keys)


def traces_of(
    board: Scoreboard, model: str, metric: str, strokes: Mapping[str, Stroke], points: int = POINTS
) -> tuple[Trace, ...]:
    """The variants whose runs on a model logged a metric, each in at most `points` bins."""
    traces = []
    for variant, stroke in strokes.items():
        rows = board.logged(model, variant, metric)
        rows = rows[rows["value"].abs() < schema.LARGEST]
        if rows.empty:
            continue
        steps = int(rows["step"].max()) + 1
        width = max(1, -(-steps // points))
        # A last bin of a few steps would show the noise of single batches, so its steps join the bin before.
        last = max(0, steps // width - 1)
        binned = (
            rows.assign(bin=(rows["step"] // width).clip(upper=last))
            .groupby(["bin", "mlflow_id"], observed=True)[["step", "value"]]
            .mean()
        )
        info = schema.METRIC_BY_NAME.get(metric)
        range_of_share = (0, 1) if info and info.unit == "fraction" else ()
        trace = Trace(
            **vars(band(binned["value"].unstack("mlflow_id"), *range_of_share)),
            variant=variant,
            name=display_name(variant),
            stroke=stroke,
            runs=rows["mlflow_id"].nunique(),
            steps=tuple(binned["step"].groupby(level="bin").mean()),
        )
        traces.append(trace)
    return tuple(traces)


def draw_traces(panel: DiagnosticPanel, ax: Axes, heading: str) -> None:
    """A metric on a model."""
    for order, trace in enumerate(panel.traces):
        fill(ax, trace)
        if trace.smooth:
            ax.plot(trace.steps, trace.mean, color=trace.stroke.colour, linewidth=0.5, alpha=0.3, zorder=2)
        shown = trace.smooth or trace.mean
        ax.plot(
            trace.steps, shown, linewidth=1.2, zorder=3 + order, label=trace.name, **trace.stroke.marked()
        )
    ax.set_title(heading, parse_math=False)
    step_axis(ax)
    if not panel.traces:
        not_logged(ax)


def not_logged(ax: Axes) -> None:
    """A panel without curves says so."""
    ax.set_axis_off()
    ax.text(0.0, 0.9, "not logged", transform=ax.transAxes, color="#777777")


def draw_diagnostics(info: PanelsInfo, fig: Figure) -> None:
    """All panels with title, source and a shared legend: a row per metric and a column per model, if they fit."""
    models = list(dict.fromkeys(panel.model for panel in info.panels))
    side_by_side = 1 < len(models) <= _MOST_COLUMNS
    columns = len(models) if side_by_side else min(_IN_ROW, len(info.panels))
    if side_by_side:
        metrics = [panel.metric for panel in info.panels]
        panels = sorted(info.panels, key=lambda panel: metrics.index(panel.metric))
        info = replace(info, panels=tuple(panels))
    for panel, ax in panel_grid(fig, info, columns, (max(3.3, 5.4 / columns), 2.5)):
        draw_traces(panel, ax, f"{panel.label}\n{panel.model}" if len(models) > 1 else panel.label)
        limit = panel.limit
        # The limit of an error whose ideal value is 1 is marked if the curves come near it.
        if limit is not None and any(max(trace.high) > (1 + limit) / 2 for trace in panel.traces):
            ax.axhline(limit, color=_LIMIT, linewidth=1, linestyle=_DASHES, zorder=1)
            ax.annotate(
                f"{limit}",
                (1, limit),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                color=_LIMIT,
                fontsize="small",
            )


_RATE, _SHARE = "rule/delta_b_mean", "rule/prefix_budget_share"
_METRICS = ((_RATE, "effective δ_b"), (_SHARE, "prefix-budget share"))
_BUDGET_POINTS = 2000  # per line at most: every step of the paper's runs


def warmup_info(
    board: Scoreboard, models: tuple[str, ...], title: str, palette: Palette = PAPER
) -> PanelsInfo | Absent:
    """The runs of CPPO on `models`: a row of panels per metric, a column per model. The `limit` of a budget rate is its
    lower bound (delta_b_min), None if its runs do not log it or differ.
    """
    strokes = palette.strokes([OURS])
    panels = tuple(
        DiagnosticPanel(
            model,
            metric,
            label,
            traces_of(board, model, metric, strokes, _BUDGET_POINTS),
            _floor(board, model) if metric == _RATE else None,
        )
        for metric, label in _METRICS
        for model in models
    )
    if not any(panel.traces for panel in panels):
        names = " and ".join(metric for metric, _ in _METRICS)
        return Absent(f"no run of {display_name(OURS)} on {', '.join(models) or 'any model'} logged {names}")
    runs = [run for run in board.runs if run.model in models and run.variant == OURS]
    return PanelsInfo(title, origin(board.core), run_ids_of(runs), panels)


def _floor(board: Scoreboard, model: str) -> float | None:
    """delta_b_min as the runs logged it, or as the paper prints it."""
    if board.core == schema.PAPER:
        floors = {row["delta_b_min"] for row in printed_table("table_config") if row["model"] == model}
    else:
        logged = (board.params_of(run).get("rule.delta_b") for run in board.runs_of(model, OURS))
        floors = {*filter(None, logged)}
    try:
        return float(floors.pop()) if len(floors) == 1 else None
    except ValueError:  # a foreign run may log anything under this key
        return None


def draw_warmup(info: PanelsInfo, fig: Figure) -> None:
    """Draw metrics as rows and models as columns; the panels of a row share a scale."""
    rows, columns = len(_METRICS), len(info.panels) // len(_METRICS)
    surround(fig, (max(3.6 * columns, 5.4), 2.4 * rows), info.heads)
    axes = fig.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
    for index, (ax, panel) in enumerate(zip(axes.flat, info.panels, strict=True)):
        row, column = divmod(index, columns)
        if panel.metric == _SHARE and panel.traces:
            # A dot at each step that masked any token; dots of neighbouring steps are connected.
            (trace,) = panel.traces
            fill(ax, trace)
            ax.plot(
                trace.steps,
                trace.mean,
                "o",
                label=trace.name,
                color=trace.stroke.colour,
                markersize=2.2,
                markeredgewidth=0,
                zorder=3,
            )
            # A gap wherever two steps are further apart than the nearest ones.
            steps, values = np.array(trace.steps), np.array(trace.mean)
            apart = np.diff(steps)
            gaps = 1 + np.flatnonzero(apart > 1.5 * apart.min(initial=math.inf))
            line = (np.insert(steps, gaps, math.nan), np.insert(values, gaps, math.nan))
            ax.plot(*line, linewidth=0.6, alpha=0.45, color=trace.stroke.colour, zorder=3)
            step_axis(ax)
            ax.set_ylim(-0.02, 1.02)
        else:
            draw_traces(panel, ax, panel.model if row == 0 else "")
        if panel.traces and panel.limit is not None:
            ax.axhline(panel.limit, color=_FLOOR, linewidth=0.8, linestyle=_DASHES)
            ax.annotate(
                f"δ_b,min = {panel.limit:g}",
                (1, panel.limit),
                xycoords=ax.get_yaxis_transform(),
                xytext=(-2, -3),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=sized(8),
                color=_FLOOR,
            )
        ax.set_ylabel(panel.label if column == 0 else "")
        ax.xaxis.label.set_visible(row == rows - 1)  # the page has it beside the values of the others
        ax.margins(y=0.16)  # room for the label below the floor
