"""Figure 2: the gap between the policies at each token position, and the threshold that the position weights induce."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cppo_lab.analysis.positions import GapCurve, GapCurves, gap_curves, induced_threshold
from cppo_lab.analysis.study import COMPARED, MAIN, OURS, StudyResults, runs_of
from cppo_lab.reports.figures.frame import above, surround
from cppo_lab.reports.figures.palette import PALETTES, PAPER
from cppo_lab.reports.figures.picture import Absent
from cppo_lab.reports.names import display_name, origin
from cppo_lab.reports.tables import core_of
from cppo_lab.rules import Stroke


@dataclass(frozen=True)
class GapLines:
    """One variant's gaps."""

    variant: str
    label: str
    stroke: Stroke
    gaps: GapCurves


@dataclass(frozen=True)
class GapsInfo:
    """Everything the figure shows; `threshold` is delta/w_t at positions 1, 2, ... for a response of the maximum
    length; empty if the rule has no position weight.
    """

    title: str
    source: str
    model: str
    lines: tuple[GapLines, ...]
    delta: float | None
    threshold: tuple[float, ...]
    run_ids: tuple[str, ...]
    palette: str


def gaps_info(study: StudyResults, title: str, palette: str = PAPER) -> GapsInfo | Absent:
    """The gaps of CPPO on the first model, and those of DPPO if its runs have them."""
    board = study.board(MAIN)
    if board is None:
        return Absent(study.why_absent(MAIN))
    model = board.models[0]
    lines, run_ids = [], []
    for variant in (COMPARED, OURS):
        with_gaps = [run for run in runs_of(board, model, variant) if run.mlflow_id in study.positions]
        found = gap_curves([study.positions[run.mlflow_id or ""] for run in with_gaps])
        if found is not None:
            lines.append(GapLines(variant, display_name(variant), PALETTES[palette].methods[variant], found))
            run_ids += [run.run_id or "" for run in with_gaps]
    ours = [run for run in runs_of(board, model, OURS) if run.mlflow_id in study.positions]
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
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


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
    ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _positions(ax: Axes) -> None:
    ax.set_xlabel("token position")
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    ax.margins(x=0.02)


def draw(info: GapsInfo, fig: Figure, headed: bool = True) -> None:
    """Both panels side by side."""
    surround(
        fig,
        (10.4, 3.7),
        above(info.title, info.source, (line.gaps.mean.band for line in info.lines)) if headed else (),
        (),
    )
    left, right = fig.subplots(1, 2)
    draw_gaps(info, left)
    draw_threshold(info, right)
