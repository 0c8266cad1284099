"""The drawings of the page: how far each figure is from its target, and how times and memory grow with the runs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.summary.form import Figure, Result
from benchmarks.summary.page import number
from cppo_lab.reports.figures.drawing import figure_style, save
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.rules import METHOD_COLOURS

DPI = 110
MET, MISSED = METHOD_COLOURS["cppo"], METHOD_COLOURS["dppo"]
SIZED = re.compile(r"(.+)_(\d+)")
GROWTH_UNITS = {"s": "seconds", "MiB": "MiB"}


@dataclass(frozen=True)
class Bar:
    """A figure beside its target: `times` it is better than it must be; below 1 the target is missed."""

    label: str
    times: float


@dataclass(frozen=True)
class Curve:
    """How a figure grows; `points` are (size, value)."""

    label: str
    unit: str
    points: tuple[tuple[int, float], ...]


def bars(results: Sequence[Result]) -> list[Bar]:
    """Every figure above 0 with one target that was measured."""
    found = []
    for result in results:
        for name, figure in result.figures.items():
            times = _times_better(figure)
            if times is not None:
                found.append(Bar(f"{result.name}: {name}", times))
    return found


def _times_better(figure: Figure) -> float | None:
    if figure.value is None or figure.value <= 0:
        return None
    if figure.at_most is not None and figure.at_least is None:
        return figure.at_most / figure.value
    if figure.at_least is not None and figure.at_most is None and figure.at_least > 0:
        return figure.value / figure.at_least
    return None


def curves(results: Sequence[Result]) -> list[Curve]:
    """Of figures `<name>_<size>` in seconds or MiB, those with two sizes or more."""
    grown: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for result in results:
        for name, figure in result.figures.items():
            sized = SIZED.fullmatch(name)
            if sized and figure.value is not None and figure.value > 0 and figure.unit in GROWTH_UNITS:
                grown.setdefault((f"{result.name}: {sized[1]}", figure.unit), []).append(
                    (int(sized[2]), figure.value)
                )
    return [Curve(label, unit, tuple(sorted(at))) for (label, unit), at in grown.items() if len(at) > 1]


def drawings(results: Sequence[Result]) -> dict[str, tuple[str, bytes]]:
    """File name -> what it shows, and the PNG."""
    found = {}
    if shown := bars(results):
        found["targets.png"] = (
            "Each figure as a multiple of its target; left of the line the target is missed.",
            _png(lambda fig: draw_bars(shown, fig), (8.0, 1.0 + 0.2 * len(shown))),
        )
    if grown := curves(results):
        found["growth.png"] = (
            "Time and peak memory as a function of the number of runs, on logarithmic axes.",
            _png(lambda fig: draw_curves(grown, fig), (9.0, 4.4)),
        )
    return found


def draw_bars(shown: Sequence[Bar], fig: Drawing) -> None:
    """One bar for each figure, from the target outwards, on a logarithmic axis."""
    ax = fig.subplots()
    places = range(len(shown), 0, -1)
    times = [bar.times for bar in shown]
    colours = [MET if bar.times >= 1 else MISSED for bar in shown]
    ax.barh(places, [value - 1 for value in times], left=1.0, color=colours, height=0.62)
    ax.set_xscale("log")
    ax.set_xlim(min(0.5, *times) / 1.2, max(2.0, *times) * 1.8)
    for place, bar in zip(places, shown, strict=True):
        ax.annotate(
            f" {number(float(f'{bar.times:.2g}'))}x", (max(bar.times, 1.0), place), va="center", fontsize=7.5
        )
    ax.axvline(1.0, color="#222222", linewidth=1.0)
    ax.set_yticks(list(places), [bar.label for bar in shown], fontsize=7.5)
    ax.set_ylim(0.3, len(shown) + 0.7)
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{number(value)}x"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("times better than the target (1x: just met)")


def draw_curves(shown: Sequence[Curve], fig: Drawing) -> None:
    """One panel for each unit."""
    units = [unit for unit in GROWTH_UNITS if any(curve.unit == unit for curve in shown)]
    strokes = PALETTES[PAPER].strokes([curve.label for curve in shown])
    panels = fig.subplots(1, len(units), squeeze=False)[0]
    for ax, unit in zip(panels, units, strict=True):
        for curve in shown:
            if curve.unit == unit:
                sizes, values = zip(*curve.points, strict=True)
                ax.plot(
                    sizes, values, label=curve.label, marker="o", markersize=3, **strokes[curve.label].line()
                )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(*_decade([value for curve in shown if curve.unit == unit for _, value in curve.points]))
        ax.set_xlabel("runs")
        ax.set_ylabel(GROWTH_UNITS[unit])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
            axis.set_minor_formatter(NullFormatter())
        ax.legend(fontsize=7, loc="upper left", bbox_to_anchor=(0.0, -0.16), borderaxespad=0.0)


def _decade(values: Sequence[float]) -> tuple[float, float]:
    """Limits that hold all values and at least one power of ten, so that a flat curve looks flat."""
    low, high = 10 ** floor(log10(min(values))), 10 ** ceil(log10(max(values)))
    return low, max(high, 10 * low)


def _png(draw: Callable[[Drawing], None], inches: tuple[float, float]) -> bytes:
    with figure_style():
        fig = Drawing(figsize=inches, layout="constrained")
        draw(fig)
        return save(fig, "png", {"Software": None}, DPI)
