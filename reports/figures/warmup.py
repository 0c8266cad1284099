"""Figure 7: CPPO's prefix budget over training on the Base models: its effective rate and what it rejects."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.study import OURS, runs_of
from cppo_lab.reports.figures.diagnostics import DiagnosticPanel, Trace, draw_panel, trace_of
from cppo_lab.reports.figures.frame import above, step_axis, surround
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.reports.figures.picture import Absent
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.printed import printed_table
from cppo_lab.reports.tables import core_of

RATE, SHARE = "rule/delta_b_mean", "rule/prefix_budget_share"
METRICS = ((RATE, "effective δ_b"), (SHARE, "prefix-budget share"))
POINTS = 2000  # per line at most: every step of the paper's runs


@dataclass(frozen=True)
class WarmupInfo:
    """Everything the figure shows: one row of `panels` per metric, one column per model. `floors`: the lower bound of
    each model's budget rate (delta_b_min), None if its runs do not log it or differ.
    """

    title: str
    source: str
    models: tuple[str, ...]
    panels: tuple[DiagnosticPanel, ...]
    floors: tuple[float | None, ...]
    run_ids: tuple[str, ...]


def warmup_info(
    board: Scoreboard, models: tuple[str, ...], title: str, palette: str = PAPER
) -> WarmupInfo | Absent:
    """The runs of CPPO on `models`; `palette`: one of PALETTES."""
    stroke = PALETTES[palette].methods[OURS]
    panels = []
    for metric, label in METRICS:
        for model in models:
            trace = trace_of(board, (model, OURS), metric, stroke, POINTS)
            panels.append(DiagnosticPanel(model, metric, label, () if trace is None else (trace,)))
    if not any(panel.traces for panel in panels):
        names = " and ".join(metric for metric, _ in METRICS)
        return Absent(f"no run of {display_name(OURS)} on {', '.join(models) or 'any model'} logged {names}")
    shown = [run for run in board.runs if run.model in models and run.variant == OURS]
    return WarmupInfo(
        title=title,
        source=origin(core_of(board)),
        models=models,
        panels=tuple(panels),
        floors=tuple(_floor(board, model) for model in models),
        run_ids=tuple(sorted(run.run_id for run in shown if run.run_id is not None)),
    )


def _floor(board: Scoreboard, model: str) -> float | None:
    """delta_b_min as the runs logged it, or as the paper prints it."""
    if core_of(board) == schema.PAPER:
        found = {row["delta_b_min"] for row in printed_table("table_config") if row["model"] == model}
    else:
        logged = [board.data.params.get(run.mlflow_id or "", {}) for run in runs_of(board, model, OURS)]
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
    ax.plot(trace.steps, trace.mean, "o", markersize=2.2, markeredgewidth=0, color=colour, zorder=3)
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


def draw(info: WarmupInfo, fig: Figure, headed: bool = True) -> None:
    """Draw metrics as rows and models as columns; each row has one scale."""
    rows, columns = len(METRICS), len(info.models)
    size = (max(3.6 * columns, 5.4), 2.4 * rows)
    bands = [trace.band for panel in info.panels for trace in panel.traces]
    surround(fig, size, above(info.title, info.source, bands) if headed else (), ())
    axes = fig.subplots(rows, columns, squeeze=False, sharex="col", sharey="row")
    for index, (ax, panel) in enumerate(zip(axes.flat, info.panels, strict=True)):
        row, column = divmod(index, columns)
        if panel.metric == SHARE and panel.traces:
            draw_share(panel.traces[0], ax)
        else:
            draw_panel(panel, ax, panel.model if row == 0 else "")
        if panel.metric == RATE and panel.traces and (floor := info.floors[column]) is not None:
            ax.axhline(floor, color="#555555", linewidth=0.8, linestyle=(0, (4, 3)))
            ax.annotate(
                f"δ_b,min = {floor:g}",
                (1, floor),
                xycoords=ax.get_yaxis_transform(),
                xytext=(-2, -3),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=8,
                color="#555555",
            )
        ax.set_ylabel(panel.label if column == 0 else "")
        ax.set_xlabel("training step" if row == rows - 1 else "")
        ax.margins(y=0.16)  # room for the label below the floor
    for ax, panel in zip(axes[1], info.panels[columns:], strict=True):
        if panel.traces:
            ax.set_ylim(-0.02, 1.02)
