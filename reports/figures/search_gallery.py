"""The figures of a search, each of them drawn or with the reason why it cannot be. Its panels have a common title; in
what they show they are of different kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cppo_lab.analysis.search import SearchResult, Value, by_importance, complete_trials
from cppo_lab.reports.figures import search_course as course
from cppo_lab.reports.figures import search_values as values
from cppo_lab.reports.figures.data import APPEARANCE, HEADING
from cppo_lab.reports.figures.drawing import Absent, Picture, panel_grid, surround
from cppo_lab.reports.names import objective_name, origin

PANEL_INCHES = (5.2, 3.9)
IN_ROW = 3
_DRAW: Mapping[type, Callable[[Any, Axes], None]] = {
    course.HistoryInfo: course.draw_history,
    course.TrialCurvesInfo: course.draw_curves,
    course.ImportancesInfo: course.draw_importances,
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
    surround(fig, (width, -(-count // columns) * PANEL_INCHES[1]), (info.title, info.source), ())
    for panel, ax in zip(info.panels, panel_grid(fig, count, columns), strict=True):
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
    curves, importances = course.curves_info(result), course.importances_info(result)
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
            [(objective_name(name), course.history_info(result, index)) for index, name in objectives],
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
