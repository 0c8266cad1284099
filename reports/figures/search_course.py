"""Figures on the course of a search: its history, each trial's score by step, and parameter importances."""

from dataclasses import dataclass, field
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from cppo_lab.analysis.search import (
    COMPLETE,
    FAILED,
    PRUNED,
    RUNNING,
    SearchResult,
    complete_trials,
    ranking,
    value_of,
)
from cppo_lab.reports.figures.data import columns
from cppo_lab.reports.figures.drawing import legend_below
from cppo_lab.reports.names import objective_name
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
            fontsize=7.5,
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
        ax.bar_label(bars, [f"{share:.2f}" for share in shares.importance], padding=3, fontsize=8)
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
