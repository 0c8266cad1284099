"""The line of one variant in a validation panel: its runs, their mean and range, and where each run was selected."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import GAPS, RunScore, State
from cppo_lab.reports.names import display_name


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

    Where no run is finished, the unfinished ones stand in. A run that collapsed ends early, and with it the mean:
    what the others did afterwards would flatter an unstable method.
    """

    variant: str
    label: str
    colour: str
    seeds: tuple[SeedLine, ...]
    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def line_of(
    board: Scoreboard, runs: Sequence[RunScore], colour: str, benchmark: str = schema.MEAN
) -> Line | None:
    """The runs of one cell on one benchmark or on their mean; None if none of them has a validation inside its
    window.
    """
    curves: list[tuple[RunScore, pd.Series]] = []
    for run in runs:
        curve = board.curves.of(run.mlflow_id or "")[benchmark].dropna() * 100
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
        seeds=tuple(_seed_line(run, curve, benchmark) for run, curve in curves),
        steps=tuple(int(step) for step in together.index),
        mean=tuple(together.mean(axis=1)),
        low=tuple(together.min(axis=1)),
        high=tuple(together.max(axis=1)),
    )


def _seed_line(run: RunScore, curve: pd.Series, benchmark: str) -> SeedLine:
    choice = run.choice
    score = choice.score if benchmark == schema.MEAN else choice.components.get(benchmark)
    return SeedLine(
        run_id=run.run_id or "",
        steps=tuple(int(step) for step in curve.index),
        values=tuple(float(value) for value in curve),
        best=None if choice.step is None or score is None else (choice.step, 100 * score),
        collapsed=run.state is State.COLLAPSE,
    )


def draw_line(ax: Axes, line: Line, front: int) -> None:
    """Thin seed lines with their band, the mean line, a dot at each selected step, a cross where a run collapsed."""
    several = len(line.seeds) > 1
    if several:
        ax.fill_between(line.steps, line.low, line.high, color=line.colour, alpha=0.12, linewidth=0, zorder=2)
        for seed in line.seeds:
            ax.plot(seed.steps, seed.values, color=line.colour, linewidth=0.5, alpha=0.5, zorder=front)
    ax.plot(line.steps, line.mean, color=line.colour, zorder=front, linewidth=1.6 if several else 1.2)
    for seed in line.seeds:
        if seed.best is not None:
            ax.plot(
                *seed.best, "o", markersize=4.5, color=line.colour, markeredgecolor="white", zorder=front + 20
            )
    fallen = [(seed.steps[-1], seed.values[-1]) for seed in line.seeds if seed.collapsed]
    for place in fallen:
        ax.plot(*place, "X", markersize=7, color=line.colour, zorder=front + 20, clip_on=False)
    if fallen:
        ax.annotate(
            "collapse",
            max(fallen),
            xytext=(8, 4),
            textcoords="offset points",
            color=line.colour,
            fontsize=8,
        )
