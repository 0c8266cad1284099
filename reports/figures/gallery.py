"""The paper's Figures 1 to 11 from a study, each of them drawn or with the reason why it cannot be; and those of
ablations (5 and 6) and of single models (8 to 11).

Figure 1: what each masking rule does to a synthetic response (left), and the curves of the largest model with the best
score of every method (right). Figure 2: the gap between the policies at each token position, and the threshold that the
position weights induce. Figure 3: CPPO on consecutive tokens of a logged response: what each token spends, and its
limit.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from cppo_lab.analysis.scoring import RunScore, Scoreboard
from cppo_lab.analysis.statistics.estimate import FEWEST_RUNS, band
from cppo_lab.analysis.study import (
    COMPARED,
    MAIN,
    OURS,
    ROLES,
    GapCurves,
    StudyResults,
    TokenWindow,
    gap_curves,
    induced_threshold,
)
from cppo_lab.reports.figures import curves
from cppo_lab.reports.figures.drawing import (
    APPEARANCE,
    HEADING,
    PAPER,
    Absent,
    Info,
    Key,
    Palette,
    PanelsInfo,
    Picture,
    fill,
    key_legend,
    keys_of,
    legend_below,
    panel_grid,
    show_text,
    sized,
    step_axis,
    surround,
    whole_ticks,
)
from cppo_lab.reports.names import benchmark_name, display_name, in_order, origin, score_name
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

    y_label: str | None
    rules: tuple[RulePanel, ...]
    panel: curves.Panel | None
    absent: str
    scores: tuple[Key, ...]
    palette: Palette


def _kinds(masked_by: Sequence[str], moves_away: Sequence[bool]) -> tuple[str, ...]:
    return tuple(
        reason or ("away" if away else "toward") for reason, away in zip(masked_by, moves_away, strict=True)
    )


def schematic_info(
    study: StudyResults, role: str | Absent, title: str, palette: Palette = PAPER
) -> SchematicInfo:
    """The figure with the curves of the model in this role of the main sweep, or why it has none."""
    path = resources.files("cppo_lab.reports").joinpath("schematic", "masking_rules.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    rules = tuple(  # the left half, computed by the rules (`tests/reports/test_schematic.py`)
        RulePanel(
            rule=entry["rule"],
            heading=f"{display_name(entry['rule'])}: {_SAYS[entry['rule']]}",
            measure=_MEASURES[entry["rule"]],
            values=tuple(entry["values"]),
            limit=tuple(entry["limit"]),
            kinds=_kinds(entry["masked_by"], data["moves_away"]),
        )
        for entry in data["rules"]
    )
    if isinstance(role, Absent):
        source = "the rules on a made-up response"
        return SchematicInfo(title, source, (), "", rules, None, role.reason, (), palette)
    board = study.boards[MAIN]
    info = curves.curves_info(board, title, [role], palette=palette)
    keys = curves.scored_keys(board, info.panels[0])
    return SchematicInfo(
        title, info.source, info.run_ids, info.y_label, rules, info.panels[0], "", keys, palette
    )


def draw_schematic(info: SchematicInfo, fig: Figure) -> None:
    """The rules on the left, stacked: a bar per token, coloured by the token's fate, and the limit as a line; the
    curves on the right.
    """
    surround(fig, (11.4, 5.4), (info.title, info.source))
    palette = info.palette
    left, right = fig.subfigures(1, 2, squeeze=False, width_ratios=(1.0, 1.1))[0]
    axes = left.subplots(len(info.rules), 1, sharex=True)
    for ax, panel in zip(axes, info.rules, strict=True):
        places = np.arange(1, len(panel.values) + 1)
        base, top = 0.0, max(*panel.values, *panel.limit) * 1.12
        if panel.rule == "grpo":
            # The rarest token triples; its bar is cut, so that the others remain visible.
            base, top = 1.0, 2.0
        ax.bar(
            places,
            np.subtract(panel.values, base),
            bottom=base,
            width=0.72,
            **palette.bars(panel.kinds),
        )
        for place, value in zip(places, panel.values, strict=True):
            if value > top:
                ax.annotate(f"{value:g}", (place + 0.42, top), va="top", fontsize=sized(7), color="#555555")
        ax.stairs(panel.limit, [0.5, *places + 0.5], baseline=None, color="#222222", zorder=3)
        ax.axhline(base, color="#555555", linewidth=0.8, zorder=3)
        bottom = min(*panel.values, *panel.limit, base)
        ax.set_ylim(bottom - 0.04 * (top - bottom) if bottom < base else base, top)
        ax.set_xlim(0.4, len(panel.values) + 0.6)
        ax.set_title(panel.heading, fontsize=sized(9), pad=3)
        ax.set_ylabel(panel.measure, fontsize=sized(8))
        ax.tick_params(labelsize=7)
        ax.grid(False)
    left.align_ylabels(axes)
    whole_ticks(axes[-1])
    axes[-1].set_xlabel("token of a made-up response, advantage > 0", fontsize=sized(8))
    handles = [palette.bar(kind, label) for label, kind in _LEGEND]
    limit = Line2D([], [], color="#222222", label="limit")
    left.legend(handles=[*handles, limit], loc="outside lower center", ncols=2, fontsize=sized(8))
    ax = right.subplots()
    if info.panel is None:
        show_text(ax, info.absent, wrap=True)
        return
    curves.draw_panel(info.panel, ax, info.y_label)
    key_legend(right, info.scores, loc="outside lower center", ncols=3, fontsize=sized(8))


@dataclass(frozen=True)
class GapLines:
    """One variant's gaps."""

    variant: str
    label: str
    stroke: Stroke
    gaps: GapCurves


@dataclass(frozen=True, kw_only=True)
class GapsInfo(PanelsInfo):
    """Everything the figure shows; `threshold` is delta/w_t at positions 1, 2, ... for a response of the maximum
    length; empty if the rule has no position weight.
    """

    model: str
    lines: tuple[GapLines, ...]
    delta: float | None
    threshold: tuple[float, ...]
    palette: Palette


def gaps_info(study: StudyResults, title: str, palette: Palette = PAPER) -> GapsInfo | Absent:
    """The gaps of CPPO on the first model, and those of DPPO if its runs have them."""
    board = study.boards.get(MAIN)
    if board is None:
        return Absent(study.why_absent(MAIN))
    model, lines, drawn = board.models[0], {}, list[RunScore]()
    for name, stroke in palette.strokes((COMPARED, OURS)).items():
        runs = [run for run in board.runs_of(model, name) if run.mlflow_id in study.positions]
        gaps = [study.positions[run.mlflow_id] for run in runs]
        if (curve := gap_curves(gaps)) is not None:
            lines[name] = GapLines(name, display_name(name), stroke, curve)
            drawn += runs
    if OURS not in lines:
        return Absent(f"no run of {display_name(OURS)} on {model} has diagnostics/positions.json")
    rule, threshold = gaps[0], tuple[float, ...]()  # of OURS, which comes last
    if rule.delta is not None and rule.w_min is not None:
        longest = max(len(run.positions) for run in gaps)
        threshold = induced_threshold(rule.delta, rule.w_min, longest, rule.span)
    return GapsInfo(
        title=title,
        source=f"{model}; {origin(board.core)}",
        model=model,
        lines=tuple(lines.values()),
        delta=rule.delta,
        threshold=threshold,
        run_ids=run_ids_of(drawn),
        palette=palette,
    )


def draw_gaps(info: GapsInfo, fig: Figure) -> None:
    """The mean gap (solid) and the mean of its largest tenth (dashed) by position; beside it delta/w_t, and delta."""
    (_, left), (_, right) = panel_grid(fig, replace(info, panels=(0, 1)), 2, (5.2, 3.7))
    for line in info.lines:
        colour, gaps = line.stroke.colour, line.gaps
        for curve, style, marker, of in (
            (gaps.top10, "--", "", "largest 10 %"),
            (gaps.mean, "-", line.stroke.marker, "mean"),
        ):
            if curve.band:
                left.fill_between(
                    curve.positions, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0
                )
            left.plot(
                curve.positions,
                curve.mean,
                style,
                color=colour,
                label=f"{line.label}, {of}",
                marker=marker,
                markevery=0.12,
                markersize=3.8,
            )
    left.set_ylim(bottom=0)
    if info.threshold and info.delta is not None:
        ours, other = (stroke.colour for stroke in info.palette.strokes((OURS, COMPARED)).values())
        steps = range(1, len(info.threshold) + 1)
        right.fill_between(steps, info.delta, info.threshold, color=ours, alpha=0.1, linewidth=0)
        right.plot(steps, info.threshold, color=ours, label="δ / w, with position weight")
        right.axhline(
            info.delta, color=other, linestyle="--", label=f"δ = {info.delta:g}, the same everywhere"
        )
        above_delta = max(info.threshold) - info.delta
        if above_delta > 0:  # none if w_min = 1
            right.set_ylim(info.delta - 0.6 * above_delta, info.delta + 1.2 * above_delta)
    else:
        right.text(0.05, 0.9, "the rule has no position weight", transform=right.transAxes, color="#777777")
    for ax, title, y_label in (
        (left, "Gap between the policies", "|π(y) − μ(y)|"),
        (right, "Threshold on the divergence", "δ / w"),
    ):
        ax.set_title(title)
        ax.set_xlabel("token position")
        ax.set_ylabel(y_label)
        whole_ticks(ax)
        ax.margins(x=0.02)
        legend_below(ax, 2, -0.2)


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
    palette: Palette

    @property
    def source(self) -> str:
        """The run and its core."""
        return f"{self.about}; {self.origin}"


def window_info(study: StudyResults, title: str, palette: Palette = PAPER) -> WindowInfo | Absent:
    """The most instructive window: that of a CPPO run with both kinds of masking, or if there is none, the first in the
    order of models and seeds.
    """
    board = study.boards.get(MAIN)
    if board is None:
        return Absent(study.why_absent(MAIN))
    runs = [
        run for model in board.models for run in board.runs_of(model, OURS) if run.mlflow_id in study.windows
    ]
    cuts = [(run, study.windows[run.mlflow_id].cut(TOKENS)) for run in runs]
    if not cuts:
        return Absent(f"no run of {display_name(OURS)} has diagnostics/window.json")
    run, window = max(cuts, key=lambda cut: len(set(cut[1].masked_by) - {""}))
    # As labels of the bars: line ends and spaces are made visible, long tokens are cut.
    symbols = [
        "".join(
            letter if letter.isprintable() else "�"
            for letter in symbol.translate(str.maketrans("\n\t ", "↵→·"))
        )
        for symbol in window.symbols
    ]
    return WindowInfo(
        title=title,
        origin=origin(board.core),
        about=f"{run.describe(display_name)}, training step {window.step}",
        symbols=tuple(
            symbol if len(symbol) <= _LONGEST_SYMBOL else symbol[: _LONGEST_SYMBOL - 1] + "…"
            for symbol in symbols
        ),
        window=window,
        effective=window.effective(),
        kinds=_kinds(window.masked_by, window.moves_away),
        run_ids=(run.run_id or "",),
        palette=palette,
    )


def draw_window(info: WindowInfo, fig: Figure) -> None:
    """Draw bars w_t D_t; a token that moves away and lies above the effective threshold is masked (shaded)."""
    surround(fig, (9.6, 4.3), (info.title, info.about, info.origin))
    ax, window, count, palette = fig.subplots(), info.window, len(info.symbols), info.palette
    delta, prefix = window.token_threshold, palette.reasons["prefix"]
    of_token = palette.strokes([COMPARED])[COMPARED].colour
    top = 1.2 * max(delta, *window.weighted_divergence)
    low = min(0.0, *info.effective)
    bottom = max(low * 1.1, -top / 2) if low < 0 else 0.0  # a far overspent budget is cut off
    reach = np.clip(info.effective, bottom, top)
    edges = np.arange(count + 1) - 0.5

    def stairs(values: ArrayLike, baseline: ArrayLike | None = None, **style: Any) -> None:
        ax.stairs(values, edges, baseline=baseline, fill=baseline is not None, **style)

    token = np.full(count, delta)
    stairs(np.full(count, top), np.clip(reach, 0.0, None), color=_REJECTED, alpha=0.55, zorder=0)
    stairs(token, np.clip(reach, 0.0, delta), color=prefix, alpha=0.22, zorder=1)
    ax.bar(range(count), window.weighted_divergence, width=0.7, **palette.bars(info.kinds))
    stairs(token, color=of_token, linestyle="--", linewidth=1.2, zorder=3)
    left_over = np.clip(window.prefix_threshold, bottom - top, 2 * top)
    stairs(left_over, color=_PREFIX, linestyle=":", linewidth=1.5, zorder=4)
    stairs(reach, color=_EFFECTIVE, linewidth=1.8, zorder=5)
    if bottom < 0:
        ax.axhline(0, color="#555555", linewidth=0.8, zorder=3)
    ax.set_ylim(bottom, top)
    ax.set_xlim(-0.6, count - 0.4)
    rotation = 90 if max(map(len, info.symbols)) > 2 else 0
    ax.set_xticks(range(count), info.symbols, rotation=rotation, fontsize=sized(8), parse_math=False)
    ax.set_ylabel("w D")
    ax.grid(axis="x", visible=False)
    names = {
        "away": "kept",
        "toward": "kept: moves toward μ",
        "token": "masked by the token threshold",
        "prefix": "masked by the prefix budget",
    }
    handles = [
        Line2D([], [], color=of_token, linestyle="--", label="token threshold δ"),
        Line2D([], [], color=_PREFIX, linestyle=":", label="δ + δ_b W − S of the prefix"),
        Line2D([], [], color=_EFFECTIVE, linewidth=1.8, label="effective threshold, the lower of both"),
        Patch(color=prefix, alpha=0.22, label="taken away by the prefix"),
        Patch(color=_REJECTED, label="rejected if moving away from μ"),
        *(palette.bar(kind, label) for kind, label in names.items() if kind in info.kinds),
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=sized(8))


# The paper's two rows of panels: (sweep, heading).
MECHANISMS = (
    ("single_mechanism", "Single mechanism"),
    ("position_weight_ordering", "Position-weight ordering"),
    ("mask_vs_soft", "Mask or soft gate"),
)
SETTINGS = (
    ("sensitivity", "Sensitivity to δ_b and w_min"),
    ("kl_vs_tv", "KL or TV"),
    ("binary_vs_topk", "Binary or Top-K"),
)


def gallery(study: StudyResults, palette: Palette = PAPER) -> tuple[Picture, ...]:
    """All eleven figures in order, in the colours of `palette`."""
    counts = {cell.finished for board in study.boards.values() for cell in board.cells.values()}  # of seeds
    kinds = ["are the pointwise 95 % interval of the mean (Student's t)"] * (
        max(counts, default=0) >= FEWEST_RUNS
    )
    kinds += ["of two seeds reach from one to the other"] * (2 in counts)
    seeds = f" Lines are means over seeds; bands {', '.join(kinds)}." if kinds else ""
    # The models of the roles (post-trained, then the Base models by size) that have runs.
    main, count, roles = study.boards.get(MAIN), len(study.models), list[str | Absent]()
    for index in range(ROLES):
        role: str | Absent = Absent(
            f"the study has {count} models; this figure shows the paper's model {index + 1} of {ROLES}"
        )
        if main is None:
            role = Absent(study.why_absent(MAIN))
        elif index < count:
            model = study.models[index]
            has_runs = any(run.mlflow_id for run in main.runs if run.model == model)
            role = model if has_runs else Absent(f"no run on {model} yet")
        roles.append(role)
    base_models = tuple(role for role in roles[1:] if isinstance(role, str))
    missing = [role.reason for role in roles[1:] if isinstance(role, Absent)]
    left_out = f" Not shown: {'; '.join(missing)}." if base_models and missing else ""
    pictures: list[Picture] = []

    def add(
        title: str, caption: str, make: Callable[[str], Any], draw: Callable[[Any, Figure], None]
    ) -> None:
        number = len(pictures) + 1
        label = f"Figure {number}"
        pictures.append(Picture(f"figure_{number}", label, title, caption, make(f"{label}. {title}"), draw))

    largest = roles[-1]
    right = f"{largest}, with the best score of every method.{seeds}"
    if isinstance(largest, Absent):
        right = f"not drawn, {largest.reason}."
    add(
        "Masking rules and the largest model",
        "Left: one made-up response, masked by the rules themselves; a bar is what the rule compares with its limit "
        "(ratio, divergence, or weighted divergence). Differs from the paper's schematic, which has PPO, DPPO and "
        f"CPPO: shown are GRPO (PPO with Clip-Higher), DPPO, TRM-Max and CPPO. Right: {right}",
        lambda head: schematic_info(study, largest, head, palette),
        draw_schematic,
    )
    add(
        "Gap between the policies by token position",
        "Left: mean over tokens, and mean over the largest tenth. Right: the threshold δ/w that position weights "
        "w put on the divergence, for a response of the maximum length. Differs from the paper's figure: shown are "
        "the runs of CPPO and DPPO at validated steps; the paper shows the drift after 200 updates of GRPO, as the "
        f"maximum in each bin of positions.{seeds}",
        lambda head: gaps_info(study, head, palette),
        draw_gaps,
    )
    add(
        "The prefix constraint on some tokens of one response",
        "What each token spends (bars, w D) and the lower of two limits: the token threshold, and what the prefix "
        "leaves over. A token that moves toward μ is always kept.",
        lambda head: window_info(study, head, palette),
        draw_window,
    )
    add(
        "Validation curves of the Base models",
        "Mean over the benchmarks inside the matched window. A dot marks the step selected for each run, the star "
        f"the best score of the table; a cross ends a run that collapsed.{seeds}{left_out}",
        lambda head: (
            curves.curves_info(study.boards[MAIN], head, base_models, palette=palette)
            if base_models
            else Absent(missing[0])
        ),
        partial(curves.draw, in_row=ROLES - 1),
    )
    for title, sweeps in (
        ("Ablations of the mechanisms", MECHANISMS),
        ("Ablations of the settings", SETTINGS),
    ):
        unseen = [
            f"{heading}: {study.why_absent(name)}"
            for name, heading in sweeps
            if study.boards.get(name) is None
        ]
        add(
            title,
            "Mean over the benchmarks. Next to each variant is its score, at the step selected for each run "
            f"(dots).{seeds}" + (f" Not shown: {'; '.join(unseen)}." if unseen else ""),
            partial(ablations_info, study, sweeps=sweeps, palette=palette),
            draw_ablations,
        )
    add(
        "The prefix budget of CPPO during training",
        "Effective budget rate δ_b, averaged over responses (top; its axis does not begin at 0), and the part of the "
        "masked tokens that the prefix budget alone rejected (bottom; a dot for each step that masked any)."
        f"{seeds}{left_out}",
        lambda head: (
            curves.warmup_info(study.boards[MAIN], base_models, head, palette)
            if base_models
            else Absent(missing[0])
        ),
        curves.draw_warmup,
    )
    for index, role in enumerate(roles):
        name = study.models[index] if index < len(study.models) else f"model {index + 1}"
        add(
            f"All curves of {name}",
            "Benchmarks on top; below, reward, response length and relative log-prob error of each step (thin) with "
            "their moving averages (thick; for the reward the logged one, if there is one)."
            + (
                f"{seeds} After a run has ended, the training curves are those of the remaining runs."
                if seeds
                else ""
            ),
            partial(model_info, study, role, palette=palette),
            draw_model,
        )
    return tuple(pictures)


# Figures 5 and 6, of ablations.


@dataclass(frozen=True)
class AblationPanel:
    """One sweep. If `panel` is None it cannot be drawn, and `absent` says why. `keys`: labels with scores."""

    sweep: str
    heading: str
    panel: curves.Panel | None
    absent: str
    keys: tuple[Key, ...]


def ablations_info(
    study: StudyResults, title: str, sweeps: Sequence[tuple[str, str]], palette: Palette = PAPER
) -> PanelsInfo | Absent:
    """One panel for each of `sweeps` (name, heading), on the first model of the sweep."""
    panels, infos, main = [], [], study.boards.get(MAIN)
    ours = {run.mlflow_id for run in main.runs if run.variant == OURS} if main else set()
    for name, heading in sweeps:
        board = study.boards.get(name)
        if board is None:
            panels.append(AblationPanel(name, heading, None, study.why_absent(name), ()))
            continue
        # The variants, under any name, whose runs are those of the main sweep's CPPO, are drawn like it.
        aliases: dict[str, str] = {}
        for variant in board.variants:
            runs = {run.mlflow_id for run in board.runs if run.variant == variant} - {""}
            aliases |= {variant: OURS} if runs and runs <= ours else {}
        info = curves.curves_info(board, heading, board.models[:1], aliases, palette)
        keys = curves.scored_keys(board, info.panels[0])
        panels.append(AblationPanel(name, heading, info.panels[0], "", keys))
        infos.append(info)
    if not infos:
        return Absent("; ".join(dict.fromkeys(panel.absent for panel in panels)))
    source = "; ".join(dict.fromkeys(info.source for info in infos))
    run_ids = tuple(sorted({run_id for info in infos for run_id in info.run_ids}))
    return PanelsInfo(title, source, run_ids, tuple(panels), y_label=infos[-1].y_label)


def draw_ablations(info: PanelsInfo, fig: Figure) -> None:
    """The panels in a row, each the curves of a sweep with its legend below."""
    count, longest = len(info.panels), max(len(panel.keys) for panel in info.panels)
    size = (11.4 / count, 3.4 + 0.17 * longest)
    for index, (entry, ax) in enumerate(panel_grid(fig, info, count, size)):
        if entry.panel is None:
            ax.set_title(entry.heading)
            show_text(ax, "no results yet")
            continue
        curves.draw_panel(entry.panel, ax, info.y_label if index == 0 else "")
        ax.set_title(f"{entry.heading}\n")
        ax.text(
            0,
            1.02,
            entry.panel.model,
            transform=ax.transAxes,
            fontsize=sized(8),
            color="#555555",
            parse_math=False,
        )
        key_legend(
            ax,
            entry.keys,
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.17),
            borderpad=0,
            fontsize=sized(8),
        )


# Figures 8 to 11, one per model: a panel per benchmark on top; reward, response length and relative log-prob error
# below.

_REWARD = "train/reward"
_SMOOTHED = "train/reward_smoothed"  # logged by the paper; our runs are smoothed here
_LENGTH = "train/response_length"
_ERROR = "train/relative_logprob_error"
_SMOOTHING = 0.05  # width of the moving average as a share of the steps
_KILO = 1000.0
_FEW_POINTS = 150  # above which a line gets a moving average
_POINTS = 2000  # per line of response length and error at most: every step of the paper's runs


@dataclass(frozen=True)
class BenchmarkPanel:
    """One benchmark: its lines in percent."""

    benchmark: str
    heading: str
    lines: tuple[curves.Line, ...]


@dataclass(frozen=True)
class RewardLine:
    """One variant: the reward of each step, and its moving average with its band (`band` is the kind, see
    `estimate.band`); both are means over the runs that logged the step.
    """

    variant: str
    label: str
    stroke: Stroke
    steps: tuple[int, ...]
    raw: tuple[float, ...]
    smooth_steps: tuple[int, ...]
    band: str
    smooth: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class ModelInfo(Info):
    """Everything the figure shows."""

    model: str
    y_label: str
    benchmarks: tuple[BenchmarkPanel, ...]
    rewards: tuple[RewardLine, ...]
    traces: tuple[curves.DiagnosticPanel, ...]
    keys: tuple[Key, ...]


def model_info(
    study: StudyResults, role: str | Absent, title: str, palette: Palette = PAPER
) -> ModelInfo | Absent:
    """The figure of a model of the main sweep, or why it has none."""
    if isinstance(role, Absent):
        return role
    board = study.boards[MAIN]
    runs = [run for run in board.runs if run.model == role]
    strokes = palette.strokes(in_order(run.variant for run in runs))
    panels, rewards = [], []
    for benchmark in board.benchmarks_of(role):
        lines = (
            curves.line_of(board, board.runs_of(role, name), stroke, benchmark)
            for name, stroke in strokes.items()
        )
        panels.append(BenchmarkPanel(benchmark, benchmark_name(benchmark), tuple(filter(None, lines))))
    for name, stroke in strokes.items():
        raw = _by_run(board, (role, name), _REWARD)
        if raw.empty:
            continue
        smooth = _by_run(board, (role, name), _SMOOTHED)
        if smooth.empty:
            smooth = _moving_average(raw, _SMOOTHING).where(raw.notna())
        steps, mean, around = tuple(map(int, raw.index)), band(raw).mean, band(smooth, 0, 1)
        of_smooth = tuple(map(int, smooth.index)), around.band, around.mean, around.low, around.high
        rewards.append(RewardLine(name, display_name(name), stroke, steps, mean, *of_smooth))
    variants = {line.variant for panel in panels for line in panel.lines} | {line.variant for line in rewards}
    if not variants:
        return Absent(f"no run on {role} has logged a benchmark or a reward")
    return ModelInfo(
        title=title,
        source=origin(board.core),
        model=role,
        y_label=f"{score_name(board)} (%)",
        benchmarks=tuple(panels),
        rewards=tuple(rewards),
        traces=(
            _smoothed(board, role, _LENGTH, "response length (tokens)", strokes),
            _smoothed(board, role, _ERROR, "relative log-prob error", strokes),
        ),
        keys=keys_of(strokes, variants),
        run_ids=run_ids_of(runs),
    )


def _by_run(board: Scoreboard, pair: tuple[str, str], metric: str) -> pd.DataFrame:
    """A metric of a cell: a row per step that any run logged, a column per run."""
    rows = board.logged(*pair, metric)
    rows = rows[np.isfinite(rows["value"])]  # non-finite values cannot be drawn
    return rows.astype({"mlflow_id": object}).pivot(index="step", columns="mlflow_id", values="value")


def _moving_average(values: pd.DataFrame, share: float) -> pd.DataFrame:
    """Over a share of the rows, an odd number, so that it is centred."""
    width = max(3, round(share * len(values)) | 1)
    return values.rolling(width, center=True, min_periods=1).mean()


def _smoothed(
    board: Scoreboard, model: str, metric: str, label: str, strokes: Mapping[str, Stroke]
) -> curves.DiagnosticPanel:
    traces, unit = curves.traces_of(board, model, metric, strokes, _POINTS), 1.0
    if metric == _LENGTH and max((max(trace.high) for trace in traces), default=0.0) >= 2 * _KILO:
        label, unit = "response length (k tokens)", _KILO
    shown = []
    for trace in traces:
        parts = {"mean": trace.mean, "low": trace.low, "high": trace.high}
        if len(trace.steps) > _FEW_POINTS:  # so many that seven lines would be illegible
            smooth = _moving_average(pd.DataFrame({"mean": trace.mean}), _SMOOTHING / 2)
            parts["smooth"] = tuple(smooth["mean"])
        scaled: Any = {name: tuple(value / unit for value in part) for name, part in parts.items()}
        shown.append(replace(trace, **scaled))
    return curves.DiagnosticPanel(model, metric, label, tuple(shown))


def draw_model(info: ModelInfo, fig: Figure) -> None:
    """Draw benchmarks above (dots mark the steps selected by their mean), training metrics below, the reward raw thin
    and smoothed thick, and the legend.
    """
    columns = max(len(info.benchmarks), 1 + len(info.traces))
    surround(fig, (3.8 * columns, 5.6), info.heads, info.keys)
    upper, lower = fig.subplots(2, columns, squeeze=False)
    for index, (ax, panel) in enumerate(zip(upper, info.benchmarks, strict=False)):
        curves.draw_lines(ax, panel.lines)
        ax.set_title(panel.heading, parse_math=False)
        ax.set_ylabel(info.y_label if index == 0 else "")
        step_axis(ax)
    ax = lower[0]
    for line in info.rewards:
        ax.plot(line.steps, line.raw, color=line.stroke.colour, linewidth=0.5, alpha=0.3, zorder=2)
    for order, line in enumerate(info.rewards):
        fill(ax, line, line.smooth_steps)
        ax.plot(
            line.smooth_steps,
            line.smooth,
            linewidth=1.6,
            zorder=3 + order,
            label=line.label,
            **line.stroke.marked(),
        )
    ax.set_title("reward (fraction)")
    step_axis(ax)
    if not info.rewards:
        curves.not_logged(ax)
    for ax, trace in zip(lower[1:], info.traces, strict=False):
        curves.draw_traces(trace, ax, trace.label)
    for ax in (*upper[len(info.benchmarks) :], *lower[1 + len(info.traces) :]):
        ax.remove()
