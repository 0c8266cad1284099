"""The figures of a search, each of them drawn or with the reason why it cannot be."""

from collections.abc import Mapping
from functools import partial

from cppo_lab.analysis.search import SearchResult, Value, by_importance, complete_trials
from cppo_lab.reports.figures.search_course import (
    curves_csv,
    curves_info,
    draw_curves,
    draw_history,
    draw_importances,
    history_csv,
    history_info,
    importances_csv,
    importances_info,
)
from cppo_lab.reports.figures.search_panels import SearchFigure, SearchPanel, search_figure
from cppo_lab.reports.figures.search_pareto import draw_pareto, pareto_info
from cppo_lab.reports.figures.search_space import draw_sensitivity, draw_slice, sensitivity_info, slice_info
from cppo_lab.reports.names import objective_name


def course_figures(result: SearchResult) -> tuple[SearchFigure, ...]:
    """The figures of history, curves and importances, in this order."""
    nothing = "" if complete_trials(result) else "no trial is complete"
    curves = curves_info(result)
    histories = (
        () if nothing else tuple(history_info(result, index) for index in range(len(result.objectives)))
    )
    history = search_figure(
        result,
        "history",
        "Optimisation history",
        "The value of each complete trial in the order of their numbers, and the best so far.",
        tuple(SearchPanel(objective_name(info.objective), partial(draw_history, info)) for info in histories),
        nothing,
        history_csv(histories) if histories else "",
    )
    seeds = " The seeds of a trial train one after the other; the score is the mean over the seeds so far."
    running = search_figure(
        result,
        "curves",
        "Score of the trials by step",
        "Validation score of each trial; a pruned or failed one ends where its mark is."
        + (seeds if len(result.seeds) > 1 else ""),
        (SearchPanel("running score", partial(draw_curves, curves)),) if curves.lines else (),
        "" if curves.lines else "no trial has been validated",
        curves_csv(curves) if curves.lines else "",
    )
    found = importances_info(result)
    importances = search_figure(
        result,
        "importances",
        "Importance of the parameters",
        "How much each parameter matters, as Optuna estimates it from the complete trials. With few trials the "
        "estimate is rough.",
        () if found is None else (SearchPanel("importance", partial(draw_importances, found)),),
        "" if found is not None else "too few complete trials to tell",
        "" if found is None else importances_csv(found),
    )
    return history, running, importances


def space_figures(result: SearchResult, shipped: Mapping[str, Value]) -> tuple[SearchFigure, ...]:
    """Sensitivity, slices, and the Pareto front where there are several objectives."""
    nothing = "" if complete_trials(result) else "no trial is complete"
    pair = None if nothing else sensitivity_info(result, shipped)
    surface = (
        "The surface is linear between trials and ends with the outermost ones. "
        if pair and pair.surface
        else ""
    )
    others = "Trials differ in their other parameters as well." if len(result.parameters) > 2 else ""
    sensitivity = search_figure(
        result,
        "sensitivity",
        "Sensitivity to the two most important parameters",
        f"{surface}{others}".strip() or "Each dot is a complete trial.",
        ()
        if pair is None
        else (SearchPanel(f"{pair.x.label}, {pair.y.label}", partial(draw_sensitivity, pair)),),
        nothing or ("" if pair else "the search has one parameter: see its slice"),
    )
    slices = search_figure(
        result,
        "slices",
        "Value by parameter",
        "Each dot is a complete trial; late trials show where the search concentrated.",
        ()
        if nothing
        else tuple(
            SearchPanel(
                f"{objective_name(name)} by {space.name}" if len(result.objectives) > 1 else space.name,
                partial(draw_slice, slice_info(result, space, index, shipped)),
            )
            for index, name in enumerate(result.objectives)
            for space in by_importance(result)
        ),
        nothing,
    )
    if len(result.objectives) < 2:
        return sensitivity, slices
    pareto = search_figure(
        result,
        "pareto",
        "Trade-off between the objectives",
        "Both are better the higher. A trial is on the front if no other is at least as good in every objective and "
        "better in one; the line connects the front of the two shown objectives.",
        () if nothing else (SearchPanel("Pareto front", partial(draw_pareto, pareto_info(result))),),
        nothing,
    )
    return pareto, sensitivity, slices
