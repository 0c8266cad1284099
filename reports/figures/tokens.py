"""Figures 1 to 3, of single tokens.

Figure 1: what each masking rule does to one synthetic response (left), and the curves of the largest model with the
best score of every method (right). Figure 2: the gap between the policies at each token position, and the threshold
that the position weights induce. Figure 3: CPPO on consecutive tokens of one logged response: what each token spends,
and its limit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.study import (
    COMPARED,
    MAIN,
    OURS,
    GapCurve,
    GapCurves,
    StudyResults,
    TokenWindow,
    gap_curves,
    induced_threshold,
)
from cppo_lab.reports.figures import validation
from cppo_lab.reports.figures.drawing import (
    APPEARANCE,
    HEADING,
    Absent,
    Info,
    Key,
    head_texts,
    key_legend,
    legend_below,
    panel_grid,
    say,
    sized,
    surround,
    whole_ticks,
)
from cppo_lab.reports.figures.palette import PALETTES, PAPER, Palette
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import run_ids_of
from cppo_lab.rules import Stroke

_MEASURES = {
    "grpo": "ratio ρ",
    "dppo": "TV D",
    "trm_max": "KL D",
    "cppo": "w D",
}
_SAYS = {
    "grpo": "clips the ratio, whatever the divergence",
    "dppo": "one threshold for every token",
    "trm_max": "one token over the limit drops the response",
    "cppo": "weighted, and the prefix has a budget",
}
_LEGEND = (
    ("kept, moves away from μ", "away"),
    ("kept, moves toward μ", "toward"),
    ("masked by its threshold", "token"),
    ("masked by the prefix budget", "prefix"),
    ("masked with its response", "response"),
)


@dataclass(frozen=True)
class RulePanel:
    """One rule on the synthetic response: for each token its value, the limit, and the kind of bar (a key of
    `Palette.reasons`).
    """

    rule: str
    heading: str
    measure: str
    values: tuple[float, ...]
    limit: tuple[float, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class SchematicInfo(Info):
    """Everything the figure shows. If `panel` is None there are no curves, and `absent` says why. `scores` is the
    legend of the curves: labels with best scores.
    """

    y_label: str
    rules: tuple[RulePanel, ...]
    panel: validation.Panel | None
    absent: str
    scores: tuple[Key, ...]
    palette: str = field(metadata=APPEARANCE)


def _rule_panels() -> tuple[RulePanel, ...]:
    """The panels of the left half, computed by the rules (`tests/reports/test_schematic.py`)."""
    path = resources.files("cppo_lab.reports").joinpath("schematic", "masking_rules.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    panels = []
    for entry in data["rules"]:
        rule = entry["rule"]
        heading = f"{display_name(rule)}: {_SAYS[rule]}"
        values, limit = tuple(entry["values"]), tuple(entry["limit"])
        panels.append(
            RulePanel(
                rule, heading, _MEASURES[rule], values, limit, _kinds(entry["masked_by"], data["moves_away"])
            )
        )
    return tuple(panels)


def _kinds(masked_by: Sequence[str], moves_away: Sequence[bool]) -> tuple[str, ...]:
    return tuple(
        reason or ("away" if away else "toward") for reason, away in zip(masked_by, moves_away, strict=True)
    )


def schematic_info(
    board: Scoreboard | None, model: str | None, title: str, absent: str, palette: str = PAPER
) -> SchematicInfo:
    """The figure with the curves of `model`; `absent` says why there is no board or no such model."""
    rules = _rule_panels()
    if board is None or model is None:
        source = "the rules on a made-up response"
        return SchematicInfo(title, source, (), "", rules, None, absent, (), palette)
    info = validation.curves_info(board, title, [model], palette=palette)
    keys = validation.scored_keys(board, info.panels[0])
    return SchematicInfo(
        title, info.source, info.run_ids, info.y_label, rules, info.panels[0], "", keys, palette
    )


def _draw_rule(panel: RulePanel, ax: Axes, palette: Palette) -> None:
    """Draw one rule: a bar per token, coloured by the token's fate, and the limit as a line."""
    places = range(1, len(panel.values) + 1)
    base = 1.0 if panel.rule == "grpo" else 0.0
    top = max(*panel.values, *panel.limit) * 1.12
    if panel.rule == "grpo":
        top = 2.0  # the rarest token triples; its bar is cut, so that the others remain visible
    ax.bar(
        places,
        [value - base for value in panel.values],
        bottom=base,
        width=0.72,
        color=[palette.reasons[kind] for kind in panel.kinds],
        hatch=[palette.hatches.get(kind, "") for kind in panel.kinds],
        zorder=2,
    )
    for place, value in zip(places, panel.values, strict=True):
        if value > top:
            ax.annotate(f"{value:g}", (place + 0.42, top), va="top", fontsize=sized(7), color="#555555")
    ax.stairs(
        panel.limit, [0.5, *(place + 0.5 for place in places)], baseline=None, color="#222222", zorder=3
    )
    ax.axhline(base, color="#555555", linewidth=0.8, zorder=3)
    bottom = min(*panel.values, *panel.limit, base)
    ax.set_ylim(bottom - 0.04 * (top - bottom) if bottom < base else base, top)
    ax.set_xlim(0.4, len(panel.values) + 0.6)
    ax.set_title(panel.heading, loc="left", fontsize=sized(9), pad=3)
    ax.set_ylabel(panel.measure, fontsize=sized(8))
    ax.tick_params(labelsize=7)
    ax.grid(False)


def draw_schematic(info: SchematicInfo, fig: Figure) -> None:
    """The rules on the left, one under the other; the curves on the right."""
    surround(fig, (11.4, 5.4), (info.title, info.source), ())
    palette = PALETTES[info.palette]
    left, right = fig.subfigures(1, 2, squeeze=False, width_ratios=(1.0, 1.1))[0]
    axes = left.subplots(len(info.rules), 1, sharex=True)
    for ax, rule in zip(axes, info.rules, strict=True):
        _draw_rule(rule, ax, palette)
    left.align_ylabels(axes)
    whole_ticks(axes[-1])
    axes[-1].set_xlabel("token of a made-up response, advantage > 0", fontsize=sized(8))
    handles = [palette.bar(kind, label) for label, kind in _LEGEND]
    limit = Line2D([], [], color="#222222", label="limit")
    left.legend(handles=[*handles, limit], loc="outside lower center", ncols=2, fontsize=sized(8))
    ax = right.subplots()
    if info.panel is None:
        say(ax, info.absent, wrap=True)
        return
    validation.draw_panel(info.panel, ax, info.y_label)
    key_legend(right, info.scores, loc="outside lower center", ncols=3, fontsize=sized(8))


@dataclass(frozen=True)
class GapLines:
    """One variant's gaps."""

    variant: str
    label: str
    stroke: Stroke = field(metadata=APPEARANCE)
    gaps: GapCurves


@dataclass(frozen=True)
class GapsInfo(Info):
    """Everything the figure shows; `threshold` is delta/w_t at positions 1, 2, ... for a response of the maximum
    length; empty if the rule has no position weight.
    """

    model: str
    lines: tuple[GapLines, ...]
    delta: float | None
    threshold: tuple[float, ...]
    palette: str = field(metadata=APPEARANCE)


def gaps_info(study: StudyResults, title: str, palette: str = PAPER) -> GapsInfo | Absent:
    """The gaps of CPPO on the first model, and those of DPPO if its runs have them."""
    board = study.board(MAIN)
    if board is None:
        return Absent(study.why_absent(MAIN))
    model = board.models[0]
    runs = {
        variant: [run for run in board.runs_of(model, variant) if run.mlflow_id in study.positions]
        for variant in (COMPARED, OURS)
    }
    gaps = {name: [study.positions[run.mlflow_id] for run in of_variant] for name, of_variant in runs.items()}
    curves = {
        name: curve for name, of_variant in gaps.items() if (curve := gap_curves(of_variant)) is not None
    }
    if OURS not in curves:
        return Absent(f"no run of {display_name(OURS)} on {model} has diagnostics/positions.json")
    rule, threshold = gaps[OURS][0], tuple[float, ...]()
    if rule.delta is not None and rule.w_min is not None:
        longest = max(len(run.positions) for run in gaps[OURS])
        threshold = induced_threshold(rule.delta, rule.w_min, longest, rule.span)
    methods = PALETTES[palette].methods
    return GapsInfo(
        title=title,
        source=f"{model}; {origin(board.core)}",
        model=model,
        lines=tuple(
            GapLines(name, display_name(name), methods[name], curve) for name, curve in curves.items()
        ),
        delta=rule.delta,
        threshold=threshold,
        run_ids=run_ids_of(run for name in curves for run in runs[name]),
        palette=palette,
    )


def _draw_gap(ax: Axes, curve: GapCurve, line: GapLines, style: str, label: str) -> None:
    colour = line.stroke.colour
    if curve.band:
        ax.fill_between(curve.positions, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    marks: dict[str, Any] = {
        "marker": line.stroke.marker if style == "-" else "",
        "markevery": 0.12,
        "markersize": 3.8,
    }
    ax.plot(curve.positions, curve.mean, style, color=colour, label=label, **marks)


def _draw_gaps(info: GapsInfo, ax: Axes) -> None:
    """Draw the mean gap (solid) and the mean of its largest tenth (dashed) by position."""
    for line in info.lines:
        _draw_gap(ax, line.gaps.top10, line, "--", f"{line.label}, largest 10 %")
        _draw_gap(ax, line.gaps.mean, line, "-", f"{line.label}, mean")
    ax.set_ylim(bottom=0)
    _finish(ax, "Gap between the policies", "|π(y) − μ(y)|")


def _draw_threshold(info: GapsInfo, ax: Axes) -> None:
    """Draw delta/w_t, and delta itself."""
    if info.threshold and info.delta is not None:
        ours, other = (PALETTES[info.palette].methods[name].colour for name in (OURS, COMPARED))
        steps = range(1, len(info.threshold) + 1)
        ax.fill_between(steps, info.delta, info.threshold, color=ours, alpha=0.1, linewidth=0)
        ax.plot(steps, info.threshold, color=ours, label="δ / w, with position weight")
        ax.axhline(info.delta, color=other, linestyle="--", label=f"δ = {info.delta:g}, the same everywhere")
        above_delta = max(info.threshold) - info.delta
        if above_delta > 0:  # none if w_min = 1
            ax.set_ylim(info.delta - 0.6 * above_delta, info.delta + 1.2 * above_delta)
    else:
        ax.text(0.05, 0.9, "the rule has no position weight", transform=ax.transAxes, color="#777777")
    _finish(ax, "Threshold on the divergence", "δ / w")


def _finish(ax: Axes, title: str, y_label: str) -> None:
    ax.set_title(title, loc="left")
    ax.set_xlabel("token position")
    ax.set_ylabel(y_label)
    whole_ticks(ax)
    ax.margins(x=0.02)
    legend_below(ax, 2, -0.2)


def draw_gaps(info: GapsInfo, fig: Figure) -> None:
    """Both panels of Figure 2 side by side."""
    texts = head_texts(info, [line.gaps.mean.band for line in info.lines])
    left, right = panel_grid(fig, 2, 2, (5.2, 3.7), texts)
    _draw_gaps(info, left)
    _draw_threshold(info, right)


TOKENS = 24
_LONGEST_SYMBOL = 10
_REJECTED, _PREFIX, _EFFECTIVE = "#F3D9DC", "#8A5A00", "#111111"


@dataclass(frozen=True)
class WindowInfo:
    """Everything the figure shows: the tokens of `window`, and for each the effective threshold and the kind of its bar
    (a key of `Palette.reasons`).
    """

    title: str = field(metadata=HEADING)
    about: str = field(metadata=HEADING)
    origin: str = field(metadata=HEADING)
    symbols: tuple[str, ...]
    window: TokenWindow
    effective: tuple[float, ...]
    kinds: tuple[str, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)
    palette: str = field(metadata=APPEARANCE)

    @property
    def source(self) -> str:
        """The run and its core."""
        return f"{self.about}; {self.origin}"


def window_info(study: StudyResults, title: str, palette: str = PAPER) -> WindowInfo | Absent:
    """The most instructive window: that of a CPPO run with both kinds of masking, if there is one, or else the first in
    the order of models and seeds.
    """
    board = study.board(MAIN)
    if board is None:
        return Absent(study.why_absent(MAIN))
    runs = [
        run for model in board.models for run in board.runs_of(model, OURS) if run.mlflow_id in study.windows
    ]
    cuts = [(run, study.windows[run.mlflow_id].cut(TOKENS)) for run in runs]
    if not cuts:
        return Absent(f"no run of {display_name(OURS)} has diagnostics/window.json")
    run, window = max(cuts, key=lambda cut: len(set(cut[1].masked_by) - {""}))
    return WindowInfo(
        title=title,
        origin=origin(board.core),
        about=f"{run.describe(display_name)}, training step {window.step}",
        symbols=tuple(map(_visible, window.symbols)),
        window=window,
        effective=window.effective(),
        kinds=_kinds(window.masked_by, window.moves_away),
        run_ids=(run.run_id or "",),
        palette=palette,
    )


def _visible(symbol: str) -> str:
    """A token as the label of its bar: line ends and spaces are made visible, long tokens are cut."""
    shown = symbol.replace("\n", "↵").replace("\t", "→").replace(" ", "·")
    shown = "".join(letter if letter.isprintable() else "�" for letter in shown)
    return shown if len(shown) <= _LONGEST_SYMBOL else shown[: _LONGEST_SYMBOL - 1] + "…"


def _draw_window(info: WindowInfo, ax: Axes) -> None:
    """Draw bars w_t D_t; a token that moves away and lies above the effective threshold is masked (shaded)."""
    window, count, palette = info.window, len(info.symbols), PALETTES[info.palette]
    delta = window.token_threshold
    top = 1.2 * max(delta, *window.weighted_divergence)
    low = min(0.0, *info.effective)
    bottom = max(low * 1.1, -top / 2) if low < 0 else 0.0  # a far overspent budget is cut off
    reach = np.clip(info.effective, bottom, top)
    edges = np.arange(count + 1) - 0.5

    def stairs(values: ArrayLike, baseline: ArrayLike | None = None, **style: Any) -> None:
        ax.stairs(values, edges, baseline=baseline, fill=baseline is not None, **style)

    token = np.full(count, delta)
    prefix = palette.reasons["prefix"]
    stairs(np.full(count, top), np.clip(reach, 0.0, None), color=_REJECTED, alpha=0.55, zorder=0)
    stairs(token, np.clip(reach, 0.0, delta), color=prefix, alpha=0.22, zorder=1)
    ax.bar(
        range(count),
        window.weighted_divergence,
        width=0.7,
        color=[palette.reasons[kind] for kind in info.kinds],
        hatch=[palette.hatches.get(kind, "") for kind in info.kinds],
        zorder=2,
    )
    stairs(token, color=palette.methods["dppo"].colour, linestyle="--", linewidth=1.2, zorder=3)
    left_over = np.clip(window.prefix_threshold, bottom - top, 2 * top)
    stairs(left_over, color=_PREFIX, linestyle=":", linewidth=1.5, zorder=4)
    stairs(reach, color=_EFFECTIVE, linewidth=1.8, zorder=5)
    if bottom < 0:
        ax.axhline(0, color="#555555", linewidth=0.8, zorder=3)
    ax.set_ylim(bottom, top)
    ax.set_xlim(-0.6, count - 0.4)
    rotation = 90 if max(map(len, info.symbols)) > 2 else 0
    ax.set_xticks(range(count), info.symbols, rotation=rotation, fontsize=sized(8))
    for label in ax.get_xticklabels():
        label.set_parse_math(False)
    ax.set_ylabel("w D")
    ax.grid(axis="x", visible=False)


def _handles(info: WindowInfo) -> list[Patch | Line2D]:
    """The legend handles: lines, regions, and the kinds of bars that occur."""
    names = {
        "away": "kept",
        "toward": "kept: moves toward μ",
        "token": "masked by the token threshold",
        "prefix": "masked by the prefix budget",
    }
    palette = PALETTES[info.palette]
    token = palette.methods["dppo"].colour
    return [
        Line2D([], [], color=token, linestyle="--", label="token threshold δ"),
        Line2D([], [], color=_PREFIX, linestyle=":", label="δ + δ_b W − S of the prefix"),
        Line2D([], [], color=_EFFECTIVE, linewidth=1.8, label="effective threshold, the lower of both"),
        Patch(color=palette.reasons["prefix"], alpha=0.22, label="taken away by the prefix"),
        Patch(color=_REJECTED, label="rejected if moving away from μ"),
        *(palette.bar(kind, label) for kind, label in names.items() if kind in info.kinds),
    ]


def draw_window(info: WindowInfo, fig: Figure) -> None:
    """Draw the window with its legend below."""
    surround(fig, (9.6, 4.3), (info.title, info.about, info.origin), ())
    _draw_window(info, fig.subplots())
    fig.legend(handles=_handles(info), loc="outside lower center", ncols=3, fontsize=sized(8))
