"""Figure 2: the gap between the policies at each token position, and the threshold that the position weights induce.
Figure 3: CPPO on consecutive tokens of one logged response: what each token spends, and its limit.
"""

from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from cppo_lab.analysis.artifacts import TokenWindow
from cppo_lab.analysis.positions import GapCurve, GapCurves, gap_curves, induced_threshold
from cppo_lab.analysis.selection import RunScore
from cppo_lab.analysis.study import COMPARED, MAIN, OURS, StudyResults
from cppo_lab.reports.figures.data import APPEARANCE, HEADING
from cppo_lab.reports.figures.drawing import Absent, above, panel_grid, sized, surround
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import core_of
from cppo_lab.rules import Stroke


@dataclass(frozen=True)
class GapLines:
    """One variant's gaps."""

    variant: str
    label: str
    stroke: Stroke = field(metadata=APPEARANCE)
    gaps: GapCurves


@dataclass(frozen=True)
class GapsInfo:
    """Everything the figure shows; `threshold` is delta/w_t at positions 1, 2, ... for a response of the maximum
    length; empty if the rule has no position weight.
    """

    title: str = field(metadata=HEADING)
    source: str = field(metadata=HEADING)
    model: str
    lines: tuple[GapLines, ...]
    delta: float | None
    threshold: tuple[float, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)
    palette: str = field(metadata=APPEARANCE)


def gaps_info(study: StudyResults, title: str, palette: str = PAPER) -> GapsInfo | Absent:
    """The gaps of CPPO on the first model, and those of DPPO if its runs have them."""
    board = study.board(MAIN)
    if board is None:
        return Absent(study.why_absent(MAIN))
    model = board.models[0]
    lines, run_ids = [], []
    for variant in (COMPARED, OURS):
        with_gaps = [run for run in board.runs_of(model, variant) if run.mlflow_id in study.positions]
        found = gap_curves([study.positions[run.mlflow_id or ""] for run in with_gaps])
        if found is not None:
            lines.append(GapLines(variant, display_name(variant), PALETTES[palette].methods[variant], found))
            run_ids += [run.run_id or "" for run in with_gaps]
    ours = [run for run in board.runs_of(model, OURS) if run.mlflow_id in study.positions]
    if not any(line.variant == OURS for line in lines):
        return Absent(f"no run of {display_name(OURS)} on {model} has diagnostics/positions.json")
    rule = study.positions[ours[0].mlflow_id or ""]
    longest = max(len(study.positions[run.mlflow_id or ""].positions) for run in ours)
    weighted = rule.delta is not None and rule.w_min is not None
    return GapsInfo(
        title=title,
        source=f"{model}; {origin(core_of(board))}",
        model=model,
        lines=tuple(lines),
        delta=rule.delta,
        threshold=induced_threshold(rule.delta or 0, rule.w_min or 1, longest, rule.span) if weighted else (),
        run_ids=tuple(sorted(run_ids)),
        palette=palette,
    )


def _draw_gap(ax: Axes, curve: GapCurve, line: GapLines, style: str, label: str) -> None:
    colour = line.stroke.colour
    if curve.band:
        ax.fill_between(curve.positions, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    marker = line.stroke.marker if style == "-" else ""
    ax.plot(
        curve.positions,
        curve.mean,
        style,
        color=colour,
        label=label,
        marker=marker,
        markevery=0.12,
        markersize=3.8,
    )


def draw_gaps(info: GapsInfo, ax: Axes) -> None:
    """Draw the mean gap (solid) and the mean of its largest tenth (dashed) by position."""
    for line in info.lines:
        _draw_gap(ax, line.gaps.top10, line, "--", f"{line.label}, largest 10 %")
        _draw_gap(ax, line.gaps.mean, line, "-", f"{line.label}, mean")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("|π(y) − μ(y)|")
    ax.set_title("Gap between the policies", loc="left")
    _positions(ax)
    ax.legend(fontsize=sized(8), loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def draw_threshold(info: GapsInfo, ax: Axes) -> None:
    """Draw delta/w_t, and delta itself."""
    ax.set_title("Threshold on the divergence", loc="left")
    _positions(ax)
    ax.set_ylabel("δ / w")
    if not info.threshold or info.delta is None:
        ax.text(0.05, 0.9, "the rule has no position weight", transform=ax.transAxes, color="#777777")
        return
    ours, other = (PALETTES[info.palette].methods[name].colour for name in (OURS, COMPARED))
    steps = range(1, len(info.threshold) + 1)
    ax.fill_between(steps, info.delta, info.threshold, color=ours, alpha=0.1, linewidth=0)
    ax.plot(steps, info.threshold, color=ours, label="δ / w, with position weight")
    ax.axhline(info.delta, color=other, linestyle="--", label=f"δ = {info.delta:g}, the same everywhere")
    top = max(info.threshold)
    if top > info.delta:  # equal if w_min = 1
        ax.set_ylim(info.delta - 0.6 * (top - info.delta), top + 0.2 * (top - info.delta))
    ax.legend(fontsize=sized(8), loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _positions(ax: Axes) -> None:
    ax.set_xlabel("token position")
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    ax.margins(x=0.02)


def draw_both(info: GapsInfo, fig: Figure) -> None:
    """Both panels of Figure 2 side by side."""
    bands = [line.gaps.mean.band for line in info.lines]
    left, right = panel_grid(fig, 2, 2, (10.4, 3.7), above(info.title, info.source, bands), ())
    draw_gaps(info, left)
    draw_threshold(info, right)


TOKENS = 24
LONGEST_SYMBOL = 10


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
    best: tuple[int, RunScore, TokenWindow] | None = None
    for model in board.models:
        for run in board.runs_of(model, OURS):
            found = study.windows.get(run.mlflow_id or "")
            if found is None:
                continue
            cut = found.span(TOKENS)
            kinds = len({reason for reason in cut.masked_by if reason})
            if best is None or kinds > best[0]:
                best = (kinds, run, cut)
    if best is None:
        return Absent(f"no run of {display_name(OURS)} has diagnostics/window.json")
    _, run, cut = best
    seed = "" if run.seed is None else f", seed {run.seed}"
    return WindowInfo(
        title=title,
        origin=origin(core_of(board)),
        about=f"{display_name(OURS)} on {run.model}{seed}, training step {cut.step}",
        symbols=tuple(_visible(symbol) for symbol in cut.symbols),
        window=cut,
        effective=cut.effective(),
        kinds=tuple(
            reason or ("away" if away else "toward")
            for reason, away in zip(cut.masked_by, cut.moves_away, strict=True)
        ),
        run_ids=(run.run_id or "",),
        palette=palette,
    )


def _visible(symbol: str) -> str:
    """A token as the label of its bar: line ends and spaces are made visible, long tokens are cut."""
    shown = symbol.replace("\n", "↵").replace("\t", "→").replace(" ", "·")
    shown = "".join(letter if letter.isprintable() else "�" for letter in shown)
    return shown if len(shown) <= LONGEST_SYMBOL else shown[: LONGEST_SYMBOL - 1] + "…"


def draw_window(info: WindowInfo, ax: Axes) -> None:
    """Draw bars w_t D_t; a token that moves away and lies above the effective threshold is masked (shaded)."""
    window, count, palette = info.window, len(info.symbols), PALETTES[info.palette]
    edges = [place - 0.5 for place in range(count + 1)]
    token = [window.token_threshold] * count
    top = 1.2 * max(window.token_threshold, *window.weighted_divergence)
    low = min(0.0, *info.effective)
    bottom = max(low * 1.1, -top / 2) if low < 0 else 0.0  # a far overspent budget is cut off
    reach = [min(max(value, bottom), top) for value in info.effective]
    prefix = [min(max(value, bottom - top), 2 * top) for value in window.prefix_threshold]
    rejected = [max(0.0, value) for value in reach]
    ax.stairs([top] * count, edges, baseline=rejected, fill=True, color="#F3D9DC", alpha=0.55, zorder=0)
    tighter = [max(0.0, min(value, window.token_threshold)) for value in reach]
    ax.stairs(
        token, edges, baseline=tighter, fill=True, color=palette.reasons["prefix"], alpha=0.22, zorder=1
    )
    ax.bar(
        range(count),
        window.weighted_divergence,
        width=0.7,
        color=[palette.reasons[kind] for kind in info.kinds],
        hatch=[palette.hatches.get(kind, "") for kind in info.kinds],
        zorder=2,
    )
    token_colour = palette.methods["dppo"].colour
    ax.stairs(token, edges, baseline=None, color=token_colour, linestyle="--", linewidth=1.2, zorder=3)
    ax.stairs(prefix, edges, baseline=None, color="#8A5A00", linestyle=":", linewidth=1.5, zorder=4)
    ax.stairs(reach, edges, baseline=None, color="#111111", linewidth=1.8, zorder=5)
    if bottom < 0:
        ax.axhline(0, color="#555555", linewidth=0.8, zorder=3)
    ax.set_ylim(bottom, top)
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_xticks(
        range(count), info.symbols, rotation=90 if max(map(len, info.symbols)) > 2 else 0, fontsize=sized(8)
    )
    for label in ax.get_xticklabels():
        label.set_parse_math(False)
    ax.set_ylabel("w D")
    ax.grid(axis="x", visible=False)


def handles(info: WindowInfo) -> list[Patch | Line2D]:
    """The legend handles: lines, regions, and the kinds of bars that occur."""
    names = {
        "away": "kept",
        "toward": "kept: moves toward μ",
        "token": "masked by the token threshold",
        "prefix": "masked by the prefix budget",
    }
    palette = PALETTES[info.palette]
    bars = [
        Patch(facecolor=palette.reasons[kind], hatch=palette.hatches.get(kind, ""), label=label)
        for kind, label in names.items()
        if kind in info.kinds
    ]
    return [
        Line2D([], [], color=palette.methods["dppo"].colour, linestyle="--", label="token threshold δ"),
        Line2D([], [], color="#8A5A00", linestyle=":", label="δ + δ_b W − S of the prefix"),
        Line2D([], [], color="#111111", linewidth=1.8, label="effective threshold, the lower of both"),
        Patch(color=palette.reasons["prefix"], alpha=0.22, label="taken away by the prefix"),
        Patch(color="#F3D9DC", label="rejected if moving away from μ"),
        *bars,
    ]


def draw_tokens(info: WindowInfo, fig: Figure) -> None:
    """Draw the window with its legend below."""
    surround(fig, (9.6, 4.3), (info.title, info.about, info.origin), ())
    draw_window(info, fig.subplots())
    fig.legend(handles=handles(info), loc="outside lower center", ncols=3, fontsize=sized(8))
