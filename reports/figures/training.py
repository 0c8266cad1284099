"""Training diagnostics: a panel per model and logged metric, a line per variant; and Figure 7, CPPO's prefix budget
over training on the Base models: its effective rate and what it rejects.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Band, band
from cppo_lab.analysis.study import OURS
from cppo_lab.reports.figures.drawing import (
    APPEARANCE,
    PAPER,
    Absent,
    Info,
    Key,
    Palette,
    fill,
    head_texts,
    keys_of,
    panel_grid,
    sized,
    step_axis,
    surround,
)
from cppo_lab.reports.figures.validation import drawn_variants, source_of
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import printed_table, run_ids_of
from cppo_lab.rules import Stroke

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
    stroke: Stroke = field(metadata=APPEARANCE)
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


@dataclass(frozen=True)
class DiagnosticsInfo(Info):
    """Everything the figure shows; `panels`: all metrics of a model, then those of the next."""

    panels: tuple[DiagnosticPanel, ...]
    keys: tuple[Key, ...] = ()


def diagnostics_info(board: Scoreboard, title: str, palette: Palette = PAPER) -> DiagnosticsInfo | None:
    """The diagnostics that any of the board's runs logged; None if none did."""
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
) -> DiagnosticsInfo:
    """The figure of these panels."""
    keys = keys_of(strokes, {trace.variant for panel in panels for trace in panel.traces})
    return DiagnosticsInfo(title, source_of(board), run_ids_of(board.runs), tuple(panels), keys)


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
        trace = Trace(
            **vars(band(binned["value"].unstack("mlflow_id"))),
            variant=variant,
            name=display_name(variant),
            stroke=stroke,
            runs=rows["mlflow_id"].nunique(),
            steps=tuple(binned["step"].groupby(level="bin").mean()),
        )
        traces.append(trace)
    return tuple(traces)


def draw_panel(panel: DiagnosticPanel, ax: Axes, heading: str) -> None:
    """A metric on a model."""
    for order, trace in enumerate(panel.traces):
        fill(ax, trace)
        if trace.smooth:
            ax.plot(trace.steps, trace.mean, color=trace.stroke.colour, linewidth=0.5, alpha=0.3, zorder=2)
        style = trace.stroke.marked() | {"linewidth": 1.2, "zorder": 3 + order, "label": trace.name}
        ax.plot(trace.steps, trace.smooth or trace.mean, **style)
    ax.set_title(heading, loc="left", parse_math=False)
    step_axis(ax)
    if not panel.traces:
        not_logged(ax)


def not_logged(ax: Axes) -> None:
    """A panel without curves says so."""
    ax.set_axis_off()
    ax.text(0.0, 0.9, "not logged", transform=ax.transAxes, color="#777777")


def draw(info: DiagnosticsInfo, fig: Figure) -> None:
    """All panels with title, source and a shared legend: a row per metric and a column per model, if they fit."""
    models = list(dict.fromkeys(panel.model for panel in info.panels))
    side_by_side = 1 < len(models) <= _MOST_COLUMNS
    columns = len(models) if side_by_side else min(_IN_ROW, len(info.panels))
    panels = list(info.panels)
    if side_by_side:
        metrics = [panel.metric for panel in panels]
        panels.sort(key=lambda panel: metrics.index(panel.metric))
    size = (max(3.3, 5.4 / columns), 2.5)
    for panel, ax in panel_grid(fig, panels, columns, size, head_texts(info), info.keys):
        draw_panel(panel, ax, f"{panel.label}\n{panel.model}" if len(models) > 1 else panel.label)
        limit = panel.limit
        # The limit of an error whose ideal value is 1 is marked if the curves come near it.
        if limit is not None and any(max(trace.high) > (1 + limit) / 2 for trace in panel.traces):
            ax.axhline(limit, color=_LIMIT, linewidth=1, linestyle=_DASHES, zorder=1)
            place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
            ax.annotate(f"{limit}", (1, limit), color=_LIMIT, fontsize="small", **place)


_RATE, _SHARE = "rule/delta_b_mean", "rule/prefix_budget_share"
_METRICS = ((_RATE, "effective δ_b"), (_SHARE, "prefix-budget share"))
_BUDGET_POINTS = 2000  # per line at most: every step of the paper's runs


def warmup_info(
    board: Scoreboard, models: tuple[str, ...], title: str, palette: Palette = PAPER
) -> DiagnosticsInfo | Absent:
    """The runs of CPPO on `models`: a row of panels per metric, a column per model. The `limit` of a budget rate is its
    lower bound (delta_b_min), None if its runs do not log it or differ.
    """
    strokes = {OURS: palette.methods[OURS]}
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
    return DiagnosticsInfo(title, origin(board.core), run_ids_of(runs), panels)


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


def _draw_share(trace: Trace, ax: Axes) -> None:
    """Draw a dot at each step that masked any token; dots of neighbouring steps are connected."""
    fill(ax, trace)
    dots = ax.plot(trace.steps, trace.mean, "o", label=trace.name, color=trace.stroke.colour, zorder=3)
    dots[0].set(markersize=2.2, markeredgewidth=0)
    # A gap wherever two steps are further apart than the nearest ones.
    steps, values = np.array(trace.steps), np.array(trace.mean)
    apart = np.diff(steps)
    gaps = 1 + np.flatnonzero(apart > 1.5 * apart.min(initial=math.inf))
    line = (np.insert(steps, gaps, math.nan), np.insert(values, gaps, math.nan))
    ax.plot(*line, linewidth=0.6, alpha=0.45, color=trace.stroke.colour, zorder=3)
    step_axis(ax)


def draw_warmup(info: DiagnosticsInfo, fig: Figure) -> None:
    """Draw metrics as rows and models as columns; the panels of a row share a scale."""
    rows, columns = len(_METRICS), len(info.panels) // len(_METRICS)
    surround(fig, (max(3.6 * columns, 5.4), 2.4 * rows), head_texts(info), ())
    axes = fig.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
    for index, (ax, panel) in enumerate(zip(axes.flat, info.panels, strict=True)):
        row, column = divmod(index, columns)
        if panel.metric == _SHARE and panel.traces:
            _draw_share(panel.traces[0], ax)
        else:
            draw_panel(panel, ax, panel.model if row == 0 else "")
        if panel.traces and panel.limit is not None:
            ax.axhline(panel.limit, color=_FLOOR, linewidth=0.8, linestyle=_DASHES)
            style: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": sized(8), "color": _FLOOR}
            style |= {"xytext": (-2, -3), "textcoords": "offset points", "xycoords": ax.get_yaxis_transform()}
            ax.annotate(f"δ_b,min = {panel.limit:g}", (1, panel.limit), **style)
        ax.set_ylabel(panel.label if column == 0 else "")
        ax.xaxis.label.set_visible(row == rows - 1)  # the page has it beside the values of the others
        ax.margins(y=0.16)  # room for the label below the floor
    for ax, panel in zip(axes[1], info.panels[columns:], strict=True):
        if panel.traces:
            ax.set_ylim(-0.02, 1.02)
