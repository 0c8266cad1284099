"""Figure 4: validation curves, one panel per model, one line per variant, the selected step of every run
marked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cppo_lab import schema
from cppo_lab.analysis.audit import percent, round_half_up
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore, State
from cppo_lab.reports.figures.style import colours
from cppo_lab.reports.names import display_name, in_order, origin
from cppo_lab.reports.tables import core_of

LEGEND_COLUMNS = 4


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
    """One variant: its runs, and their mean with the lowest and the highest at the steps that all of them
    have.
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
class Panel:
    """One model. `top` is the highest selected mean of a finished, not collapsed run: (variant, step,
    score).
    """

    model: str
    t_stop: int | None
    lines: tuple[Line, ...]
    top: tuple[str, int, float] | None


@dataclass(frozen=True)
class CurvesInfo:
    """Everything the figure shows. `source` says where the numbers come from; it is part of the figure."""

    title: str
    source: str
    y_label: str
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, str], ...]  # (label, colour)
    run_ids: tuple[str, ...]


def curves_info(board: Scoreboard, title: str) -> CurvesInfo:
    """The figure of a scored sweep."""
    variants = in_order(board.variants)
    palette = colours(variants)
    panels = []
    for model in board.models:
        lines = [
            _line(
                board, [run for run in board.runs if (run.model, run.variant) == (model, name)], palette[name]
            )
            for name in variants
            if (model, name) in board.cells
        ]
        stops = [run.t_stop for run in board.runs if run.model == model and run.t_stop is not None]
        kept = tuple(line for line in lines if line.seeds)
        panels.append(Panel(model, max(stops, default=None), kept, _top(kept)))
    return CurvesInfo(
        title=title,
        source=origin(core_of(board)),
        y_label=f"mean Avg@{board.curves.samples} (%)",
        panels=tuple(panels),
        legend=tuple((display_name(name), palette[name]) for name in variants),
        run_ids=tuple(sorted({run.run_id for run in board.runs if run.run_id is not None})),
    )


def _line(board: Scoreboard, runs: Sequence[RunScore], colour: str) -> Line:
    seeds, series = [], []
    for run in runs:
        curve = board.curves.of(run.mlflow_id or "")[schema.MEAN].dropna() * 100
        curve = curve if run.t_stop is None else curve[curve.index <= run.t_stop]
        if curve.empty:
            continue
        choice = run.choice
        best = None if choice.step is None or choice.score is None else (choice.step, 100 * choice.score)
        series.append(curve)
        seeds.append(
            SeedLine(
                run_id=run.run_id or "",
                steps=tuple(int(step) for step in curve.index),
                values=tuple(float(value) for value in curve),
                best=best,
                collapsed=run.state is State.COLLAPSE,
            )
        )
    together = pd.concat(series, axis=1, join="inner") if series else pd.DataFrame()
    variant = runs[0].variant
    return Line(
        variant=variant,
        label=display_name(variant),
        colour=colour,
        seeds=tuple(seeds),
        steps=tuple(int(step) for step in together.index),
        mean=tuple(together.mean(axis=1)),
        low=tuple(together.min(axis=1)),
        high=tuple(together.max(axis=1)),
    )


def _top(lines: Sequence[Line]) -> tuple[str, int, float] | None:
    """The best selected score of the panel among runs that did not collapse."""
    bests = [
        (seed.best[1], -seed.best[0], line.variant)
        for line in lines
        for seed in line.seeds
        if seed.best is not None and not seed.collapsed
    ]
    if not bests:
        return None
    score, step, variant = max(bests)
    return (variant, -step, score)


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
        _mark_top(ax, panel)
    if titled:
        stop = "" if panel.t_stop is None else f" (T_stop = {panel.t_stop})"
        ax.set_title(panel.model + stop, loc="left", parse_math=False)
    ax.set_xlabel("training step")
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


def _mark_top(ax: Axes, panel: Panel) -> None:
    variant, step, score = panel.top
    colour = next(line.colour for line in panel.lines if line.variant == variant)
    ax.plot(
        step, score, "*", markersize=12, color=colour, markeredgecolor="white", markeredgewidth=0.7, zorder=60
    )
    ax.annotate(
        str(round_half_up(percent(score / 100))),  # the very number of the table
        (step, score),
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
    """All panels with a shared legend below and the source under the title."""
    columns = 1 if len(info.panels) == 1 else 2
    rows = -(-len(info.panels) // columns)
    legend_rows = -(-len(info.legend) // LEGEND_COLUMNS)
    fig.set_size_inches(5.4 * columns, 3.3 * rows + 0.7 + 0.22 * legend_rows)
    fig.set_layout_engine("constrained")
    axes = fig.subplots(rows, columns, squeeze=False)
    for index, ax in enumerate(axes.flat):
        if index < len(info.panels):
            draw_panel(info.panels[index], ax, info.y_label if index % columns == 0 else "")
        else:
            ax.remove()
    fig.suptitle(f"{info.title}\n{info.source}", fontsize=10, parse_math=False)
    handles = [Line2D([], [], color=colour, linewidth=2.2) for _, colour in info.legend]
    legend = fig.legend(
        handles, [label for label, _ in info.legend], loc="outside lower center", ncols=LEGEND_COLUMNS
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
