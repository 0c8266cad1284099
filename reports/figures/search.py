"""The figures of a search: Optuna's drawings of its study, in the style of all our figures."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib import pyplot, rc_context, style
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from optuna import Study
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as optuna_drawings

from cppo_lab.analysis.search import SearchResult, Value
from cppo_lab.reports.figures.drawing import APPEARANCE, Absent, Info, Picture, legend_below, surround
from cppo_lab.reports.figures.palette import HEAT_MAP
from cppo_lab.reports.names import objective_name, origin
from cppo_lab.rules import METHOD_COLOURS

_ENOUGH = 8  # complete trials needed for importances
_BEST_SHARE = 0.25  # of the trials for importances; Optuna's 0.1 would be two or three of 24
_PANEL_INCHES, _SLICE_INCHES = (6.4, 4.2), (3.6, 3.4)
_LEAST_INCHES = 2.6  # a narrower slice is put below the others
_IN_ROW = 3
_BEST, _TRIAL, _ORANGE = METHOD_COLOURS["cppo"], "#8FA9CC", "#E0952A"
# The colours that Optuna's drawings have for what these are in ours.
_COLOURS = {
    "#1f77b4": _TRIAL,
    "#d62728": _BEST,
    "#3182bd": _BEST,
    "#6baed6": _ORANGE,
    "#9ecae1": "#59A14F",
    "#c6dbef": "#B07AA1",
}
_STATES = {
    TrialState.COMPLETE: ("complete", _TRIAL),
    TrialState.PRUNED: ("pruned", _ORANGE),
    TrialState.RUNNING: ("still running", "#59A14F"),
}


@dataclass(frozen=True)
class Series:
    """Values of one name: settings, scores in percent, or shares, `at` trials, training steps or parameters."""

    name: str
    at: tuple[int | str, ...]
    value: tuple[Value, ...]


@dataclass(frozen=True)
class SearchInfo(Info):
    """Everything that one figure shows, and what of Optuna's draws it."""

    series: tuple[Series, ...]
    plot: Callable[[], Any] = field(metadata=APPEARANCE)


class _Highest(PedAnovaImportanceEvaluator):
    """Optuna takes the target of an objective for one that is minimised."""

    def evaluate(
        self, study: Study, params: list[str] | None = None, *, target: Any = None
    ) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it does
            return super().evaluate(study, params, target=target and (lambda trial: -target(trial)))


_EVALUATOR = _Highest(target_quantile=_BEST_SHARE)


def importances(result: SearchResult) -> dict[str, dict[str, float]]:
    """Each parameter's share in telling the best trials from the others (PED-ANOVA), per objective, highest first; none
    while too few trials are complete, or where they do not differ.
    """
    if len(result.complete) < _ENOUGH:
        return {}
    shares = {}
    for place, name in enumerate(result.objectives):
        if len({trial.values[place] for trial in result.complete}) > 1:
            shares[name] = get_param_importances(
                result.optuna, evaluator=_EVALUATOR, target=partial(_percent, place)
            )
    return shares


def _percent(place: int, trial: FrozenTrial) -> float:
    return 100 * float(trial.values[place])


def draw(info: SearchInfo, _fig: Figure) -> Figure:
    """Optuna's drawing of the study, in our size, colours and head."""
    pyplot.switch_backend("agg")
    # Its style `ggplot` would replace ours, which is set already.
    with (
        warnings.catch_warnings(),
        patch.dict(style.library, ggplot={}),
        rc_context({"figure.constrained_layout.use": True}),
    ):
        warnings.simplefilter("ignore")  # that the functions are experimental, since years
        panels: list[Any] = [*np.ravel(info.plot())]
    fig: Figure = panels[0].get_figure()
    pyplot.close(fig)
    columns = min(_IN_ROW, len(panels))
    width, height = _PANEL_INCHES if columns == 1 else (columns * _SLICE_INCHES[0] + 1, _SLICE_INCHES[1])
    surround(fig, (width, height), (info.title, info.source), ())
    columns = max(1, min(columns, int(fig.get_figwidth() / _LEAST_INCHES)))
    if rows := -(-len(panels) // columns) - 1:
        fig.set_figheight((rows + 1) * fig.get_figheight())
        grid = GridSpec(rows + 1, columns, figure=fig)
        for place, ax in enumerate(panels):
            ax.set_subplotspec(grid[place])
            ax.tick_params(labelleft=True)
            ax.set_ylabel(panels[0].get_ylabel())
    for ax in panels:
        _restyle(ax)
    return fig


def _restyle(ax: Any) -> None:
    for where in ("left", "center"):
        ax.set_title("", loc=where)
    for artist in ax.collections:
        if isinstance(artist, PathCollection) and not np.size(artist.get_offsets()):
            artist.set_label("")  # a kind of trial that no search has
        if artist.get_array() is not None and getattr(artist, "filled", True):
            artist.set_cmap(HEAT_MAP)
    for patches in (*ax.collections, *ax.patches):
        face: Any = np.ravel(patches.get_facecolor())[:4]
        if len(face) and (ours := _COLOURS.get(to_hex(face))) is not None:
            patches.set_color(ours)
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_formatter(NullFormatter())
        for label in (axis.label, *axis.get_ticklabels()):
            label.set_parse_math(False)
    if (legend := ax.get_legend()) is not None:
        legend.remove()
        legend_below(ax)


def _history(result: SearchResult, target: Callable[[FrozenTrial], float], label: str) -> Axes:
    ax = optuna_drawings.plot_optimization_history(result.optuna, target=target, target_name=label)
    numbers = [trial.number for trial in result.complete]
    best = [*accumulate(map(target, result.complete), max)]  # which Optuna draws of its value alone
    ax.step(numbers, best, where="post", color=_BEST, label="best so far")
    ax.legend()
    return ax


def _importances(study: Study) -> Axes:
    ax = optuna_drawings.plot_param_importances(study, evaluator=_EVALUATOR)
    for text in ax.texts:
        text.set_text(f" {text.get_text()}")
    return ax


def _curves(result: SearchResult) -> Axes:
    """In percent, coloured by the state of the trial, the best one on top."""
    ax = optuna_drawings.plot_intermediate_values(result.optuna)
    best = [trial.number for trial in result.ranking[: len(result.objectives) == 1]]
    trials, named = {f"Trial{trial.number}": trial for trial in result.trials}, set()
    for line in ax.lines:
        trial = trials[str(line.get_label())]
        on_top = trial.number in best
        label, colour = (f"best: trial {trial.number}", _BEST) if on_top else _STATES[trial.state]
        line.set_ydata(100 * np.asarray(line.get_ydata()))
        line.set(color=colour, alpha=1, zorder=3 if on_top else 2, label=None if label in named else label)
        named.add(label)
    for place in range(1, len(result.seeds)):
        ax.axvline(place * result.t_stop, color="#999999", linewidth=0.7, linestyle=":")
    seeds = ", seed after seed" * (len(result.seeds) > 1)
    ax.set(xlabel=f"training step{seeds}", ylabel="running score (%)")
    ax.relim()
    ax.autoscale_view()
    return ax


def search_figures(result: SearchResult) -> tuple[Picture, ...]:
    """All figures: the Pareto front where there are several objectives, the space, and the course of the search."""
    study, complete = result.optuna, result.complete
    names = [*map(objective_name, result.objectives)]
    labels = [f"{name} (%)" for name in names]
    targets = [partial(_percent, place) for place in range(len(names))]
    run_ids = tuple(sorted({run_id for trial in result.trials for run_id in trial.user_attrs["run_ids"]}))
    source = f"search {result.study}, model {result.model}; {origin(result.core)}"
    shares = importances(result)
    importance = shares.get(result.objectives[0], {})
    params = {name: tuple(trial.params[name] for trial in complete) for name in result.spaces}
    ranked = sorted(params, key=lambda name: -importance.get(name, 0.0))
    pair = [name for name in ranked if len(set(params[name])) > 1][:2]
    values = {name: tuple(map(target, complete)) for name, target in zip(names, targets, strict=True)}
    numbers = tuple(trial.number for trial in complete)
    table = [Series(name, numbers, column) for name, column in (params | values).items()]
    differ = len(pair) > 1 and len(set(values[names[0]])) > 1
    pictures: list[Picture] = []

    def add(
        name: str,
        title: str,
        caption: str,
        plot: Callable[[], Any],
        series: Sequence[Series] = table,
        absent: str = "",
    ) -> None:
        absent = "no trial is complete" if not complete else absent
        info = Absent(absent) if absent else SearchInfo(title, source, run_ids, tuple(series), plot)
        pictures.append(Picture(f"figure_{name}", "", title, caption, info, draw))

    if len(names) > 1:
        add(
            "pareto",
            "Trade-off between the objectives",
            "Both are better the higher. A trial is on the front if no other is at least as good in every objective "
            "and better in one.",
            partial(
                optuna_drawings.plot_pareto_front,
                study,
                target_names=labels[:2],
                targets=lambda trial: [target(trial) for target in targets[:2]],
            ),
        )
    add(
        "sensitivity",
        "Sensitivity to the two most important parameters",
        f"Colour: {names[0]}, interpolated between the complete trials (dots)."
        + (" Trials differ in their other parameters as well." if len(params) > 2 else ""),
        partial(optuna_drawings.plot_contour, study, pair, target=targets[0], target_name=labels[0]),
        absent="" if differ else "the complete trials do not differ in two parameters and in their values",
    )
    for place, (target, label) in enumerate(zip(targets, labels, strict=True)):
        mark, of = (f"_{result.objectives[place]}", f": {names[place]}") if place else ("", "")
        add(
            f"slices{mark}",
            f"Value by parameter{of}",
            "Each dot is a complete trial; late trials show where the search concentrated.",
            partial(optuna_drawings.plot_slice, study, ranked, target=target, target_name=label),
        )
        add(
            f"history{mark}",
            f"Optimisation history{of}",
            "The value of each complete trial in the order of their numbers, and the best so far.",
            partial(_history, result, target, label),
        )
    add(
        "importances",
        "Importance of the parameters",
        "How much each parameter matters, as Optuna estimates it from the complete trials. With few trials the "
        "estimate is rough.",
        partial(_importances, study),
        [
            Series(objective_name(name), tuple(of_parameters), tuple(of_parameters.values()))
            for name, of_parameters in shares.items()
        ],
        {0: "too few complete trials to tell", len(names): ""}.get(len(shares), "an objective has one value"),
    )
    several = " The seeds of a trial train one after the other; the score is the mean over the seeds so far."
    add(
        "curves",
        "Score of the trials by step",
        "Validation score of each trial that has not failed." + several * (len(result.seeds) > 1),
        partial(_curves, result),
        [
            Series(f"trial {trial.number}", tuple(curve), tuple(100 * score for score in curve.values()))
            for trial in result.trials
            if trial.state in _STATES
            for curve in [dict(sorted(trial.intermediate_values.items()))]
        ],
    )
    return tuple(pictures)
