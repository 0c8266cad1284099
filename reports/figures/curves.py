"""Figure 4: validation curves, one panel per model, one line per variant, the selected step of every run
marked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cppo_lab import schema
from cppo_lab.analysis.audit import percent, round_half_up
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import GAPS, RunScore, State
from cppo_lab.reports.figures.frame import surround
from cppo_lab.reports.figures.style import colours
from cppo_lab.reports.names import display_name, in_order, origin
from cppo_lab.reports.tables import core_of


@dataclass(frozen=True)
class SeedLine:
    """One run: steps and scores in percent, inside its window; `best` is its selected (step, score)."""

    run_id: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: tuple[int, float] | None
    collapsed: bool


@dataclass(frozen=True)
class Line:
    """One variant: its runs, and the mean, lowest and highest of the finished ones at the steps they share.

    Where no run is finished, the unfinished ones stand in.
    """

    variant: str
    label: str
    colour: str
    seeds: tuple[SeedLine, ...]
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Top:
    """The variant with the highest score of its table cell: `text` is that score, the star is at its best
    run.
    """

    variant: str
    step: int
    score: float
    text: str


@dataclass(frozen=True)
class Panel:
    """One model; `top` is None where no cell competes (collapsed and provisional ones do not)."""

    model: str
    t_stop: int | None
    lines: tuple[Line, ...]
    top: Top | None


@dataclass(frozen=True)
class CurvesInfo:
    """Everything the figure shows. `source` says where the numbers come from; it is part of the figure."""

    title: str
    source: str
    y_label: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, str], ...]  # (label, colour)
    run_ids: tuple[str, ...]


def curves_info(board: Scoreboard, title: str, models: Sequence[str] | None = None) -> CurvesInfo:
    """The figure of a scored sweep, of `models` or of all; a variant without any curve is not in the legend."""
    shown = [run for run in board.runs if models is None or run.model in models]
    variants = in_order(board.variants)
    palette = colours(variants)
    panels = []
    for model in dict.fromkeys(run.model for run in shown):
        of_model = [run for run in shown if run.model == model]
        lines = [
            _line(board, [run for run in of_model if run.variant == name], palette[name]) for name in variants
        ]
        kept = tuple(line for line in lines if line is not None)
        stops = [run.t_stop for run in of_model if run.t_stop is not None]
        panels.append(Panel(model, max(stops, default=None), kept, _top(board, model, kept)))
    drawn = {line.variant for panel in panels for line in panel.lines}
    return CurvesInfo(
        title=title,
        source=origin(core_of(board)),
        y_label=f"mean Avg@{board.curves.samples} (%)",
        panels=tuple(panels),
        legend=tuple((display_name(name), palette[name]) for name in variants if name in drawn),
        run_ids=tuple(sorted({run.run_id for run in shown if run.run_id is not None})),
    )


def _line(board: Scoreboard, runs: Sequence[RunScore], colour: str) -> Line | None:
    """None if none of the runs has a validation inside its window."""
    curves: list[tuple[RunScore, pd.Series]] = []
    for run in runs:
        curve = board.curves.of(run.mlflow_id or "")[schema.MEAN].dropna() * 100
        curve = curve if run.t_stop is None else curve[curve.index <= run.t_stop]
        if not curve.empty:
            curves.append((run, curve))
    if not curves:
        return None
    finished = [curve for run, curve in curves if run.state not in GAPS]
    together = pd.concat(finished or [curve for _, curve in curves], axis=1, join="inner")
    variant = runs[0].variant
    return Line(
        variant=variant,
        label=display_name(variant),
        colour=colour,
        seeds=tuple(_seed_line(run, curve) for run, curve in curves),
        steps=tuple(int(step) for step in together.index),
        mean=tuple(together.mean(axis=1)),
        low=tuple(together.min(axis=1)),
        high=tuple(together.max(axis=1)),
    )


def _seed_line(run: RunScore, curve: pd.Series) -> SeedLine:
    choice = run.choice
    return SeedLine(
        run_id=run.run_id or "",
        steps=tuple(int(step) for step in curve.index),
        values=tuple(float(value) for value in curve),
        best=None if choice.step is None or choice.score is None else (choice.step, 100 * choice.score),
        collapsed=run.state is State.COLLAPSE,
    )


def _top(board: Scoreboard, model: str, lines: Sequence[Line]) -> Top | None:
    competing = []
    for line in lines:
        cell = board.cells[model, line.variant]
        if cell.state is State.SCORED and not cell.provisional and cell.score is not None:
            competing.append((cell.score.mean, line))
    if not competing:
        return None
    mean, line = max(reversed(competing), key=lambda entry: entry[0])  # of equals the one that lies on top
    score, step = max((seed.best[1], -seed.best[0]) for seed in line.seeds if seed.best is not None)
    number = str(round_half_up(percent(mean)))  # the very number of the table
    return Top(line.variant, -step, score, number if len(line.seeds) == 1 else f"mean {number}")


def draw_panel(panel: Panel, ax: Axes, y_label: str = "", titled: bool = True) -> None:
    """One model: thin seed lines with their band, the mean line, a dot at each selected step, a star at the
    best.
    """
    for order, line in enumerate(panel.lines):
        front = 3 + order  # the last variant in the order lies on top
        several = len(line.seeds) > 1
        if several:
            ax.fill_between(
                line.steps, line.low, line.high, color=line.colour, alpha=0.12, linewidth=0, zorder=2
            )
            for seed in line.seeds:
                ax.plot(seed.steps, seed.values, color=line.colour, linewidth=0.5, alpha=0.5, zorder=front)
        ax.plot(line.steps, line.mean, color=line.colour, zorder=front, linewidth=1.6 if several else 1.2)
        for seed in line.seeds:
            _mark_run(ax, line, seed, front)
    if panel.top is not None:
        _mark_top(ax, panel, panel.top)
    if titled:
        stop = "" if panel.t_stop is None else f" (T_stop = {panel.t_stop})"
        ax.set_title(panel.model + stop, loc="left", parse_math=False)
    ax.set_xlabel("training step")
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    ax.set_ylabel(y_label)
    ax.set_ylim(bottom=0)
    ax.margins(x=0.02)


def _mark_run(ax: Axes, line: Line, seed: SeedLine, front: int) -> None:
    if seed.best is not None:
        ax.plot(
            *seed.best, "o", markersize=4.5, color=line.colour, markeredgecolor="white", zorder=front + 20
        )
    if seed.collapsed:
        ax.plot(
            seed.steps[-1],
            seed.values[-1],
            "X",
            markersize=7,
            color=line.colour,
            zorder=front + 20,
            clip_on=False,
        )
        ax.annotate(
            "collapse",
            (seed.steps[-1], seed.values[-1]),
            xytext=(8, 4),
            textcoords="offset points",
            color=line.colour,
            fontsize=8,
        )


def _mark_top(ax: Axes, panel: Panel, top: Top) -> None:
    colour = next(line.colour for line in panel.lines if line.variant == top.variant)
    ax.plot(top.step, top.score, "*", markersize=12, color=colour, markeredgecolor="white", zorder=60)
    ax.annotate(
        top.text,
        (top.step, top.score),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        color=colour,
        fontsize=9,
        fontweight="bold",
        zorder=61,
    )
    ax.margins(y=0.12)


def draw(info: CurvesInfo, fig: Figure) -> None:
    """All panels, two in a row, with title, source and a shared legend."""
    columns = 1 if len(info.panels) == 1 else 2
    rows = -(-len(info.panels) // columns)
    width = 7.2 if columns == 1 else 5.4 * columns
    surround(fig, (width, (4.2 if columns == 1 else 3.3) * rows), (info.title, info.source), info.legend)
    axes = fig.subplots(rows, columns, squeeze=False)
    for index, ax in enumerate(axes.flat):
        if index < len(info.panels):
            draw_panel(info.panels[index], ax, info.y_label if index % columns == 0 else "")
        else:
            ax.remove()
