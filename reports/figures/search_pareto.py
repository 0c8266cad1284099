"""The objectives of a search against each other."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from cppo_lab.analysis.search import SearchResult, complete_trials, front_of, pareto_front, value_of
from cppo_lab.reports.figures.search_panels import legend_below
from cppo_lab.reports.names import objective_name
from cppo_lab.rules import METHOD_COLOURS

NUMBERED = 12  # trials of the front whose numbers fit


@dataclass(frozen=True)
class ParetoInfo:
    """The first two objectives of the complete trials, in percent: (x, y, number). `line`: the front of these two, from
    left to right. `front`: numbers of the trials that are non-dominated over all objectives.
    """

    objectives: tuple[str, str]
    points: tuple[tuple[float, float, int], ...]
    line: tuple[tuple[float, float], ...]
    front: tuple[int, ...]


def pareto_info(result: SearchResult) -> ParetoInfo:
    """The info of a search with several objectives."""
    trials = complete_trials(result)
    points = tuple((100 * value_of(trial, 0), 100 * value_of(trial, 1), trial.number) for trial in trials)
    places = [point[:2] for point in points]
    line = sorted({places[index] for index in pareto_front(places)})
    return ParetoInfo((result.objectives[0], result.objectives[1]), points, tuple(line), front_of(result))


def draw_pareto(info: ParetoInfo, ax: Axes) -> None:
    """Draw the front connected and the dominated trials in grey."""
    ours = METHOD_COLOURS["cppo"]
    grey = [point for point in info.points if point[2] not in info.front]
    front = [point for point in info.points if point[2] in info.front]
    if grey:
        places = zip(*(point[:2] for point in grey), strict=True)
        ax.plot(*places, "o", color="#B4BAC2", markersize=5, label="dominated")
    ax.plot(*zip(*info.line, strict=True), "-", color=ours, linewidth=1.1, alpha=0.7, zorder=2)
    places = zip(*(point[:2] for point in front), strict=True)
    ax.plot(*places, "o", color=ours, markersize=6.5, label="Pareto front")
    named = {point[:2]: point[2] for point in reversed(front)}  # the first number among equal points
    for place, number in sorted(named.items())[:NUMBERED]:
        ax.annotate(str(number), place, xytext=(4, 4), textcoords="offset points", fontsize=8, color=ours)
    ax.margins(0.1)
    ax.set_xlabel(f"{objective_name(info.objectives[0])} (%)")
    ax.set_ylabel(f"{objective_name(info.objectives[1])} (%)")
    legend_below(ax)
