"""Figures on the course of a search: its history, each trial's score by step, and parameter importances."""

from collections.abc import Iterable
from dataclasses import dataclass

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
from cppo_lab.reports.csv_tables import csv_text
from cppo_lab.reports.figures.search_panels import legend_below
from cppo_lab.reports.names import objective_name
from cppo_lab.rules import METHOD_COLOURS

BEST = METHOD_COLOURS["cppo"]
STATE_COLOURS = {COMPLETE: "#8FA9CC", PRUNED: "#E0952A", FAILED: "#C8384A", RUNNING: "#59A14F"}
BAR_COLOURS = ("#0052D9", "#E0952A", "#59A14F", "#B07AA1")
NAMED = {COMPLETE: "complete", PRUNED: "pruned", FAILED: "failed", RUNNING: "still running"}
MARKS = {PRUNED: "x", FAILED: "X"}


@dataclass(frozen=True)
class HistoryInfo:
    """One objective over the trials. `points` and `best_so_far`: (number, percent) of the complete trials; `others`:
    state -> numbers of the trials that ended without a value.
    """

    objective: str
    points: tuple[tuple[int, float], ...]
    best_so_far: tuple[tuple[int, float], ...]
    others: tuple[tuple[str, tuple[int, ...]], ...]


def history_info(result: SearchResult, index: int) -> HistoryInfo:
    """Objective number `index` by trial number."""
    points = tuple((trial.number, 100 * value_of(trial, index)) for trial in complete_trials(result))
    highest = [max(value for _, value in points[: place + 1]) for place in range(len(points))]
    others = [
        (state, tuple(trial.number for trial in result.trials if trial.state == state))
        for state in (PRUNED, FAILED)
    ]
    return HistoryInfo(
        objective=result.objectives[index],
        points=points,
        best_so_far=tuple((number, high) for (number, _), high in zip(points, highest, strict=True)),
        others=tuple((state, numbers) for state, numbers in others if numbers),
    )


def history_csv(infos: Iterable[HistoryInfo]) -> str:
    """A row for each complete trial and objective; values in percent."""
    rows = (
        (info.objective, number, value, best)
        for info in infos
        for (number, value), (_, best) in zip(info.points, info.best_so_far, strict=True)
    )
    return csv_text(("objective", "trial", "value", "best_so_far"), rows)


def draw_history(info: HistoryInfo, ax: Axes) -> None:
    """Draw a dot for each value, the best so far as a step line, and the trials without a value along the bottom."""
    numbers = [number for number, _ in info.points]
    last = max([*numbers, *(number for _, others in info.others for number in others)])
    ax.plot(*zip(*info.points, strict=True), "o", color=STATE_COLOURS[COMPLETE], markersize=5, label="trial")
    line = [*info.best_so_far, (last, info.best_so_far[-1][1])]
    ax.step(*zip(*line, strict=True), where="post", color=BEST, label="best so far")
    top = max(info.points, key=lambda point: (point[1], -point[0]))
    ax.plot(*top, "*", markersize=13, color=BEST, markeredgecolor="white", zorder=5)
    for state, others in info.others:
        ax.plot(
            others,
            [0.03] * len(others),
            MARKS[state],
            color=STATE_COLOURS[state],
            markersize=6,
            transform=ax.get_xaxis_transform(),
            label=f"{NAMED[state]} (no value)",
        )
    ax.margins(x=0.03, y=0.14)
    ax.set_xlabel("trial")
    ax.set_ylabel(f"{objective_name(info.objective)} (%)")
    ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    legend_below(ax, 4)


@dataclass(frozen=True)
class TrialCurve:
    """The running score of one trial: (step, percent), one piece per seed."""

    number: int
    state: str
    pieces: tuple[tuple[tuple[int, float], ...], ...]


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


def _pieces(curve: tuple[tuple[int, float], ...], t_stop: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The curve split where each seed begins, since the score restarts at that of the untrained model."""
    pieces: dict[int, list[tuple[int, float]]] = {}
    for step, score in curve:
        seed = max(0, step - 1) // t_stop if t_stop else 0
        pieces.setdefault(seed, []).append((step, 100 * score))
    return tuple(tuple(piece) for piece in pieces.values())


def curves_csv(info: TrialCurvesInfo) -> str:
    """One row per validation; `step` continues from one seed to the next, scores are in percent."""
    rows = (
        (line.number, line.state, step, score)
        for line in info.lines
        for piece in line.pieces
        for step, score in piece
    )
    return csv_text(("trial", "state", "step", "running_score"), rows)


def draw_curves(info: TrialCurvesInfo, ax: Axes) -> None:
    """Draw a line for each trial, with a mark at the end of those that ended early, and the best on top."""
    named: set[str] = set()
    for line in sorted(info.lines, key=lambda one: one.number == info.best):
        best = line.number == info.best
        colour = BEST if best else STATE_COLOURS[line.state]
        label = f"best: trial {line.number}" if best else NAMED[line.state]
        style = "--" if line.state == RUNNING else "-"
        for piece in line.pieces:
            ax.plot(
                *zip(*piece, strict=True),
                f".{style}" if len(piece) == 1 else style,
                color=colour,
                linewidth=2 if best else 0.9,
                label=None if label in named else label,
            )
            named.add(label)
        if line.state in MARKS:
            ax.plot(*line.pieces[-1][-1], MARKS[line.state], color=colour, markersize=5, zorder=4)
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
class ImportancesInfo:
    """`parameters` sorted by the first objective's shares, highest first. `shares`: objective -> one share per
    parameter.
    """

    parameters: tuple[str, ...]
    shares: tuple[tuple[str, tuple[float, ...]], ...]


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
    names = sorted(
        {name for _, shares in known for name in shares}, key=lambda name: (-first.get(name, 0.0), name)
    )
    shares = tuple((objective, tuple(found.get(name, 0.0) for name in names)) for objective, found in known)
    return ImportancesInfo(tuple(names), shares)


def importances_csv(info: ImportancesInfo) -> str:
    """A row for each objective and parameter; the shares of an objective sum to 1."""
    rows = (
        (objective, parameter, share)
        for objective, shares in info.shares
        for parameter, share in zip(info.parameters, shares, strict=True)
    )
    return csv_text(("objective", "parameter", "importance"), rows)


def draw_importances(info: ImportancesInfo, ax: Axes) -> None:
    """Draw bars, the most important parameter on top, with one colour per objective."""
    height = 0.8 / len(info.shares)
    for place, (objective, shares) in enumerate(info.shares):
        rows = [index + (place - (len(info.shares) - 1) / 2) * height for index in range(len(shares))]
        bars = ax.barh(
            rows,
            shares,
            0.86 * height,
            color=BAR_COLOURS[place % len(BAR_COLOURS)],
            label=objective_name(objective),
        )
        ax.bar_label(bars, [f"{share:.2f}" for share in shares], padding=3, fontsize=8)
    ax.set_yticks(range(len(info.parameters)), list(info.parameters))
    for label in ax.get_yticklabels():
        label.set_parse_math(False)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.15)
    ax.set_xlim(left=0)
    ax.set_xlabel("importance (share of the total)")
    if len(info.shares) > 1:
        legend_below(ax)
