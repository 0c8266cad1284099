"""The exact core's study as one figure: a row per process; error against movement, the ratio of errors against the
horizon, where the policy moved, and the bound against the truth.
"""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.exact_study import BIN, LEAST, Condition, ConditionSummary, Curves, Interval
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.reports.figures.style import figure_style
from cppo_lab.reports.names import display_name

# What is equal ("movement", ...) -> model -> horizon -> the ratio.
Ratios = Mapping[str, Mapping[str, Mapping[int, Interval]]]
STYLES = (("#222222", "-"), ("#999999", "--"))


def draw(
    curves: Mapping[Condition, Curves], found: Mapping[Condition, ConditionSummary], ratios: Ratios
) -> Figure:
    """The figure of all conditions; the left and the third column show the longest horizon."""
    models = sorted({c.model for c in curves})
    variants = list(dict.fromkeys(c.variant for c in curves))
    strokes = PALETTES[PAPER].strokes(variants)
    colours = {name: strokes[name].colour for name in variants}
    longest = max(c.horizon for c in curves)
    with figure_style():
        figure = Figure(figsize=(14, 3.1 * len(models)), layout="constrained")
        axes = figure.subplots(len(models), 4, squeeze=False)
        for row, model in zip(axes, models, strict=True):
            own = {c: one for c, one in curves.items() if c.model == model}
            _error(row[0], {c: one for c, one in own.items() if c.horizon == longest}, colours)
            row[0].set_title(f"{model}, T = {longest}", loc="left")
            _ratio(row[1], {name: own[model] for name, own in ratios.items()})
            _positions(row[2], {c: found[c] for c in own if c.horizon == longest}, colours)
            _bounds(row[3], {c: found[c] for c in own})
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(variants))
    return figure


def _error(ax: Axes, curves: Mapping[Condition, Curves], colours: Mapping[str, str]) -> None:
    """Mean |Delta| of the steps in each bin of movement; learning rates pooled."""
    for variant, colour in colours.items():
        chosen = [one for c, one in curves.items() if c.variant == variant]
        movement = np.concatenate([one.movement.ravel() for one in chosen])
        error = np.abs(np.concatenate([one.error.ravel() for one in chosen]))
        moved = np.isfinite(movement) & (movement > 0)
        bins = np.floor(np.log(movement[moved]) / BIN)
        points = [
            (math.exp((number + 0.5) * BIN), error[moved][bins == number].mean())
            for number in np.unique(bins)
            if (bins == number).sum() >= LEAST
        ]
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, label=display_name(variant))
    ax.set(xscale="log", yscale="log", xlabel="movement, mean TV", ylabel="mean |Δ|")


def _ratio(ax: Axes, ratios: Mapping[str, Mapping[int, Interval]]) -> None:
    """With 95 % intervals; the second series a little to the right of the first."""
    ax.axhline(1, color="#888888", linewidth=0.8)
    ticks: set[int] = set()
    for i, ((name, by_horizon), (colour, style)) in enumerate(zip(ratios.items(), STYLES, strict=True)):
        horizons = [h for h, one in by_horizon.items() if math.isfinite(one.value)]
        shown = [by_horizon[h] for h in horizons]
        ticks |= set(horizons)
        spread = [[one.value - one.low for one in shown], [one.high - one.value for one in shown]]
        places, values = [h * 1.08**i for h in horizons], [one.value for one in shown]
        ax.errorbar(places, values, spread, color=colour, linestyle=style, marker="o", capsize=3, label=name)
    ax.set(xscale="log", xlabel="horizon T", ylabel="|Δ|, CPPO / DPPO, at equal")
    ax.set_xticks(sorted(ticks), [str(h) for h in sorted(ticks)])
    ax.minorticks_off()
    ax.legend()


def _positions(ax: Axes, found: Mapping[Condition, ConditionSummary], colours: Mapping[str, str]) -> None:
    """Movement in each eighth over its mean, averaged over learning rates."""
    for variant, colour in colours.items():
        rows = [np.array(one.by_position) for c, one in found.items() if c.variant == variant]
        if rows:
            mean = np.mean([row / row.mean() for row in rows], axis=0)
            ax.plot(range(1, len(mean) + 1), mean, color=colour)
    ax.set(xlabel="eighth of the response", ylabel="movement / its mean")


def _bounds(ax: Axes, found: Mapping[Condition, ConditionSummary]) -> None:
    """Median of bound over truth by horizon, over all variants and learning rates."""
    horizons = sorted({c.horizon for c in found})
    for label, name, style in (
        ("Proposition 4", "bound_ratio", "-"),
        ("product form", "product_ratio", "--"),
    ):
        medians = [
            float(np.median([getattr(one, name) for c, one in found.items() if c.horizon == h]))
            for h in horizons
        ]
        ax.plot(horizons, medians, style, color="#222222", marker="o", label=label)
    ax.set(xscale="log", yscale="log", xlabel="horizon T", ylabel="median of bound / |Δ|")
    ax.set_xticks(horizons, [str(h) for h in horizons])
    ax.minorticks_off()
    ax.legend()
