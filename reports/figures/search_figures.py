"""The figures of a search: its history, each trial's score by step, parameter importances, and those of
`search_values`; each of them drawn or with the reason why it cannot be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cppo_lab.analysis.search import (
    COMPLETE,
    FAILED,
    PRUNED,
    RUNNING,
    SearchResult,
    Value,
    by_importance,
    complete_trials,
    ranking,
    value_of,
)
from cppo_lab.reports.figures import search_values as values
from cppo_lab.reports.figures.data import APPEARANCE, HEADING, columns
from cppo_lab.reports.figures.drawing import Absent, Picture, legend_below, panel_grid, sized
from cppo_lab.reports.names import objective_name, origin
from cppo_lab.rules import METHOD_COLOURS

BEST = METHOD_COLOURS["cppo"]
STATE_COLOURS = {COMPLETE: "#8FA9CC", PRUNED: "#E0952A", FAILED: "#C8384A", RUNNING: "#59A14F"}
BAR_COLOURS = ("#0052D9", "#E0952A", "#59A14F", "#B07AA1")
NAMED = {COMPLETE: "complete", PRUNED: "pruned", FAILED: "failed", RUNNING: "still running"}
MARKS = {PRUNED: "x", FAILED: "X"}


@dataclass(frozen=True)
class UnvaluedTrials:
    """The numbers of the trials that ended in a state without a value."""

    state: str
    trial: tuple[int, ...]


@dataclass(frozen=True)
class HistoryInfo:
    """One objective over the trials. `points`: (number, percent, best so far) of the complete trials."""

    objective: str
    points: tuple[tuple[int, float, float], ...] = field(metadata=columns("trial", "value", "best_so_far"))
    others: tuple[UnvaluedTrials, ...]


def history_info(result: SearchResult, index: int) -> HistoryInfo:
    """Objective number `index` by trial number."""
    trials = complete_trials(result)
    values = [100 * value_of(trial, index) for trial in trials]
    highest = accumulate(values, max)
    others = [
        UnvaluedTrials(state, tuple(trial.number for trial in result.trials if trial.state == state))
        for state in (PRUNED, FAILED)
    ]
    return HistoryInfo(
        objective=result.objectives[index],
        points=tuple(zip((trial.number for trial in trials), values, highest, strict=True)),
        others=tuple(ended for ended in others if ended.trial),
    )


def draw_history(info: HistoryInfo, ax: Axes) -> None:
    """Draw a dot for each value, the best so far as a step line, and the trials without a value along the bottom."""
    numbers, values, highest = zip(*info.points, strict=True)
    last = max([*numbers, *(number for ended in info.others for number in ended.trial)])
    ax.plot(numbers, values, "o", color=STATE_COLOURS[COMPLETE], markersize=5, label="trial")
    ax.step((*numbers, last), (*highest, highest[-1]), where="post", color=BEST, label="best so far")
    top = max(info.points, key=lambda point: (point[1], -point[0]))
    ax.plot(*top[:2], "*", markersize=13, color=BEST, markeredgecolor="white", zorder=5)
    for ended in info.others:
        ax.plot(
            ended.trial,
            [0.03] * len(ended.trial),
            MARKS[ended.state],
            color=STATE_COLOURS[ended.state],
            markersize=6,
            transform=ax.get_xaxis_transform(),
            label=f"{NAMED[ended.state]} (no value)",
        )
    ax.margins(x=0.03, y=0.14)
    ax.set_xlabel("trial")
    ax.set_ylabel(f"{objective_name(info.objective)} (%)")
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    legend_below(ax, 4)


@dataclass(frozen=True)
class Piece:
    """The running score of one seed of a trial: (step, percent)."""

    points: tuple[tuple[int, float], ...] = field(metadata=columns("step", "running_score"))


@dataclass(frozen=True)
class TrialCurve:
    """The running score of one trial, one piece per seed."""

    trial: int
    state: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class TrialCurvesInfo:
    """All trials with a curve, by number; `best` is the number of the best trial. The `seeds` train one after the
    other, `t_stop` steps each.
    """

    lines: tuple[TrialCurve, ...]
    best: int | None
    seeds: tuple[int, ...]
    t_stop: int


def curves_info(result: SearchResult) -> TrialCurvesInfo:
    """The running scores of the trials."""
    ranked = ranking(result)
    lines = [
        TrialCurve(trial.number, trial.state, _pieces(trial.curve, result.t_stop))
        for trial in result.trials
        if trial.curve
    ]
    best = ranked[0].number if ranked and len(result.objectives) == 1 else None
    return TrialCurvesInfo(tuple(lines), best, result.seeds, result.t_stop)


def _pieces(curve: tuple[tuple[int, float], ...], t_stop: int) -> tuple[Piece, ...]:
    """The curve split where each seed begins, since the score restarts at that of the untrained model."""
    pieces: dict[int, list[tuple[int, float]]] = {}
    for step, score in curve:
        seed = max(0, step - 1) // t_stop if t_stop else 0
        pieces.setdefault(seed, []).append((step, 100 * score))
    return tuple(Piece(tuple(points)) for points in pieces.values())


def draw_curves(info: TrialCurvesInfo, ax: Axes) -> None:
    """Draw a line for each trial, with a mark at the end of those that ended early, and the best on top."""
    named: set[str] = set()
    for line in sorted(info.lines, key=lambda line: line.trial == info.best):
        best = line.trial == info.best
        colour = BEST if best else STATE_COLOURS[line.state]
        label = f"best: trial {line.trial}" if best else NAMED[line.state]
        style = "--" if line.state == RUNNING else "-"
        for piece in line.pieces:
            ax.plot(
                *zip(*piece.points, strict=True),
                f".{style}" if len(piece.points) == 1 else style,
                color=colour,
                linewidth=2 if best else 0.9,
                label=None if label in named else label,
            )
            named.add(label)
        if line.state in MARKS:
            ax.plot(*line.pieces[-1].points[-1], MARKS[line.state], color=colour, markersize=5, zorder=4)
    for place, seed in enumerate(info.seeds if len(info.seeds) > 1 else ()):
        ax.axvline(place * info.t_stop, color="#999999", linewidth=0.7, linestyle=":")
        ax.annotate(
            f"seed {seed}",
            (place * info.t_stop, 1.0),
            xycoords=ax.get_xaxis_transform(),
            xytext=(3, -2),
            textcoords="offset points",
            va="top",
            fontsize=sized(7.5),
            color="#777777",
        )
    ax.margins(x=0.02, y=0.1)
    ax.set_xlim(left=0)
    ax.set_xlabel("training step" + (", one seed after the other" if len(info.seeds) > 1 else ""))
    ax.set_ylabel("running score (%)")
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    legend_below(ax, 4)


@dataclass(frozen=True)
class Shares:
    """The importance of each parameter for one objective."""

    objective: str
    parameter: tuple[str, ...]
    importance: tuple[float, ...]


@dataclass(frozen=True)
class ImportancesInfo:
    """The parameters of all objectives are sorted by the first objective's shares, highest first."""

    shares: tuple[Shares, ...]


def importances_info(result: SearchResult) -> ImportancesInfo | None:
    """The importances; None if the search has none yet."""
    known = [
        (objective, result.importances[objective])
        for objective in result.objectives
        if result.importances.get(objective)
    ]
    if not known:
        return None
    first = known[0][1]
    names = {name for _, shares in known for name in shares}
    ranked = tuple(sorted(names, key=lambda name: (-first.get(name, 0.0), name)))
    return ImportancesInfo(
        tuple(Shares(key, ranked, tuple(shares.get(name, 0.0) for name in ranked)) for key, shares in known)
    )


def draw_importances(info: ImportancesInfo, ax: Axes) -> None:
    """Draw bars, the most important parameter on top, with one colour per objective."""
    height = 0.8 / len(info.shares)
    names = info.shares[0].parameter
    for place, shares in enumerate(info.shares):
        rows = [index + (place - (len(info.shares) - 1) / 2) * height for index in range(len(names))]
        bars = ax.barh(
            rows,
            shares.importance,
            0.86 * height,
            color=BAR_COLOURS[place % len(BAR_COLOURS)],
            label=objective_name(shares.objective),
        )
        ax.bar_label(bars, [f"{share:.2f}" for share in shares.importance], padding=3, fontsize=sized(8))
    ax.set_yticks(range(len(names)), list(names))
    for label in ax.get_yticklabels():
        label.set_parse_math(False)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.15)
    ax.set_xlim(left=0)
    ax.set_xlabel("importance (share of the total)")
    if len(info.shares) > 1:
        legend_below(ax)


PANEL_INCHES = (5.2, 3.9)
IN_ROW = 3
_DRAW: Mapping[type, Callable[[Any, Axes], None]] = {
    HistoryInfo: draw_history,
    TrialCurvesInfo: draw_curves,
    ImportancesInfo: draw_importances,
    values.SliceInfo: values.draw_slice,
    values.SensitivityInfo: values.draw_sensitivity,
    values.ParetoInfo: values.draw_pareto,
}


@dataclass(frozen=True)
class SearchPanel:
    """One panel: `caption` describes it, `info` is of a type that `_DRAW` can draw."""

    caption: str
    info: Any


@dataclass(frozen=True)
class SearchInfo:
    """Everything that one figure shows."""

    title: str = field(metadata=HEADING)
    source: str = field(metadata=HEADING)
    panels: tuple[SearchPanel, ...]
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)


def draw(info: SearchInfo, fig: Figure) -> None:
    """All panels, with title and source."""
    count = len(info.panels)
    columns = 2 if count == 4 else min(IN_ROW, count)
    width = max(columns * PANEL_INCHES[0], 6.4)
    size = (width, -(-count // columns) * PANEL_INCHES[1])
    axes = panel_grid(fig, count, columns, size, (info.title, info.source), ())
    for panel, ax in zip(info.panels, axes, strict=True):
        _DRAW[type(panel.info)](panel.info, ax)
        ax.set_title(panel.caption, loc="left", parse_math=False)


def search_figures(result: SearchResult, shipped: Mapping[str, Value]) -> tuple[Picture, ...]:
    """All figures: the Pareto front where there are several objectives, the space, and the course of the search."""
    nothing = "" if complete_trials(result) else "no trial is complete"
    objectives = () if nothing else tuple(enumerate(result.objectives))
    several = len(result.objectives) > 1
    pair = None if nothing else values.sensitivity_info(result, shipped)
    surface = (
        "The surface is linear between trials and ends with the outermost ones. "
        if pair and pair.surface
        else ""
    )
    others = "Trials differ in their other parameters as well." if len(result.parameters) > 2 else ""
    curves, importances = curves_info(result), importances_info(result)
    seeds = " The seeds of a trial train one after the other; the score is the mean over the seeds so far."
    pictures = [
        _picture(
            result,
            "pareto",
            "Trade-off between the objectives",
            "Both are better the higher. A trial is on the front if no other is at least as good in every objective "
            "and better in one; the line connects the front of the two shown objectives.",
            [("Pareto front", values.pareto_info(result))] if several and not nothing else [],
            nothing,
        ),
        _picture(
            result,
            "sensitivity",
            "Sensitivity to the two most important parameters",
            f"{surface}{others}".strip() or "Each dot is a complete trial.",
            [(f"{pair.x.label}, {pair.y.label}", pair)] if pair else [],
            nothing or "the search has one parameter: see its slice",
        ),
        _picture(
            result,
            "slices",
            "Value by parameter",
            "Each dot is a complete trial; late trials show where the search concentrated.",
            [
                (
                    f"{objective_name(name)} by {space.name}" if several else space.name,
                    values.slice_info(result, space, index, shipped),
                )
                for index, name in objectives
                for space in by_importance(result)
            ],
            nothing,
        ),
        _picture(
            result,
            "importances",
            "Importance of the parameters",
            "How much each parameter matters, as Optuna estimates it from the complete trials. With few trials the "
            "estimate is rough.",
            [("importance", importances)] if importances else [],
            "too few complete trials to tell",
        ),
        _picture(
            result,
            "history",
            "Optimisation history",
            "The value of each complete trial in the order of their numbers, and the best so far.",
            [(objective_name(name), history_info(result, index)) for index, name in objectives],
            nothing,
        ),
        _picture(
            result,
            "curves",
            "Score of the trials by step",
            "Validation score of each trial; a pruned or failed one ends where its mark is."
            + (seeds if len(result.seeds) > 1 else ""),
            [("running score", curves)] if curves.lines else [],
            "no trial has been validated",
        ),
    ]
    return tuple(pictures if several else pictures[1:])


def _picture(
    result: SearchResult, name: str, title: str, caption: str, panels: Sequence[tuple[str, Any]], absent: str
) -> Picture:
    """A figure that names the search as its source and the training runs behind it."""
    run_ids = sorted({run_id for trial in result.trials for run_id in trial.run_ids})
    source = f"search {result.study}, model {result.model}; {origin(result.core)}"
    shown = tuple(SearchPanel(*panel) for panel in panels)
    info = SearchInfo(title, source, shown, tuple(run_ids)) if shown else Absent(absent)
    return Picture(f"figure_{name}", "", title, caption, info, draw)
