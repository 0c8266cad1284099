"""The figure of the exact core's study, with one row per process: error against movement, ratios of errors against the
horizon, the position of the policy's movement, and the bounds relative to the true error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from cppo_lab.analysis.statistics.exact_study import (
    BIN,
    DISTANCE_TO_END,
    EIGHTHS,
    FEWEST_STEPS,
    Condition,
    ConditionSummary,
    Curves,
    pairs_of,
    ratio_estimates,
)
from cppo_lab.reports.figures.drawing import APPEARANCE, Info, Key, panel_grid
from cppo_lab.reports.figures.palette import PALETTES
from cppo_lab.reports.names import display_name
from cppo_lab.rules import Stroke

Contrast = tuple[str, str]  # a rule, and the rule by whose error its error is divided
_BOUNDS = (
    ("Proposition 4", "bound_ratio", Stroke("#222222")),
    ("product form", "product_ratio", Stroke("#888888", (5.0, 2.0))),
    ("Theorem 1", "theorem_ratio", Stroke("#BBBBBB")),
)
_PROPORTIONAL = Stroke("#888888", (5.0, 2.0))
_APART = 1.05  # horizontal factor between neighbouring series, so that their intervals do not hide each other
COLUMNS = 5  # panels in a row, those of one process


@dataclass(frozen=True)
class ExactLine:
    """One series; `low` and `high` are its 95 % intervals, equal to `y` where it has none."""

    name: str
    stroke: Stroke = field(metadata=APPEARANCE)
    points: bool
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ExactPanel:
    """One panel of one process. `even`: y of a line that marks equality; None for no line."""

    model: str
    metric: str
    label: str
    x_label: str
    y_label: str
    log_x: bool
    log_y: bool
    even: float | None
    lines: tuple[ExactLine, ...]
    horizons: tuple[int, ...] = ()  # ticks of the panels that have T on their x axis


@dataclass(frozen=True)
class ExactInfo(Info):
    """The whole figure; `panels` are in row-major order with COLUMNS per row. `rules` and `contrasts` are the two
    legends.
    """

    panels: tuple[ExactPanel, ...]
    rules: tuple[Key, ...]
    contrasts: tuple[Key, ...]


def contrast_name(contrast: Contrast) -> str:
    """`CPPO / DPPO`."""
    return f"{display_name(contrast[0])} / {display_name(contrast[1])}"


def exact_info(
    curves: Mapping[Condition, Curves],
    summaries: Mapping[Condition, ConditionSummary],
    contrasts: Sequence[Contrast],
    title: str,
    source: str,
    run_ids: tuple[str, ...],
    palette: str,
) -> ExactInfo:
    """The figure of all conditions; the first and third columns show the longest horizon."""
    variants = tuple(dict.fromkeys(c.variant for c in curves))
    rules = PALETTES[palette].strokes(variants)
    names = [contrast_name(each) for each in contrasts]
    strokes = PALETTES[palette].strokes(names)
    horizons = tuple(sorted({c.horizon for c in curves}))
    longest = horizons[-1]
    panels = []
    for model in dict.fromkeys(c.model for c in curves):
        last = {c: each for c, each in curves.items() if (c.model, c.horizon) == (model, longest)}
        ratios = []
        for i, (name, contrast) in enumerate(zip(names, contrasts, strict=True)):
            of_horizons = ratio_estimates(pairs_of(curves, model, *contrast))
            if of_horizons:
                places = tuple(h * _APART**i for h in of_horizons)
                ends = ((each.value, each.low, each.high) for each in of_horizons.values())
                shown = ([math.exp(each[0] if end is None else end) for end in each] for each in ends)
                ratios.append(ExactLine(name, strokes[name], True, places, *zip(*shown, strict=True)))
        panels += [
            ExactPanel(
                model, "error", f"Error against movement, T = {longest}", "movement, mean TV", "mean |Δ|", True, True,
                None, tuple(_error_line(c.variant, each, rules[c.variant]) for c, each in last.items()),
            ),
            ExactPanel(
                model, "ratio", "Ratio of errors at equal movement", "horizon T", "|Δ| / |Δ|", True, True, 1.0,
                tuple(ratios), horizons,
            ),
            ExactPanel(
                model, "position", f"Where the policy moved, T = {longest}", "eighth of the response",
                "movement / its mean", False, False, 1.0,
                tuple(_position_line(c.variant, summaries[c].by_position, rules[c.variant]) for c in last),
            ),
            ExactPanel(
                model, "weight", "Error per movement; dashed: as T - t", "eighth of the response",
                "|Δ| / movement / its mean", False, False, None,
                (
                    *(_position_line(c.variant, summaries[c].error_by_position, rules[c.variant]) for c in last),
                    _position_line("T - t", DISTANCE_TO_END, _PROPORTIONAL),
                ),
            ),
            ExactPanel(
                model, "bound", "Bound over truth", "horizon T", "median of bound / |Δ|", True, True, None,
                _bound_lines({c: each for c, each in summaries.items() if c.model == model}), horizons,
            ),
        ]  # fmt: skip
    return ExactInfo(
        title=title,
        source=source,
        panels=tuple(panels),
        rules=tuple(Key(display_name(name), rules[name]) for name in variants),
        contrasts=tuple(Key(name, strokes[name]) for name in names),
        run_ids=run_ids,
    )


def _error_line(variant: str, curves: Curves, stroke: Stroke) -> ExactLine:
    """Mean |Delta| of the steps in each bin of movement."""
    moved = np.isfinite(curves.matched) & (curves.matched > 0)
    bins = np.floor(np.log(curves.matched[moved]) / BIN)
    error = np.abs(curves.error[moved])
    filled = [number for number in np.unique(bins) if (bins == number).sum() >= FEWEST_STEPS]
    x = [math.exp((number + 0.5) * BIN) for number in filled]
    y = [float(error[bins == number].mean()) for number in filled]
    return _line(display_name(variant), stroke, x, y)


def _position_line(variant: str, by_position: Sequence[float], stroke: Stroke) -> ExactLine:
    return _line(
        display_name(variant), stroke, EIGHTHS, np.divide(by_position, np.mean(by_position)).tolist()
    )


def _bound_lines(summaries: Mapping[Condition, ConditionSummary]) -> tuple[ExactLine, ...]:
    """Medians over the rules, by horizon."""
    horizons = sorted({c.horizon for c in summaries})
    lines = []
    for label, part, stroke in _BOUNDS:
        ratios = {
            h: [getattr(summary, part) for c, summary in summaries.items() if c.horizon == h]
            for h in horizons
        }
        medians = [float(np.median(ratios[h])) for h in horizons]
        if np.isfinite(medians).all():  # older runs did not log each of them
            lines.append(_line(label, stroke, horizons, medians))
    return tuple(lines)


def _line(name: str, stroke: Stroke, x: Sequence[float], y: Sequence[float]) -> ExactLine:
    values = tuple(map(float, y))
    return ExactLine(name, stroke, False, tuple(map(float, x)), values, values, values)


def draw_exact(info: ExactInfo, figure: Figure) -> None:
    """All panels with one legend."""
    texts, legend = (info.title, info.source), (*info.rules, *info.contrasts)
    axes = panel_grid(figure, len(info.panels), COLUMNS, (3.25, 2.8), texts, legend)
    for i, (panel, ax) in enumerate(zip(info.panels, axes, strict=True)):
        _draw_exact_panel(panel, ax)
        title = f"{panel.model}: {panel.label}" if i % COLUMNS == 0 else panel.label
        ax.set_title(title, loc="left", fontsize="small")


def _draw_exact_panel(panel: ExactPanel, ax: Axes) -> None:
    """Draw one panel without its title."""
    if panel.even is not None:
        ax.axhline(panel.even, color="#888888", linewidth=0.8, zorder=1)
    for line in panel.lines:
        if line.points:
            spread = [np.subtract(line.y, line.low), np.subtract(line.high, line.y)]
            ax.errorbar(line.x, line.y, spread, **line.stroke.line(), marker="o", markersize=3, capsize=2)
        else:
            marker = "o" if len(line.x) == 1 else None  # a line of one point is invisible
            ax.plot(line.x, line.y, **line.stroke.line(), label=line.name, marker=marker, markersize=3)
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label)
    if not any(value > 0 for line in panel.lines for value in line.y):  # a log scale needs one
        ax.text(0.5, 0.5, "too few steps to compare", ha="center", va="center", transform=ax.transAxes)
        ax.set(xticks=[], yticks=[])
        return
    if panel.log_x:
        ax.set_xscale("log")
    if panel.log_y:
        ax.set_yscale("log")
    if panel.horizons:
        ax.set_xticks(panel.horizons, map(str, panel.horizons))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlim(
            panel.horizons[0] / 2, panel.horizons[-1] * 2
        )  # a single one would be drawn to the width of APART
    if panel.metric == "ratio":  # 0.6, not 6 x 10^-1
        low, high = ax.get_ylim()
        if high > 8 * low:
            ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
    if panel.metric == "bound" and panel.lines:
        ax.legend()
