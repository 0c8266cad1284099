"""Training diagnostics: one panel per model and logged metric, one line per variant."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.bands import band
from cppo_lab.reports.figures.frame import above, step_axis, surround
from cppo_lab.reports.figures.lines import drawn_variants, left_out_note
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Key
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import core_of
from cppo_lab.rules import Stroke

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
    stroke: Stroke
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
    """One metric on one model."""

    model: str
    metric: str
    label: str
    traces: tuple[Trace, ...]


@dataclass(frozen=True)
class DiagnosticsInfo:
    """Everything the figure shows; `panels` are in row-major order: rows are models, columns are `metrics`."""

    title: str
    source: str
    models: tuple[str, ...]
    metrics: tuple[str, ...]
    panels: tuple[DiagnosticPanel, ...]
    keys: tuple[Key, ...]
    run_ids: tuple[str, ...]


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
        models=board.models,
        metrics=metrics,
        panels=tuple(panels),
        keys=tuple(Key(display_name(name), strokes[name]) for name in variants if name in drawn),
        run_ids=tuple(sorted({run.run_id for run in board.runs if run.run_id is not None})),
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
        ax.plot(trace.steps, shown, linewidth=1.2, zorder=3 + order, **trace.stroke.marked())
    ax.set_title(heading, loc="left", parse_math=False)
    step_axis(ax)
    if not panel.traces:
        ax.set_axis_off()
        ax.text(0.0, 0.9, "not logged", transform=ax.transAxes, color="#777777")


def draw(info: DiagnosticsInfo, fig: Figure) -> None:
    """All panels: models as rows, metrics as columns, with title, source and a shared legend."""
    rows, columns = len(info.models), len(info.metrics)
    bands = [trace.band for panel in info.panels for trace in panel.traces]
    surround(fig, (max(3.3 * columns, 5.4), 2.5 * rows), above(info.title, info.source, bands), info.keys)
    axes = fig.subplots(rows, columns, squeeze=False)
    for ax, panel in zip(axes.flat, info.panels, strict=True):
        draw_panel(panel, ax, panel.label)
    for ax, model in zip(axes[:, 0], info.models, strict=True):
        ax.set_ylabel(model, fontweight="bold", parse_math=False)
