"""The results of a search over its space: objective values by parameter, over a pair of parameters, and against each
other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.tri import Triangulation

from cppo_lab.analysis.search import (
    SearchResult,
    Space,
    Value,
    by_importance,
    complete_trials,
    front_of,
    pair_points,
    pareto_front,
    ranking,
    slice_points,
    value_of,
)
from cppo_lab.reports.figures.data import columns
from cppo_lab.reports.figures.drawing import legend_below, sized
from cppo_lab.reports.names import objective_name, value_text
from cppo_lab.rules import METHOD_COLOURS

SURFACE = 10  # complete trials at least, for a surface
MOST_TICKS = 7
MAP = "viridis"
BEST = "#E0352B"  # of a star that stands out on the colour map
SHIPPED = "#282828"
MARGIN = (-0.05, 1.05)


@dataclass(frozen=True)
class Scale:
    """An axis over the space of one parameter, from 0 to 1: `ticks` are (place, text)."""

    label: str
    ticks: tuple[tuple[float, str], ...] = field(metadata=columns("at", "text"))


def scale_of(space: Space) -> Scale:
    """The axis of a parameter: logarithmic if so declared; choices at equal distances."""
    if space.choices:
        places = [(space.scaled(choice), value_text(choice)) for choice in space.choices]
        return Scale(space.name, tuple(places))
    ticks = _ticks(space)
    label = space.name + (" (log scale)" if space.log else "")
    return Scale(label, tuple((space.scaled(tick), f"{tick:g}") for tick in ticks))


def _ticks(space: Space) -> list[float]:
    if not space.log:
        found = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(space.low, space.high)
        return [float(tick) for tick in found if space.holds(float(tick))] or [space.low]
    for leading in ((1.0, 2.0, 5.0), (1.0,)):
        found = LogLocator(subs=leading, numticks=100).tick_values(space.low, space.high)
        kept = [float(tick) for tick in found if space.holds(float(tick))]
        if 2 <= len(kept) <= MOST_TICKS:
            return kept
    return [space.low, space.high]


@dataclass(frozen=True)
class SliceInfo:
    """One objective by one parameter. `points`: (place on the scale, percent, number of the trial). `shipped`: the
    position of the configuration's default, None if it is outside the space or unknown.
    """

    objective: str
    scale: Scale
    points: tuple[tuple[float, float, int], ...] = field(metadata=columns("at", "value", "trial"))
    best: int | None
    shipped: float | None


def slice_info(result: SearchResult, space: Space, index: int, shipped: Mapping[str, Value]) -> SliceInfo:
    """Objective number `index` by the parameter of `space`."""
    points = slice_points(result, space.name, index)
    return SliceInfo(
        objective=result.objectives[index],
        scale=scale_of(space),
        points=tuple((space.scaled(point.x), 100 * point.value, point.number) for point in points),
        best=_single_best(result),
        shipped=_place(space, shipped),
    )


def draw_slice(info: SliceInfo, ax: Axes) -> None:
    """Draw a dot for each trial, coloured by its number."""
    x, y, number = zip(*info.points, strict=True)
    drawn = ax.scatter(x, y, c=number, cmap=MAP, s=26, edgecolors="white", linewidths=0.5, zorder=3)
    ax.figure.colorbar(drawn, ax=ax, label="trial", ticks=MaxNLocator(5, integer=True))
    for place, value, one in info.points:
        if one == info.best:
            ax.plot(
                place, value, "*", markersize=13, color=BEST, markeredgecolor="white", zorder=5, label="best"
            )
    if info.shipped is not None:
        ax.axvline(info.shipped, color=SHIPPED, linewidth=1, linestyle="--", label="as shipped")
    _label_x(ax, info.scale)
    ax.margins(y=0.1)
    ax.set_ylabel(f"{objective_name(info.objective)} (%)")
    legend_below(ax)


@dataclass(frozen=True)
class SensitivityInfo:
    """One objective over two parameters. `points`: (x, y, percent) with positions on the scales, one per distinct pair
    (the mean if trials share one). `surface`: whether the points suffice for an interpolated surface.
    """

    objective: str
    x: Scale
    y: Scale
    points: tuple[tuple[float, float, float], ...] = field(metadata=columns("x_at", "y_at", "value"))
    surface: bool
    best: tuple[float, float, int] | None = field(metadata=columns("x_at", "y_at", "trial"))
    shipped: tuple[float, float] | None = field(metadata=columns("x_at", "y_at"))


def sensitivity_info(result: SearchResult, shipped: Mapping[str, Value]) -> SensitivityInfo | None:
    """The two most important parameters, intervals before choices; None with a single parameter."""
    spaces = sorted(by_importance(result), key=lambda space: bool(space.choices))[:2]
    if len(spaces) < 2:
        return None
    x, y = sorted(spaces, key=lambda space: list(result.parameters).index(space))
    together: dict[tuple[float, float], list[float]] = {}
    for point in pair_points(result, x.name, y.name):
        together.setdefault((x.scaled(point.x), y.scaled(point.y)), []).append(100 * point.value)
    points = tuple((*place, math.fsum(values) / len(values)) for place, values in sorted(together.items()))
    number = _single_best(result)
    best = None
    if number is not None:
        params = result.trial(number).params
        best = (x.scaled(params[x.name]), y.scaled(params[y.name]), number)
    places = (_place(x, shipped), _place(y, shipped))
    enough = len(complete_trials(result)) >= SURFACE and not (x.choices or y.choices)
    return SensitivityInfo(
        objective=result.objectives[0],
        x=scale_of(x),
        y=scale_of(y),
        points=points,
        surface=enough and _spans_a_surface(points),
        best=best,
        shipped=(places[0], places[1]) if places[0] is not None and places[1] is not None else None,
    )


def _spans_a_surface(points: tuple[tuple[float, float, float], ...]) -> bool:
    """Whether the points are not collinear and the values are not all equal."""
    places = np.array([point[:2] for point in points])
    values = [point[2] for point in points]
    flat = np.linalg.matrix_rank(places - places.mean(axis=0), tol=1e-6) < 2
    return not flat and max(values) > min(values)


def draw_sensitivity(info: SensitivityInfo, ax: Axes) -> None:
    """Draw the trials coloured by value, on a surface that is linear between them and ends at their convex hull."""
    x, y, value = (np.array(part) for part in zip(*info.points, strict=True))
    shade = Normalize(value.min(), value.max())
    if info.surface:
        levels = MaxNLocator(9).tick_values(value.min(), value.max())
        ax.tricontourf(Triangulation(x, y), value, levels=levels, cmap=MAP, norm=shade, alpha=0.75, zorder=1)
    drawn = ax.scatter(
        x, y, c=value, cmap=MAP, norm=shade, s=34, edgecolors="white", linewidths=0.9, zorder=3
    )
    ax.figure.colorbar(drawn, ax=ax, label=f"{objective_name(info.objective)} (%)")
    if info.best is not None:
        x_best, y_best, number = info.best
        ax.scatter(
            x_best, y_best, 190, BEST, marker="*", edgecolors="white", zorder=5, label=f"best: trial {number}"
        )
    if info.shipped is not None:
        ax.plot(
            *info.shipped,
            "P",
            markersize=9,
            color=SHIPPED,
            markeredgecolor="white",
            zorder=4,
            label="as shipped",
        )
    _label_x(ax, info.x)
    ax.set_yticks([place for place, _ in info.y.ticks], [text for _, text in info.y.ticks])
    ax.set_ylim(MARGIN)
    ax.set_ylabel(info.y.label, parse_math=False)
    _plain_ticks(ax)
    legend_below(ax)


def _single_best(result: SearchResult) -> int | None:
    """The number of the best trial of a search with one objective."""
    ranked = ranking(result)
    return ranked[0].number if ranked and len(result.objectives) == 1 else None


def _place(space: Space, shipped: Mapping[str, Value]) -> float | None:
    value = shipped.get(space.name)
    return space.scaled(value) if space.name in shipped and space.holds(value) else None


def _label_x(ax: Axes, scale: Scale) -> None:
    ax.set_xticks([place for place, _ in scale.ticks], [text for _, text in scale.ticks])
    ax.set_xlim(MARGIN)
    ax.set_xlabel(scale.label, parse_math=False)
    _plain_ticks(ax)


def _plain_ticks(ax: Axes) -> None:
    """Show names literally, including dollar signs."""
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_parse_math(False)


NUMBERED = 12  # trials of the front whose numbers fit


@dataclass(frozen=True)
class ParetoInfo:
    """The first two objectives of the complete trials, in percent: (x, y, number). `line`: the front of these two, from
    left to right. `front`: numbers of the trials that are non-dominated over all objectives.
    """

    objectives: tuple[str, str]
    points: tuple[tuple[float, float, int], ...] = field(metadata=columns("first", "second", "trial"))
    line: tuple[tuple[float, float], ...] = field(metadata=columns("first", "second"))
    front: tuple[int, ...]


def pareto_info(result: SearchResult) -> ParetoInfo:
    """The info of a search with several objectives."""
    trials = complete_trials(result)
    points = tuple((100 * value_of(trial, 0), 100 * value_of(trial, 1), trial.number) for trial in trials)
    places = [point[:2] for point in points]
    line = sorted({places[index] for index in pareto_front(places)})
    return ParetoInfo((result.objectives[0], result.objectives[1]), points, tuple(line), front_of(result))


def draw_pareto(info: ParetoInfo, ax: Axes) -> None:
    """Draw the front connected and the dominated trials in grey."""
    ours = METHOD_COLOURS["cppo"]
    grey = [point for point in info.points if point[2] not in info.front]
    front = [point for point in info.points if point[2] in info.front]
    if grey:
        places = zip(*(point[:2] for point in grey), strict=True)
        ax.plot(*places, "o", color="#B4BAC2", markersize=5, label="dominated")
    ax.plot(*zip(*info.line, strict=True), "-", color=ours, linewidth=1.1, alpha=0.7, zorder=2)
    places = zip(*(point[:2] for point in front), strict=True)
    ax.plot(*places, "o", color=ours, markersize=6.5, label="Pareto front")
    named = {point[:2]: point[2] for point in reversed(front)}  # the first number among equal points
    for place, number in sorted(named.items())[:NUMBERED]:
        ax.annotate(
            str(number), place, xytext=(4, 4), textcoords="offset points", fontsize=sized(8), color=ours
        )
    ax.margins(0.1)
    ax.set_xlabel(f"{objective_name(info.objectives[0])} (%)")
    ax.set_ylabel(f"{objective_name(info.objectives[1])} (%)")
    legend_below(ax)
