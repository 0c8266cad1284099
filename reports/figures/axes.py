"""The figures of a sweep over axes: each variant's score against the values of one or two of them, with its 95 %
interval; what each change of an axis does to it; and against the age of mu, how far pi was from it before the updates.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes as Plot
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from cppo_lab import schema
from cppo_lab.analysis.inputs import Axes, AxisPlace, Value
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import FEWEST_RUNS, Estimate, mean_estimate, mean_of, score_limits
from cppo_lab.analysis.statistics.summary import map_noise
from cppo_lab.analysis.statistics.values import Score, by_seed, run_values
from cppo_lab.reports.figures.drawing import (
    HEADING,
    HEAT_MAP,
    PAPER,
    Palette,
    PanelsInfo,
    keys_of,
    panel_grid,
    sized,
)
from cppo_lab.reports.names import display_name, origin, score_name, value_text
from cppo_lab.reports.tables import run_ids_of

LINEAR, LOG, PLACES = "linear", "log", "places"
_LOG_FROM = 8  # ratio of the largest to the smallest value above which the axis is logarithmic
_APART = 0.012  # share of the axis between the intervals of two lines at the same value
_LABEL_WIDTH = 60  # characters of a line below an axis
BY_SCORE, NO_COLOURS = "score", "none"
_PLAIN_TEXT, _OUTLINE = "#222222", "#888888"  # of cells without a colour
_DARK_TEXT, _LIGHT_TEXT = "#10103a", "#fff3b0"  # not greys, which the dark scheme would change


@dataclass(frozen=True)
class Axis:
    """One axis: its configuration key, its values in order, and its scale. On the scale PLACES, value i is at position
    i.
    """

    key: str
    values: tuple[Value, ...]
    scale: str

    def at(self, value: Value) -> float:
        """The position of a value."""
        return float(self.values.index(value)) if self.scale == PLACES else float(value or 0)

    def beside(self, place: float, share: float) -> float:
        """`place` moved by a share of the axis."""
        low, high = min(places := self.ticks[0]), max(places)
        return float(place * (high / low) ** share if self.scale == LOG else place + share * (high - low))

    @property
    def ticks(self) -> tuple[tuple[float, ...], tuple[str, ...]]:
        """The positions of the values, and their labels."""
        return tuple(map(self.at, self.values)), tuple(map(value_text, self.values))


@dataclass(frozen=True)
class AxisLine:
    """The scores of a group along the axis, in percent, or the drift in a third of the response, in nats; `low` and
    `high` are those of `score_limits`. A group without a value on the axis is a single score for the whole axis: `x` is
    empty.
    """

    group: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """One pair of values on a surface: the mean over `runs` runs in percent, and its `score_limits`."""

    first: float
    second: float
    mean: float
    low: float | None
    high: float | None
    runs: int


@dataclass(frozen=True)
class AxisPanel:
    """A model: with one axis its `lines`, if they are of drift those of the group `surface_of`; with two axes the cells
    of the group `surface_of`, and as `lines` the variants that lack a value on one of them. `colours`: what those of
    cells show, BY_SCORE, or NO_COLOURS if the model's cells span no more than noise; None without cells.
    """

    model: str
    surface_of: str
    lines: tuple[AxisLine, ...]
    cells: tuple[Cell, ...] = ()
    colours: str | None = None


@dataclass(frozen=True)
class AxesInfo(PanelsInfo):
    """Everything the figure shows. `noise`: what the colours of a surface do not show, or None."""

    axes: tuple[Axis, ...] = ()
    noise: str | None = field(default=None, metadata=HEADING)

    @property
    def heads(self) -> tuple[str, ...]:
        """Title, source, what the intervals are, and what the colours do not show."""
        return (self.title, self.source, self.around, *([self.noise] if self.noise else []))

    @property
    def around(self) -> str:
        """What the intervals are."""
        counts = {run for panel in self.panels for line in panel.lines for run in line.runs}
        several = {run for run in counts | {c.runs for p in self.panels for c in p.cells} if run > 1}
        if not several:
            return "of one run each, without an interval"
        if several == {FEWEST_RUNS - 1}:
            return "with the range of two seeds"
        few = "; of two seeds, their range" if FEWEST_RUNS - 1 in several else ""
        return f"with the 95 % interval of the mean over seeds{few}"

    @property
    def surface(self) -> bool:
        """Whether it has two axes."""
        return len(self.axes) == 2


def axes_info(board: Scoreboard, axes: Axes, title: str, palette: Palette = PAPER) -> AxesInfo | None:
    """The figure of a sweep with one or two axes of at least two values; None for other sweeps."""
    declared = [place for place in axes.places if place.variant in board.variants]
    by_key = [_axis(key, [place.values[index] for place in declared]) for index, key in enumerate(axes.keys)]
    used = [index for index, axis in enumerate(by_key) if len(axis.values) > 1]
    if len(used) not in (1, 2):
        return None
    shown, is_map = tuple(by_key[index] for index in used), len(used) > 1
    values_of = {place.variant: tuple(place.values[index] for index in used) for place in declared}
    groups = list(dict.fromkeys(place.group for place in declared))
    runs, panels, notes = run_values(board), [], []
    for model in board.models:
        lines, surfaces = [], {}
        for group in groups:
            points, cells = [], []
            for variant in (place.variant for place in declared if place.group == group):
                score = mean_estimate([*by_seed(runs, model, variant, Score.FINAL).values()])
                if score is None:
                    continue
                first, *others = values = values_of[variant]
                if not is_map:
                    points.append((first, score))
                elif None in values:
                    lines.append(_line(variant, shown[0], [(None, score)]))
                else:
                    at, (low, high) = (shown[0].at(first), shown[1].at(*others)), score_limits(score, 100)
                    cells.append(Cell(*at, 100 * score.value, low, high, score.n))
            if cells:
                surfaces[group] = tuple(cells)
            if points:
                lines.append(_line(group, shown[0], points))
        if surfaces:
            variants = [variant for variant, values in values_of.items() if None not in values]
            means = [cell.mean for cells in surfaces.values() for cell in cells]
            colours, note = _noise(board, model, variants, means)
            for name, of_map in surfaces.items():
                panels.append(AxisPanel(model, name, tuple(lines), of_map, colours))
            notes += [f"{model}: {note}"] if note else []
        elif any(line.x for line in lines):
            panels.append(AxisPanel(model, "", tuple(lines)))
    if not panels:
        return None
    drawn = () if is_map else {line.group for panel in panels for line in panel.lines}
    return AxesInfo(
        title,
        origin(board.core),
        run_ids_of(board.runs),
        tuple(panels),
        keys_of(palette.strokes(groups), drawn),
        f"final mean of {score_name(board)} (%)",
        shown,
        " ".join(notes) or None,
    )


_AGE = "rollout.staleness"
DRIFT = {f"{third} third": schema.mismatch_metric("k1", third, before_update=True) for third in schema.THIRDS}


def drift_info(board: Scoreboard, axes: Axes, title: str, palette: Palette = PAPER) -> AxesInfo | None:
    """KL(mu, pi) before a step's first update, by mu's age and third of the response; None for a single age.

    The first steps of a run, whose mu is younger, do not count.
    """
    index = axes.keys.index(_AGE) if _AGE in axes.keys else None
    places = [place for place in axes.places if place.variant in board.variants]
    if index is None or len((axis := _axis(_AGE, (place.values[index] for place in places))).values) < 2:
        return None
    of_names: dict[str, list[AxisPlace]] = {}
    for place in places:
        others = (
            f"{key.rpartition('.')[2]}={value_text(value)}"
            for key, value in zip(axes.keys, place.values, strict=True)
            if key != _AGE and value is not None
        )
        of_names.setdefault(" ".join((place.group, *others)), []).append(place)
    panels = []
    for model, (name, of_name) in product(board.models, of_names.items()):
        lines = []
        for third, metric in DRIFT.items():
            points = []
            for place in of_name:
                rows, age = board.logged(model, place.variant, metric), place.values[index]
                rows = rows[(rows["step"] > age) & np.isfinite(rows["value"])]
                means = rows.groupby("mlflow_id", observed=True)["value"].mean()
                if len(means):
                    points.append((age, mean_of(list(means))))
            if points:
                lines.append(_line(third, axis, points, 1, share=False))
        if lines:
            panels.append(AxisPanel(model, name, tuple(lines)))
    if not panels:
        return None
    keys, label = keys_of(palette.strokes(list(DRIFT)), DRIFT), "KL(mu, pi) before the update (nats)"
    return AxesInfo(title, origin(board.core), run_ids_of(board.runs), tuple(panels), keys, label, (axis,))


def _noise(board: Scoreboard, model: str, variants: Sequence[str], means: Sequence[float]) -> tuple[str, str]:
    """What the colours of a model's cells show, and the sentence for the figure, which may be empty."""
    noise = map_noise(board, model, variants)
    if len(means) < 2:
        return BY_SCORE, ""
    if noise is None:
        return BY_SCORE, "one run per cell shows no noise, so the colours may show nothing else."
    span, source = max(means) - min(means), "the spread over seeds" if noise.seeds else "the answers alone"
    if span > 100 * noise.reach:
        return BY_SCORE, "" if noise.seeds else "one run per cell does not show the spread over seeds."
    return NO_COLOURS, (
        f"the cells span {span:.1f} points, which is within noise, so they are not coloured. The standard error of a "
        f"difference of two cells is {100 * noise.error:.1f} (from {source}); at least 95 % of maps of equal cells "
        f"span {100 * noise.reach:.1f} or less."
    )


def _axis(key: str, values: Iterable[Value]) -> Axis:
    """An axis with its values: numbers sorted, infinity last; other values in declaration order."""
    distinct = tuple(dict.fromkeys(value for value in values if value is not None))
    numbers = sorted(
        float(value) for value in distinct if isinstance(value, int | float) and not isinstance(value, bool)
    )
    if len(numbers) < len(distinct):
        return Axis(key, distinct, PLACES)
    if numbers and math.isinf(numbers[-1]):
        return Axis(key, tuple(numbers), PLACES)
    wide = len(numbers) > 1 and numbers[0] > 0 and numbers[-1] / numbers[0] >= _LOG_FROM
    return Axis(key, tuple(numbers), LOG if wide else LINEAR)


def _line(
    group: str, axis: Axis, scored: Sequence[tuple[Value, Estimate]], unit: float = 100, share: bool = True
) -> AxisLine:
    """The group's scores by value on the axis, in percent, or other quantities in their `unit`, which are no `share`
    and may be negative; without a value, its first score.
    """
    points = [(axis.at(value), score) for value, score in scored if value is not None]
    points.sort(key=lambda point: point[0])
    shown = [score for _, score in points] or [scored[0][1]]
    values = ((unit * score.value, *score_limits(score, unit, share), score.n) for score in shown)
    return AxisLine(group, tuple(x for x, _ in points), *zip(*values, strict=True))


def _draw_lines(info: AxesInfo, panel: AxisPanel, ax: Plot) -> None:
    strokes, axis = {key.label: key.stroke for key in info.keys}, info.axes[0]
    for order, line in enumerate(panel.lines):
        label = display_name(line.group)
        stroke = strokes[label]
        if not line.x:  # no value on this axis: a constant line
            ax.axhline(line.mean[0], linewidth=1.2, zorder=2, **stroke.line())
            if line.low[0] is not None and line.high[0] is not None:
                ax.axhspan(line.low[0], line.high[0], color=stroke.colour, alpha=0.1, linewidth=0)
            continue
        # Side by side, so that no interval hides another.
        places = [axis.beside(x, _APART * (order - (len(panel.lines) - 1) / 2)) for x in line.x]
        style: dict[str, Any] = {"linewidth": 1.4, "zorder": 3 + order}
        ax.plot(places, line.mean, marker="o", markersize=5, label=label, **style, **stroke.line())
        for x, low, high in zip(places, line.low, line.high, strict=True):
            if low is not None and high is not None:
                ax.vlines(x, low, high, color=stroke.colour, **style)
    if axis.scale == LOG:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(*axis.ticks, parse_math=False)
    ax.set_xlabel(axis.key)
    ax.set_ylabel(info.y_label or "")


def _draw_surface(info: AxesInfo, panel: AxisPanel, ax: Plot) -> None:
    """Draw a cell for each pair of values, all of the same size and labelled with the score; light is high. Cells whose
    span is within noise have an outline and no colour.
    """
    from matplotlib import colormaps

    first, second = info.axes
    columns, rows = first.ticks[0], second.ticks[0]
    means = [cell.mean for other in info.panels if other.model == panel.model for cell in other.cells]
    low, high = min(means), max(means)
    plain = panel.colours == NO_COLOURS
    for cell in panel.cells:
        x, y = columns.index(cell.first), rows.index(cell.second)
        share = (cell.mean - low) / (high - low) if high > low else 0.5
        face: Any = colormaps[HEAT_MAP](share)
        colour = _DARK_TEXT if share > 0.55 else _LIGHT_TEXT
        if plain:
            face, colour = "none", _PLAIN_TEXT
        ax.bar(x, 1, 1, y - 0.5, facecolor=face, edgecolor=_OUTLINE, linewidth=int(plain), zorder=2)
        around = "" if cell.low is None else f"\n{cell.low:.1f} to {cell.high:.1f}"
        ax.text(
            x,
            y,
            f"{cell.mean:.1f}{around}",
            color=colour,
            ha="center",
            va="center",
            fontsize=sized(8),
            zorder=3,
        )
    ax.grid(visible=False)
    ax.set_xticks(range(len(columns)), first.ticks[1], parse_math=False)
    ax.set_yticks(range(len(rows)), second.ticks[1], parse_math=False)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(-0.5, len(rows) - 0.5)
    beside = "; ".join(f"{display_name(line.group)} {line.mean[0]:.1f}" for line in panel.lines)
    note = "\n" + textwrap.fill(f"not on both axes: {beside}", _LABEL_WIDTH) if beside else ""
    ax.set_xlabel(first.key + note, parse_math=False)
    ax.set_ylabel(second.key)


def draw(info: AxesInfo, fig: Figure) -> None:
    """All panels, two in a row, with title, source and a legend: a model each, or a group of its runs."""
    size = (7.2, 4.2) if len(info.panels) == 1 else (5.4, 3.6)
    for panel, ax in panel_grid(fig, info, 2, size):
        if panel.surface_of and not info.surface and ax is not fig.axes[0]:  # methods are compared
            ax.sharey(fig.axes[0])
        group = f": {display_name(panel.surface_of)}" if panel.surface_of else ""
        ax.set_title(panel.model + group, parse_math=False)
        (_draw_surface if info.surface else _draw_lines)(info, panel, ax)


def effects_info(
    board: Scoreboard,
    effects: Sequence[tuple[str, str, str, Estimate]],
    title: str,
    palette: Palette = PAPER,
) -> AxesInfo:
    """The effects on a score as (model, group, change, effect): a line for each group, its changes along the axis."""
    axis = Axis("change", tuple(dict.fromkeys(change for _, _, change, _ in effects)), PLACES)
    groups = list(dict.fromkeys(group for _, group, _, _ in effects))
    panels = []
    for model in board.models:
        of_groups = ((group, [e[2:] for e in effects if e[:2] == (model, group)]) for group in groups)
        lines = (_line(group, axis, points, share=False) for group, points in of_groups if points)
        panels.append(AxisPanel(model, "", tuple(lines)))
    keys, label = keys_of(palette.strokes(groups), groups), "effect on the final mean (points)"
    return AxesInfo(title, origin(board.core), run_ids_of(board.runs), tuple(panels), keys, label, (axis,))


def draw_effects(info: AxesInfo, fig: Figure) -> None:
    """A row for each change, with the effect and the interval of each group."""
    strokes, (places, labels) = {key.label: key.stroke for key in info.keys}, info.axes[0].ticks
    height = 1.0 + 0.16 * len(labels) * max(2, len(info.keys))
    shown = info if len(info.keys) > 1 else replace(info, keys=())
    for panel, ax in panel_grid(fig, shown, 2, (7.2, height)):
        ax.set_title(panel.model, parse_math=False)
        ax.axvline(0, color=_OUTLINE, linewidth=0.8, zorder=1)
        for order, line in enumerate(panel.lines):
            stroke = strokes[display_name(line.group)]
            rows = [x + 0.7 * ((order + 0.5) / len(panel.lines) - 0.5) for x in line.x]
            ax.plot(line.mean, rows, stroke.marker or "o", markersize=4, color=stroke.colour, zorder=3)
            for row, low, high in zip(rows, line.low, line.high, strict=True):
                if low is not None and high is not None:
                    ax.hlines(row, low, high, color=stroke.colour, linewidth=1.4, zorder=2)
        ax.set_yticks(places, labels, parse_math=False)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.set_xlabel(info.y_label or "")
