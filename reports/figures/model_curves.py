"""Figures 8 to 11, one per model: the benchmarks one by one on top; reward, response length and relative log-prob
error below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import band
from cppo_lab.reports.figures.data import APPEARANCE, Info
from cppo_lab.reports.figures.drawing import Absent, above, fill, step_axis, surround
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Key, keys_of
from cppo_lab.reports.figures.training import DiagnosticPanel, draw_panel, not_logged, traces_of
from cppo_lab.reports.figures.validation import Line, draw_lines, line_of
from cppo_lab.reports.names import benchmark_name, display_name, in_order, origin, score_name
from cppo_lab.reports.tables import core_of, run_ids_of
from cppo_lab.rules import Stroke

REWARD = "train/reward"
SMOOTHED = "train/reward_smoothed"  # logged by the paper; our runs are smoothed here
LENGTH = "train/response_length"
ERROR = "train/relative_logprob_error"
SMOOTHING = 0.05  # width of the moving average as a share of the steps
KILO = 1000.0
FEW_POINTS = 150  # above which a line gets a moving average
POINTS = 2000  # per line of response length and error at most: every step of the paper's runs


@dataclass(frozen=True)
class BenchmarkPanel:
    """One benchmark: its lines in percent."""

    benchmark: str
    heading: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class RewardLine:
    """One variant: the reward of each step, and its moving average with its band (`band` is the kind, see
    `estimate.band`); both are means over the runs that logged the step.
    """

    variant: str
    label: str
    stroke: Stroke = field(metadata=APPEARANCE)
    steps: tuple[int, ...]
    raw: tuple[float, ...]
    smooth_steps: tuple[int, ...]
    band: str
    smooth: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ModelInfo(Info):
    """Everything the figure shows."""

    model: str
    y_label: str
    benchmarks: tuple[BenchmarkPanel, ...]
    rewards: tuple[RewardLine, ...]
    traces: tuple[DiagnosticPanel, ...]
    keys: tuple[Key, ...]


def model_info(board: Scoreboard, model: str, title: str, palette: str = PAPER) -> ModelInfo | Absent:
    """The figure of one model of the main sweep; `palette`: one of PALETTES."""
    runs = [run for run in board.runs if run.model == model]
    strokes = PALETTES[palette].strokes(in_order(run.variant for run in runs))
    panels = []
    for benchmark in board.benchmarks_of(model):
        lines = (
            line_of(board, board.runs_of(model, name), stroke, benchmark) for name, stroke in strokes.items()
        )
        drawn = tuple(line for line in lines if line is not None)
        panels.append(BenchmarkPanel(benchmark, benchmark_name(benchmark), drawn))
    rewards = [_reward(board, (model, name), stroke) for name, stroke in strokes.items()]
    logged = tuple(line for line in rewards if line is not None)
    variants = {line.variant for panel in panels for line in panel.lines} | {line.variant for line in logged}
    if not variants:
        return Absent(f"no run on {model} has logged a benchmark or a reward")
    return ModelInfo(
        title=title,
        source=origin(core_of(board)),
        model=model,
        y_label=f"{score_name(core_of(board), board.curves.samples)} (%)",
        benchmarks=tuple(panels),
        rewards=logged,
        traces=(
            _panel(board, model, LENGTH, "response length (tokens)", strokes),
            _panel(board, model, ERROR, "relative log-prob error", strokes),
        ),
        keys=keys_of(strokes, variants),
        run_ids=run_ids_of(runs),
    )


def _by_run(board: Scoreboard, pair: tuple[str, str], metric: str) -> pd.DataFrame:
    """A metric of one cell: one row per step that any run logged, one column per run."""
    rows = board.logged(*pair, metric)
    rows = rows[np.isfinite(rows["value"])]  # non-finite values cannot be drawn
    return rows.astype({"mlflow_id": object}).pivot(index="step", columns="mlflow_id", values="value")


def _reward(board: Scoreboard, pair: tuple[str, str], stroke: Stroke) -> RewardLine | None:
    raw = _by_run(board, pair, REWARD)
    if raw.empty:
        return None
    smooth = _by_run(board, pair, SMOOTHED)
    if smooth.empty:
        width = max(3, round(SMOOTHING * len(raw)) | 1)  # odd, so that it is centred
        smooth = raw.rolling(width, center=True, min_periods=1).mean().where(raw.notna())
    around = band(smooth)
    return RewardLine(
        variant=pair[1],
        label=display_name(pair[1]),
        stroke=stroke,
        steps=tuple(int(step) for step in raw.index),
        raw=band(raw).mean,
        smooth_steps=tuple(int(step) for step in smooth.index),
        band=around.band,
        smooth=around.mean,
        low=around.low,
        high=around.high,
    )


def _panel(
    board: Scoreboard, model: str, metric: str, label: str, strokes: Mapping[str, Stroke]
) -> DiagnosticPanel:
    traces = list(traces_of(board, model, metric, strokes, POINTS))
    for place, trace in enumerate(traces):
        if len(trace.steps) > FEW_POINTS:  # so many that seven lines would be illegible
            width = max(3, round(SMOOTHING / 2 * len(trace.steps)) | 1)
            smooth = pd.Series(trace.mean).rolling(width, center=True, min_periods=1).mean()
            traces[place] = replace(trace, smooth=tuple(smooth))
    if metric == LENGTH and max((max(trace.high) for trace in traces), default=0.0) >= 2 * KILO:
        label = "response length (k tokens)"
        for place, trace in enumerate(traces):
            parts = {name: getattr(trace, name) for name in ("mean", "low", "high", "smooth")}
            kilos: Any = {name: tuple(value / KILO for value in part) for name, part in parts.items()}
            traces[place] = replace(trace, **kilos)
    return DiagnosticPanel(model, metric, label, tuple(traces))


def draw_reward(info: ModelInfo, ax: Axes) -> None:
    """Draw the raw reward thin and the smoothed one thick."""
    for line in info.rewards:
        ax.plot(line.steps, line.raw, color=line.stroke.colour, linewidth=0.5, alpha=0.3, zorder=2)
    for order, line in enumerate(info.rewards):
        fill(ax, line, line.smooth_steps)
        style = line.stroke.marked() | {"linewidth": 1.6, "zorder": 3 + order, "label": line.label}
        ax.plot(line.smooth_steps, line.smooth, **style)
    ax.set_title("reward (fraction)", loc="left")
    step_axis(ax)
    if not info.rewards:
        not_logged(ax)


def draw(info: ModelInfo, fig: Figure) -> None:
    """Draw benchmarks above (dots mark the steps selected by their mean), training metrics below, and one legend for
    all.
    """
    columns = max(len(info.benchmarks), 1 + len(info.traces))
    bands = [line.band for panel in info.benchmarks for line in panel.lines]
    surround(fig, (3.8 * columns, 5.6), above(info.title, info.source, bands), info.keys)
    upper, lower = fig.subplots(2, columns, squeeze=False)
    for index, (ax, panel) in enumerate(zip(upper, info.benchmarks, strict=False)):
        draw_lines(ax, panel.lines)
        ax.set_title(panel.heading, loc="left", parse_math=False)
        ax.set_ylabel(info.y_label if index == 0 else "")
        step_axis(ax)
    draw_reward(info, lower[0])
    for ax, trace in zip(lower[1:], info.traces, strict=False):
        draw_panel(trace, ax, trace.label)
    for ax in (*upper[len(info.benchmarks) :], *lower[1 + len(info.traces) :]):
        ax.remove()
