"""Training diagnostics: one panel per model and logged metric, one line per variant; and Figure 7, CPPO's prefix budget
over training on the Base models: its effective rate and what it rejects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import band
from cppo_lab.analysis.study import OURS
from cppo_lab.reports.figures.data import APPEARANCE, HEADING
from cppo_lab.reports.figures.drawing import Absent, above, panel_grid, sized, step_axis, surround
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Key, keys_of
from cppo_lab.reports.figures.validation import drawn_variants, left_out_note
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.printed import printed_table
from cppo_lab.reports.tables import core_of, run_ids_of
from cppo_lab.rules import Stroke

_LIMIT = "#8a1c1c"  # the colour of a marked value
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
class Trace:
    """One variant: the mean over its runs with its band (`band` is the kind, see `statistics.bands`), at the centre of
    each bin of steps. `smooth`: a moving average to draw over it, empty for none.
    """

    variant: str
    name: str
    stroke: Stroke = field(metadata=APPEARANCE)
    runs: int
    steps: tuple[float, ...]
    band: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    smooth: tuple[float, ...] = ()

    @property
    def colour(self) -> str:
        """The colour of the line, for a page."""
        return self.stroke.colour


@dataclass(frozen=True)
class DiagnosticPanel:
    """One metric on one model; `limit`: a value that is marked, None for none."""

    model: str
    metric: str
    label: str
    traces: tuple[Trace, ...]
    limit: float | None = None


@dataclass(frozen=True)
class DiagnosticsInfo:
    """Everything the figure shows; `panels`: all metrics of one model, then those of the next."""

    title: str = field(metadata=HEADING)
    source: str = field(metadata=HEADING)
    panels: tuple[DiagnosticPanel, ...]
    keys: tuple[Key, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)


def diagnostics_info(board: Scoreboard, title: str, palette: str = PAPER) -> DiagnosticsInfo | None:
    """The diagnostics that any of the board's runs logged; None if none did."""
    names = frozenset(board.data.metrics["metric"].unique())
    metrics = tuple(name for name in LABELS if name in names)
    if not metrics:
        return None
    variants = drawn_variants(board)
    strokes = PALETTES[palette].strokes(variants)
    panels = []
    for model in board.models:
        for metric in metrics:
            traces = [trace_of(board, (model, name), metric, strokes[name]) for name in variants]
            kept = tuple(trace for trace in traces if trace is not None)
            panels.append(DiagnosticPanel(model, metric, LABELS[metric], kept))
    drawn = {trace.variant for panel in panels for trace in panel.traces}
    return DiagnosticsInfo(
        title=title,
        source=origin(core_of(board)) + left_out_note(board),
        panels=tuple(panels),
        keys=keys_of(strokes, drawn),
        run_ids=run_ids_of(board.runs),
    )


def trace_of(
    board: Scoreboard,
    pair: tuple[str, str],
    metric: str,
    stroke: Stroke,
    points: int = POINTS,
) -> Trace | None:
    """The runs of one cell on one metric, in at most `points` bins; None if none of them logged it."""
    rows = board.logged(*pair, metric)
    rows = rows[np.isfinite(rows["value"])]  # non-finite values cannot be drawn
    if rows.empty:
        return None
    steps = int(rows["step"].max()) + 1
    width = max(1, -(-steps // points))
    # A last bin of a few steps would show the noise of single batches, so its steps join the bin before.
    last = max(0, steps // width - 1)
    binned = (
        rows.assign(bin=(rows["step"] // width).clip(upper=last))
        .groupby(["bin", "mlflow_id"], observed=True)[["step", "value"]]
        .mean()
    )
    around = band(binned["value"].unstack("mlflow_id"))
    return Trace(
        variant=pair[1],
        name=display_name(pair[1]),
        stroke=stroke,
        runs=rows["mlflow_id"].nunique(),
        steps=tuple(binned["step"].groupby(level="bin").mean()),
        band=around.kind,
        mean=around.mean,
        low=around.low,
        high=around.high,
    )


def draw_panel(panel: DiagnosticPanel, ax: Axes, heading: str) -> None:
    """One metric on one model."""
    for order, trace in enumerate(panel.traces):
        if trace.band:
            ax.fill_between(trace.steps, trace.low, trace.high, color=trace.colour, alpha=0.12, linewidth=0)
        if trace.smooth:
            ax.plot(trace.steps, trace.mean, color=trace.colour, linewidth=0.5, alpha=0.3, zorder=2)
        shown = trace.smooth or trace.mean
        style = trace.stroke.marked()
        ax.plot(trace.steps, shown, linewidth=1.2, zorder=3 + order, label=trace.name, **style)
    ax.set_title(heading, loc="left", parse_math=False)
    step_axis(ax)
    if not panel.traces:
        ax.set_axis_off()
        ax.text(0.0, 0.9, "not logged", transform=ax.transAxes, color="#777777")


def _draw_limit(panel: DiagnosticPanel, limit: float, ax: Axes) -> None:
    """Mark the limit of an error whose ideal value is 1, if the curves come near it."""
    if any(max(trace.high) > (1 + limit) / 2 for trace in panel.traces):
        ax.axhline(limit, color=_LIMIT, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        ax.annotate(
            f"{limit}",
            (1, limit),
            xycoords=("axes fraction", "data"),
            color=_LIMIT,
            ha="right",
            va="bottom",
            fontsize="small",
        )


def draw(info: DiagnosticsInfo, fig: Figure) -> None:
    """All panels with title, source and a shared legend: a row per metric and a column per model, if they fit."""
    models = list(dict.fromkeys(panel.model for panel in info.panels))
    side_by_side = 1 < len(models) <= _MOST_COLUMNS
    columns = len(models) if side_by_side else min(_IN_ROW, len(info.panels))
    per_model = len(info.panels) // len(models)
    order = list(range(len(info.panels)))
    if side_by_side:
        order.sort(key=lambda place: (place % per_model, place))
    bands = [trace.band for panel in info.panels for trace in panel.traces]
    size = (max(3.3 * columns, 5.4), 2.5 * -(-len(info.panels) // columns))
    texts = above(info.title, info.source, bands)
    axes = panel_grid(fig, len(info.panels), columns, size, texts, info.keys)
    for place, ax in zip(order, axes, strict=True):
        panel = info.panels[place]
        draw_panel(panel, ax, f"{panel.label}\n{panel.model}" if len(models) > 1 else panel.label)
        if panel.limit is not None:
            _draw_limit(panel, panel.limit, ax)


RATE, SHARE = "rule/delta_b_mean", "rule/prefix_budget_share"
METRICS = ((RATE, "effective δ_b"), (SHARE, "prefix-budget share"))
BUDGET_POINTS = 2000  # per line at most: every step of the paper's runs


@dataclass(frozen=True)
class WarmupInfo:
    """Everything the figure shows: a row of `panels` per metric, a column per model. The `limit` of a budget rate is
    its lower bound (delta_b_min), None if its runs do not log it or differ.
    """

    title: str = field(metadata=HEADING)
    source: str = field(metadata=HEADING)
    panels: tuple[DiagnosticPanel, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)


def warmup_info(
    board: Scoreboard, models: tuple[str, ...], title: str, palette: str = PAPER
) -> WarmupInfo | Absent:
    """The runs of CPPO on `models`; `palette`: one of PALETTES."""
    stroke = PALETTES[palette].methods[OURS]
    panels = []
    for metric, label in METRICS:
        for model in models:
            trace = trace_of(board, (model, OURS), metric, stroke, BUDGET_POINTS)
            floor = _floor(board, model) if metric == RATE else None
            panels.append(DiagnosticPanel(model, metric, label, () if trace is None else (trace,), floor))
    if not any(panel.traces for panel in panels):
        names = " and ".join(metric for metric, _ in METRICS)
        return Absent(f"no run of {display_name(OURS)} on {', '.join(models) or 'any model'} logged {names}")
    shown = [run for run in board.runs if run.model in models and run.variant == OURS]
    return WarmupInfo(
        title=title,
        source=origin(core_of(board)),
        panels=tuple(panels),
        run_ids=run_ids_of(shown),
    )


def _floor(board: Scoreboard, model: str) -> float | None:
    """delta_b_min as the runs logged it, or as the paper prints it."""
    if core_of(board) == schema.PAPER:
        found = {row["delta_b_min"] for row in printed_table("table_config") if row["model"] == model}
    else:
        logged = [board.data.params.get(run.mlflow_id or "", {}) for run in board.runs_of(model, OURS)]
        found = {params["rule.delta_b"] for params in logged if "rule.delta_b" in params}
    try:
        return float(found.pop()) if len(found) == 1 else None
    except ValueError:  # a foreign run may log anything under this key
        return None


def draw_share(trace: Trace, ax: Axes) -> None:
    """Draw a dot at each step that masked any token; dots of neighbouring steps are connected."""
    colour = trace.stroke.colour
    if trace.band:
        ax.fill_between(trace.steps, trace.low, trace.high, color=colour, alpha=0.12, linewidth=0)
    dots = ax.plot(trace.steps, trace.mean, "o", label=trace.name, color=colour, zorder=3)
    dots[0].set(markersize=2.2, markeredgewidth=0)
    ax.plot(*_broken(trace.steps, trace.mean), linewidth=0.6, alpha=0.45, color=colour, zorder=3)
    step_axis(ax)


def _broken(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The points with a gap (NaN) wherever two are further apart than the nearest ones."""
    apart = min((after - before for before, after in pairwise(steps)), default=1.0)
    x, y = list(steps[:1]), list(values[:1])
    for before, after, value in zip(steps, steps[1:], values[1:], strict=False):
        if after - before > 1.5 * apart:
            x.append(math.nan)
            y.append(math.nan)
        x.append(after)
        y.append(value)
    return x, y


def draw_budget(info: WarmupInfo, fig: Figure) -> None:
    """Draw metrics as rows and models as columns; each row has one scale."""
    rows, columns = len(METRICS), len(info.panels) // len(METRICS)
    size = (max(3.6 * columns, 5.4), 2.4 * rows)
    bands = [trace.band for panel in info.panels for trace in panel.traces]
    surround(fig, size, above(info.title, info.source, bands), ())
    axes = fig.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
    for index, (ax, panel) in enumerate(zip(axes.flat, info.panels, strict=True)):
        row, column = divmod(index, columns)
        if panel.metric == SHARE and panel.traces:
            draw_share(panel.traces[0], ax)
        else:
            draw_panel(panel, ax, panel.model if row == 0 else "")
        if panel.traces and panel.limit is not None:
            ax.axhline(panel.limit, color="#555555", linewidth=0.8, linestyle=(0, (4, 3)))
            ax.annotate(
                f"δ_b,min = {panel.limit:g}",
                (1, panel.limit),
                xycoords=ax.get_yaxis_transform(),
                xytext=(-2, -3),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=sized(8),
                color="#555555",
            )
        ax.set_ylabel(panel.label if column == 0 else "")
        ax.set_xlabel("training step" if row == rows - 1 else "")
        ax.margins(y=0.16)  # room for the label below the floor
    for ax, panel in zip(axes[1], info.panels[columns:], strict=True):
        if panel.traces:
            ax.set_ylim(-0.02, 1.02)
