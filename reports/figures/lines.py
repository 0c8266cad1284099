"""The line of one variant in a validation panel: its runs, their mean with its band, each run's selected step, and its
collapses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from cppo_lab import schema
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import GAPS, RunScore, SelectionState
from cppo_lab.analysis.statistics.bands import band
from cppo_lab.reports.names import display_name, in_order
from cppo_lab.rules import Stroke

LABEL_SHARE = 0.2  # share of the panel's width for the word "collapse", a conservative estimate
HEADROOM = 1.14  # factor above the highest value, for the star's number
LABEL_POINTS = 10  # height of a line of labels
# Runs of a variant that are drawn individually; with more, only their mean and its band are legible.
FEW = 50

MOST_VARIANTS = 30  # in one figure; more cannot be distinguished, and would overfill the legend

Curve = tuple[NDArray[np.int64], NDArray[np.float64]]  # steps and scores in percent


@dataclass(frozen=True)
class SeedLine:
    """One run: its steps and scores (percent) inside its window; `best` is its selected (step, score)."""

    run_id: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    best: tuple[int, float] | None
    collapsed: bool


@dataclass(frozen=True)
class Line:
    """One variant: its runs, and the mean of the finished ones with its band at their common steps. `band` is the kind
    of band (see `statistics.bands`).

    If no run is finished, the unfinished ones are used. A run that collapsed ends early, and so does the mean: the
    later scores of the others would flatter an unstable method.
    """

    variant: str
    label: str
    stroke: Stroke
    seeds: tuple[SeedLine, ...]
    steps: tuple[int, ...]
    band: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def colour(self) -> str:
        """The colour of the line, for a page."""
        return self.stroke.colour


@dataclass(frozen=True)
class CollapseLabel:
    """The word "collapse" at the last cross of a variant: `level` lines of text above it, to its left or right."""

    variant: str
    colour: str
    step: int
    value: float
    level: int
    to_the_left: bool


def drawn_variants(board: Scoreboard) -> tuple[str, ...]:
    """The variants that a figure shows, in the order of `in_order`: all, or the best on some model."""
    variants = in_order(board.variants)
    if len(variants) <= MOST_VARIANTS:
        return variants
    best: dict[str, float] = {}
    for (_, variant), cell in board.cells.items():
        if cell.score is not None:
            best[variant] = max(best.get(variant, 0.0), cell.score.mean)
    kept = set(sorted(variants, key=lambda name: -best.get(name, -1.0))[:MOST_VARIANTS])
    return tuple(name for name in variants if name in kept)


def left_out_note(board: Scoreboard) -> str:
    """A note on the variants that `drawn_variants` leaves out, to append to a figure's source; empty if none."""
    count = len(board.variants)
    return f"; the best {MOST_VARIANTS} of {count} variants" if count > MOST_VARIANTS else ""


def line_of(
    board: Scoreboard, runs: Sequence[RunScore], stroke: Stroke, benchmark: str = schema.MEAN
) -> Line | None:
    """The runs of one cell on one benchmark or on their mean; None if none of them has a validation inside its
    window.
    """
    curves: list[tuple[RunScore, Curve]] = []
    for run in runs:
        found = board.curves.of(run.mlflow_id or "")
        steps, values = found.index.to_numpy(), found[benchmark].to_numpy(dtype=np.float64) * 100
        inside = ~np.isnan(values) if run.t_stop is None else ~np.isnan(values) & (steps <= run.t_stop)
        if inside.any():
            curves.append((run, (steps[inside], values[inside])))
    if not curves:
        return None
    finished = [curve for run, curve in curves if run.state not in GAPS]
    together = _together(finished or [curve for _, curve in curves])
    variant, around = runs[0].variant, band(together, 0, 100)
    return Line(
        variant=variant,
        label=display_name(variant),
        stroke=stroke,
        seeds=tuple(_seed_line(run, curve, benchmark) for run, curve in curves),
        steps=tuple(int(step) for step in together.index),
        band=around.kind,
        mean=around.mean,
        low=around.low,
        high=around.high,
    )


def _together(curves: Sequence[Curve]) -> pd.DataFrame:
    """One row per step that all curves have, one column per curve."""
    steps = curves[0][0]
    if all(np.array_equal(steps, other) for other, _ in curves[1:]):  # the usual case
        return pd.DataFrame(np.stack([values for _, values in curves], axis=1), index=steps)
    return pd.concat([pd.Series(values, index=steps) for steps, values in curves], axis=1, join="inner")


def _seed_line(run: RunScore, curve: Curve, benchmark: str) -> SeedLine:
    choice = run.choice
    score = choice.score if benchmark == schema.MEAN else choice.components.get(benchmark)
    return SeedLine(
        run_id=run.run_id or "",
        steps=tuple(curve[0].tolist()),
        values=tuple(curve[1].tolist()),
        best=None if choice.step is None or score is None else (choice.step, 100 * score),
        collapsed=run.state is SelectionState.COLLAPSE,
    )


def collapse_labels(lines: Sequence[Line]) -> tuple[CollapseLabel, ...]:
    """One label for each variant with a collapsed run, placed without overlaps."""
    last = max((seed.steps[-1] for line in lines for seed in line.seeds), default=1) or 1
    fallen = []
    for line in lines:
        ends = [(seed.steps[-1], seed.values[-1]) for seed in line.seeds if seed.collapsed]
        if ends:
            fallen.append((*max(ends), line))
    placed: list[tuple[CollapseLabel, float]] = []
    for step, value, line in sorted(fallen, key=lambda entry: entry[0]):
        left = step > (1 - LABEL_SHARE) * last
        start = step / last - (LABEL_SHARE if left else 0.0)
        taken = {other.level for other, begin in placed if abs(begin - start) < LABEL_SHARE}
        level = next(number for number in range(len(placed) + 1) if number not in taken)
        placed.append((CollapseLabel(line.variant, line.colour, step, value, level, left), start))
    return tuple(label for label, _ in placed)


def draw_lines(ax: Axes, lines: Sequence[Line]) -> None:
    """Draw all lines of a panel, the last one on top, and the labels of collapses.

    The y axis is scaled to the lines: a wide band around a collapse is cut off, so that it does not flatten the others.
    """
    for order, line in enumerate(lines):
        draw_line(ax, line, 3 + order)
    highest = max((max(seed.values) for line in lines for seed in line.seeds), default=0.0)
    ax.set_ylim(0, HEADROOM * highest or 1)
    for label in collapse_labels(lines):
        ax.annotate(
            "collapse",
            (label.step, label.value),
            xytext=(-8 if label.to_the_left else 8, 4 + LABEL_POINTS * label.level),
            textcoords="offset points",
            ha="right" if label.to_the_left else "left",
            color=label.colour,
            fontsize=8,
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
    if line.band:
        ax.fill_between(line.steps, line.low, line.high, color=line.colour, alpha=0.12, linewidth=0, zorder=2)
    if several:
        for seed in shown:
            ax.plot(seed.steps, seed.values, color=line.colour, linewidth=0.5, alpha=0.5, zorder=front)
    ax.plot(line.steps, line.mean, zorder=front, linewidth=1.6 if several else 1.2, **line.stroke.marked())
    for seed in shown:
        if seed.best is not None:
            ax.plot(
                *seed.best, "o", markersize=4.5, color=line.colour, markeredgecolor="white", zorder=front + 20
            )
    for seed in crossed:
        end = seed.steps[-1], seed.values[-1]
        ax.plot(*end, "X", markersize=7, color=line.colour, zorder=front + 20, clip_on=False)
