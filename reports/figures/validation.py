"""Validation curves, a panel per model and a line per variant: its runs, their mean with its band, each run's selected
step, and its collapses; and the share of its runs that have not collapsed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab import schema
from cppo_lab.analysis.scoring import RunScore, Scoreboard, SelectionState
from cppo_lab.analysis.statistics.collapse import CellCollapse
from cppo_lab.analysis.statistics.estimate import Band, band
from cppo_lab.reports.figures.drawing import (
    APPEARANCE,
    PAPER,
    Info,
    Key,
    Palette,
    fill,
    head_texts,
    keys_of,
    panel_grid,
    sized,
    step_axis,
)
from cppo_lab.reports.names import display_name, in_order, origin, points, score_name
from cppo_lab.reports.tables import run_ids_of
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
    stroke: Stroke = field(metadata=APPEARANCE)
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
    seeds, curves = list[SeedLine](), dict[bool, list[pd.Series]]({True: [], False: []})
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


def _collapse_labels(lines: Sequence[Line]) -> Iterator[tuple[Line, int, float, int, bool]]:
    """The word "collapse" at the last cross of each variant with a collapsed run, placed without overlaps: (line, step,
    value, how many lines of text above it, whether to its left).
    """
    last = max((seed.steps[-1] for line in lines for seed in line.seeds), default=1) or 1
    fallen, begins = [], set[tuple[int, float]]()
    for line in lines:
        ends = [(seed.steps[-1], seed.values[-1]) for seed in line.seeds if seed.collapsed]
        if ends:
            fallen.append((*max(ends), line))
    for step, value, line in sorted(fallen, key=lambda entry: entry[0]):
        left = step > (1 - _LABEL_SHARE) * last
        start = step / last - (_LABEL_SHARE if left else 0.0)
        taken = {level for level, begin in begins if abs(begin - start) < _LABEL_SHARE}
        level = next(number for number in range(len(begins) + 1) if number not in taken)
        begins.add((level, start))
        yield line, step, value, level, left


def draw_lines(ax: Axes, lines: Sequence[Line]) -> None:
    """Draw all lines of a panel, the last on top, and the labels of collapses.

    The y axis is scaled to the lines: a wide band around a collapse is cut off, so that it does not flatten the others.
    """
    for order, line in enumerate(lines):
        draw_line(ax, line, 3 + order)
    highest = max((max(seed.values) for line in lines for seed in line.seeds), default=0.0)
    ax.set_ylim(0, _HEADROOM * highest or 1)
    for line, step, value, level, left in _collapse_labels(lines):
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
    dot: dict[str, Any] = {"markersize": 4.5, "markeredgecolor": "white", "zorder": front + 20}
    for seed in shown:
        if seed.best_step is not None and seed.best is not None:
            ax.plot(seed.best_step, seed.best, "o", color=line.stroke.colour, **dot)
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
    """One model; `top` is None if no cell competes (collapsed and provisional ones do not)."""

    model: str
    t_stop: int | None
    lines: tuple[Line, ...]
    top: Top | None


@dataclass(frozen=True)
class CurvesInfo(Info):
    """Everything the figure shows. `source` states the origin of the numbers and is part of the figure."""

    y_label: str
    panels: tuple[Panel, ...]
    keys: tuple[Key, ...]


def curves_info(
    board: Scoreboard,
    title: str,
    models: Sequence[str] | None = None,
    aliases: Mapping[str, str] = MappingProxyType({}),
    palette: Palette = PAPER,
) -> CurvesInfo:
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
        panels.append(Panel(model, max(stops, default=None), lines, _top(board, model, lines)))
    return CurvesInfo(
        title=title,
        source=source_of(board),
        y_label=f"mean {score_name(board)} (%)",
        panels=tuple(panels),
        keys=keys_of(strokes, {line.variant for panel in panels for line in panel.lines}),
        run_ids=run_ids_of(runs),
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


def _top(board: Scoreboard, model: str, lines: Sequence[Line]) -> Top | None:
    competing = []
    for line in reversed(lines):  # of ties, the line drawn on top
        if (score_of_cell := board.cells[model, line.variant].ranked) is not None:
            competing.append((score_of_cell.mean, line))
    if not competing:
        return None
    mean, line = max(competing, key=lambda entry: entry[0])
    score, step = max((seed.best, -(seed.best_step or 0)) for seed in line.seeds if seed.best is not None)
    number = points(mean)  # the same number as in the table
    return Top(line.variant, -step, score, number if len(line.seeds) == 1 else f"mean {number}")


def draw_panel(panel: Panel, ax: Axes, y_label: str = "") -> None:
    """Draw a model: thin seed lines with their band, the mean line, a dot at each selected step, a star at the best
    run.
    """
    draw_lines(ax, panel.lines)
    if (top := panel.top) is not None:
        colour = next(line.stroke.colour for line in panel.lines if line.variant == top.variant)
        last = max(seed.steps[-1] for line in panel.lines for seed in line.seeds)
        place = (top.step, top.score)
        ax.plot(*place, "*", markersize=12, color=colour, markeredgecolor="white", zorder=60)
        side = "right" if top.step > 0.9 * last else "center"
        style: dict[str, Any] = {"color": colour, "fontsize": sized(9), "fontweight": "bold", "zorder": 61}
        ax.annotate(top.text, place, xytext=(0, 7), textcoords="offset points", ha=side, **style)
    stop = "" if panel.t_stop is None else f" (T_stop = {panel.t_stop})"
    ax.set_title(panel.model + stop, loc="left", parse_math=False)
    step_axis(ax)
    ax.set_ylabel(y_label)


def draw(info: CurvesInfo, fig: Figure, in_row: int = 2) -> None:
    """All panels, `in_row` in a row, with title and source and a shared legend."""
    columns = min(in_row, len(info.panels))
    size = {1: (7.2, 4.2), 2: (5.4, 3.3)}.get(columns, (3.9, 3.3))
    for panel, ax in panel_grid(fig, info.panels, in_row, size, head_texts(info), info.keys):
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
    stroke: Stroke = field(metadata=APPEARANCE)
    runs: int
    steps: tuple[int, ...]
    surviving: tuple[float, ...]
    at_risk: tuple[int, ...]


@dataclass(frozen=True)
class SurvivalPanel:
    """One model."""

    model: str
    lines: tuple[SurvivalLine, ...]


@dataclass(frozen=True)
class SurvivalInfo(Info):
    """Everything the figure shows."""

    panels: tuple[SurvivalPanel, ...]
    keys: tuple[Key, ...]


def survival_info(
    board: Scoreboard,
    cells: Mapping[tuple[str, str], CellCollapse],
    title: str,
    palette: Palette = PAPER,
) -> SurvivalInfo | None:
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
            panels.append(SurvivalPanel(model, tuple(lines)))
    if not panels:
        return None
    keys = keys_of(strokes, {line.variant for panel in panels for line in panel.lines})
    return SurvivalInfo(title, source_of(board), run_ids_of(board.runs), tuple(panels), keys)


def draw_survival(info: SurvivalInfo, fig: Figure) -> None:
    """All panels, two in a row, with title and source and a shared legend. Coinciding lines are shifted slightly."""
    for panel, ax in panel_grid(fig, info.panels, 2, (5.4, 3.3), head_texts(info), info.keys):
        for order, line in enumerate(panel.lines):
            heights = [height - _APART * order for height in line.surviving]
            style = line.stroke.marked() | {"linewidth": 1.4, "zorder": 3 + order}
            ax.step(line.steps, heights, where="post", **style)
        ax.set_ylim(-6, 104)
        ax.set_ylabel("runs not collapsed (%)")
        ax.set_title(panel.model, loc="left", parse_math=False)
        step_axis(ax)
