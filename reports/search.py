"""The report of a hyper-parameter search: its sentences, tables, page and figures: Optuna's drawings of its study,
in the style of all our figures.
"""

import re
import shlex
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as optuna_drawings

from cppo_lab.analysis.search import (
    STATES,
    SearchResult,
    SeedValues,
    Space,
    Value,
    best_trial_lead,
    read_search,
    read_seed_values,
    scaled,
)
from cppo_lab.core_records import DEFAULT_CORE
from cppo_lab.errors import counted
from cppo_lab.reports.build import BuildRequest, Contents
from cppo_lab.reports.figures.drawing import (
    APPEARANCE,
    HEAT_MAP,
    Absent,
    Info,
    Picture,
    legend_below,
    surround,
)
from cppo_lab.reports.names import (
    ABSENT,
    csv_text,
    joined,
    number,
    objective_name,
    origin,
    percent,
    value_text,
)
from cppo_lab.reports.tables import TextRow, TextTable, table_files
from cppo_lab.rules import METHOD_COLOURS

_EDGE = 0.02  # share of an interval on its scale; values closer to an end are at the edge
_BARE = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = frozenset({"true", "false", "null", "nan", "inf"})  # words that Hydra does not parse as text
_NAMES = {state: name for name, state in STATES.items()}


@dataclass(frozen=True, kw_only=True)
class SearchRequest(BuildRequest):
    """The report of a `study`. `tune` is the command that continues the search. `shipped`: the default settings of the
    configuration, by key. `chosen`: see `launch_commands`.
    """

    study: str
    tune: str
    shipped: Mapping[str, Value] = field(default_factory=dict)
    chosen: tuple[str, ...] | None = ()

    def contents(self) -> Contents:
        """Raises UserError as `read_search`."""
        result = read_search(self.uri, self.experiment, self.study)
        seeds = read_seed_values(self.uri, self.experiment, result)
        space, (trials, trials_csv) = _space_table(result, self.shipped), _trials_table(result, seeds)
        texts = table_files({"table_trials": trials, "table_space": space})
        # `24 trials: 18 complete, 5 pruned, 1 failed`.
        count, states = len(result.trials), Counter(_NAMES[trial.state] for trial in result.trials)
        listed = ", ".join(f"{states[name]} {name}" for name in STATES if states[name])
        return Contents(
            kind="search",
            name=self.study,
            title=result.name,
            question=result.question,
            experiment=self.experiment,
            core=result.core,
            command=self.command,
            texts=texts | {"table_trials.csv": trials_csv},
            pictures=search_figures(result),
            boards={},
            template="search.html.j2",
            page={
                "result": result,
                "states": f"{counted(count, 'trial')}: {listed}" if listed else "no trial yet",
                "finding": [*finding(result)],
                "certainty": [*certainty(result, seeds)],
                "space": space,
                "trials": trials,
                "ids": [
                    (trial.user_attrs["run_ids"], trial.user_attrs["mlflow_id"]) for trial in _by_rank(result)
                ],
                "failures": [
                    (trial.number, trial.user_attrs["reason"] or "no reason was recorded")
                    for trial in result.trials
                    if trial.state is STATES["failed"]
                ],
                "launches": launch_commands(result, self.chosen),
                "not_in_main": self.chosen is None and bool(result.complete),
                "tune": self.tune,
                "trial_count": count,
            },
        )


def finding(result: SearchResult) -> Iterator[str]:
    """The best trial, or the front, in sentences."""
    ranked, total = result.ranking, counted(len(result.trials), "trial")
    names = [objective_name(name) for name in result.objectives]
    if not ranked:
        yield "No trial is complete: there is no best one yet."
    elif len(names) == 1:
        best = ranked[0]
        ties = [trial.number for trial in ranked[1:] if trial.values == best.values]
        if len(ties) == len(ranked) - 1 and ties:
            yield (
                f"All {len(ranked)} complete trials have the same value, {_values_text(result, best)}: this search "
                "found no difference between settings."
            )
        else:
            same = f" {_trials(ties).capitalize()} reached the same value." if ties else ""
            text = f"{_settings_text(best)}: {_values_text(result, best)}"
            yield f"The best of {total} is trial {best.number}: {text}.{same}"
    else:
        are = "is" if len(result.front) == 1 else "are"
        yield (
            f"{len(result.front)} of {total} {are} on the Pareto front of {joined(names)}: no other is at least as "
            "good in every one and better in one."
        )
        for index, name in enumerate(names):
            best = max(ranked, key=lambda trial: (trial.values[index], -trial.number))
            text = f"({_settings_text(best)}): {_values_text(result, best)}"
            yield f"The highest {name} is that of trial {best.number} {text}."


def certainty(result: SearchResult, seeds: Sequence[SeedValues]) -> Iterator[str]:
    """The limits of the finding: selection bias and noise."""
    complete = len(result.ranking)
    if not complete or (complete > 1 and len({str(trial.values) for trial in result.ranking}) == 1):
        return
    if complete > 1:
        what = "Their values are" if len(result.objectives) > 1 else "Its value is"
        yield (
            f"{what} the best of {complete}, and so too high on average (selection bias): expect less "
            "from the same settings with other seeds."
        )
    if len(result.seeds) == 1:
        yield (
            f"Every trial ran with one seed ({result.seeds[0]}): how much a value changes with the seed was not "
            "measured, so the differences among the top trials may be noise."
        )
        return
    for values in seeds:
        if values.differ:
            yield (
                f"{_trials(values.differ).capitalize()}: the {objective_name(values.objective)} in the search's file "
                "is not that of the validation curves of the training runs."
            )
    unknown = len(result.complete) - (len(seeds[0].values) if seeds else 0)
    if unknown:
        yield (
            f"The training runs of {counted(unknown, 'complete trial')} are not all in the store: their scatter over "
            "seeds is unknown."
        )
    apart = best_trial_lead(result, seeds)
    if apart is not None:
        verdict, compared = "no other trial is within two standard errors of it.", "one trial scatters"
        if apart.close:
            are = "is" if len(apart.close) == 1 else "are"
            verdict = f"{_trials(apart.close)} {are} within two standard errors of it: "
            verdict += "the search cannot tell these apart."
        if apart.paired:
            compared = "one trial, compared with the others of its seed, which share its start, scatters"
        yield (
            f"Over {len(result.seeds)} seeds {compared} by {100 * apart.scatter:.1f} points (standard deviation, "
            f"pooled over {counted(apart.trials, 'trial')}), which makes the standard error of a difference "
            f"{100 * apart.error:.1f} points; trial {result.ranking[0].number} leads by {100 * apart.second:.1f} "
            f"points, and {verdict}"
        )


def _settings_text(trial: FrozenTrial) -> str:
    """`rule.delta_b=0.012, rule.w_min=0.75`, for display."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in trial.params.items())


def _values_text(result: SearchResult, trial: FrozenTrial) -> str:
    """`final score 61.3 %, stability 90.0 %`: one decimal is the resolution of a search."""
    named = zip(result.objectives, trial.values, strict=True)
    return ", ".join(f"{objective_name(name)} {100 * value:.1f}\u00a0%" for name, value in named)


def launch_commands(result: SearchResult, chosen: Sequence[str] | None = ()) -> tuple[str, ...]:
    """Shell commands for the paper's main sweep with the settings of the best trial (or of each trial on the front),
    and the same number of seeds that the search has not used. With several commands, comments tell them apart.
    `chosen`: overrides that select the sweep's runs that the search tuned (`variant=cppo`); None if no overrides do,
    and then there are no commands.
    """
    if chosen is None:
        return ()
    single, first = len(result.objectives) == 1, max(result.seeds) + 1
    fresh = ",".join(str(first + index) for index in range(max(2, len(result.seeds))))
    core = [] if result.core == DEFAULT_CORE else [f"core={result.core}"]
    lines = []
    for trial in result.ranking[: 1 if single else len(result.front)]:
        if not single:
            lines.append(f"# trial {trial.number}: {_values_text(result, trial)}")
        settings = [override(name, value) for name, value in trial.params.items()]
        lines.append(" ".join(["cppo launch main", *core, *chosen, *settings, f"seed={fresh}"]))
    return tuple(lines)


def override(name: str, value: Value) -> str:
    """`key=value` in Hydra's grammar with full precision, quoted for the shell."""
    written = _exact(value)
    if isinstance(value, str) and (not _BARE.fullmatch(value) or value.lower() in _WORDS):
        # Hydra treats a backslash before a quote, and at the end, as an escape.
        inner = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
        written = f"'{inner}'"
    return shlex.quote(f"{name}={written}")


def _by_rank(result: SearchResult) -> list[FrozenTrial]:
    """The complete trials by rank, then the running, the pruned and the failed ones by number."""
    others = [trial for state in [*STATES.values()][1:] for trial in result.trials if trial.state is state]
    return [*result.ranking, *others]


def _trials_table(result: SearchResult, seeds: Sequence[SeedValues]) -> tuple[TextTable, str]:
    """The table of trials, without ids; and as CSV, with settings to every digit, and values in percent."""
    several = [seed_values for seed_values in seeds if seed_values.values]
    rows, exact = [], []
    for trial in _by_rank(result):
        about, by_seed = trial.user_attrs, [of_seeds.values.get(trial.number, ()) for of_seeds in several]
        exact.append(
            (
                trial.number,
                _NAMES[trial.state],
                *(_exact(trial.params[name]) if name in trial.params else "" for name in result.spaces),
                *(map(percent, trial.values) if trial.values else [""] * len(result.objectives)),
                *(" ".join(map(str, map(percent, values))) for values in by_seed),
                about["seconds"],
                max(trial.intermediate_values, default=""),
                " ".join(about["run_ids"]),
                about["mlflow_id"],
                about["reason"],
                result.core,
            )
        )
        values = [ABSENT] * len(result.objectives)
        for place, value in enumerate(trial.values or ()):
            of_seeds = seeds[place].values.get(trial.number, ()) if seeds else ()
            std = f" ± {100 * np.std(of_seeds, ddof=1):.1f}" if of_seeds else ""
            values[place] = f"{100 * value:.1f}{std}"
        cells = (
            _state(result, trial),
            *(value_text(trial.params[name]) if name in trial.params else ABSENT for name in result.spaces),
            *values,
            number(about["seconds"] and about["seconds"] / 60, ".1f"),
        )
        rows.append(TextRow(str(trial.number), trial.number in result.front, cells))
    shaded = "on the Pareto front, which comes first" if len(result.objectives) > 1 else "the best"
    notes = [f"Values in percent, higher is better. Shaded: {shaded}."]
    if several:
        notes.append(f"Mean ± standard deviation over {len(result.seeds)} seeds.")
    if any(trial.state is STATES["pruned"] for trial in result.trials):
        notes.append("pruned: ended early because others did better at the same step.")
    headings = ("state", *result.spaces, *map(objective_name, result.objectives), "minutes")
    table = TextTable(f"Trials of {result.study}", "trial", headings, rows, notes, result.core)
    names = ("trial", "state", *result.spaces, *result.objectives)
    names += (*(f"{seed_values.objective}_by_seed" for seed_values in several), "seconds", "last_step")
    return table, csv_text([*names, "run_ids", "mlflow_run_id", "reason", "core"], exact)


def _state(result: SearchResult, trial: FrozenTrial) -> str:
    """The state of a trial, with the training step (and the seed if there are several) at which it ended early."""
    name, last = _NAMES[trial.state], trial.last_step
    if name != "pruned" or last is None:
        return name
    seed = min(max(0, last - 1) // result.t_stop, len(result.seeds) - 1) if result.t_stop else 0
    at = f"{name} at step {last - seed * result.t_stop}"
    return at if len(result.seeds) == 1 else f"{at} of seed {result.seeds[seed]}"


def _space_table(result: SearchResult, shipped: Mapping[str, Value]) -> TextTable:
    """The search space, the default settings of the configuration, and the values of the best trial."""
    best = result.ranking[0].params if result.complete and len(result.objectives) == 1 else None
    columns = {"searched": {name: _space_text(space) for name, space in result.spaces.items()}}
    if any(name in shipped for name in result.spaces):
        columns["as shipped"] = {name: value_text(value) for name, value in shipped.items()}
    edges = False
    if best:
        columns["best trial"] = of_best = {name: value_text(value) for name, value in best.items()}
        for name, space in result.spaces.items():
            if isinstance(space, FloatDistribution) and not _EDGE < scaled(space, best[name]) < 1 - _EDGE:
                of_best[name] += " (at the edge)"
                edges = True
    rows = [
        TextRow(name, False, tuple(column.get(name, ABSENT) for column in columns.values()))
        for name in result.spaces
    ]
    notes = [
        f"Sampler {result.sampler}, pruner {result.pruner}, seed{'s' * (len(result.seeds) > 1)} "
        f"{', '.join(map(str, result.seeds))}."
    ]
    if edges:
        notes.append(
            f"at the edge: the best value is within {100 * _EDGE:g} % of an end of the interval, on its scale; a "
            "better one may lie beyond it."
        )
    return TextTable("Space searched", "parameter", (*columns,), rows, notes, result.core)


def _space_text(space: Space) -> str:
    """`0.002 to 0.05, log scale`, `0.4 to 1 in steps of 0.05`, `0.02, 0.05 or 0.15`."""
    if isinstance(space, CategoricalDistribution):
        *words, last = map(value_text, space.choices)
        return f"{', '.join(words)} or {last}" if words else last
    step = "" if space.step is None else f" in steps of {space.step:g}"
    return f"{space.low:g} to {space.high:g}{step}{', log scale' if space.log else ''}"


def _exact(value: Value) -> str:
    return value_text(value) if value is None or isinstance(value, (bool, str)) else repr(value)


def _trials(numbers: Iterable[int]) -> str:
    words = [str(number) for number in numbers]
    return ("trial " if len(words) == 1 else "trials ") + joined(words)


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
    """Values under a name: settings, scores in percent, or shares, `at` trials, training steps or parameters."""

    name: str
    at: tuple[int | str, ...]
    value: tuple[Value, ...]


@dataclass(frozen=True)
class SearchInfo(Info):
    """Everything that a figure shows, and what of Optuna's draws it."""

    series: tuple[Series, ...]
    plot: Callable[[], Any] = field(metadata=APPEARANCE)


class _Highest(PedAnovaImportanceEvaluator):
    """Optuna assumes that the target of an objective is minimised, and lists equal parameters in the order of a set."""

    def evaluate(
        self, study: Study, params: list[str] | None = None, *, target: Any = None
    ) -> dict[str, float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it does
            # Of equal ones the last comes first.
            params = params or sorted(study.best_trials[0].params, reverse=True)
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
    surround(fig, (width, height), info.heads)
    columns = max(1, min(columns, int(fig.get_figwidth() / _LEAST_INCHES)))
    rows = -(-len(panels) // columns)
    if rows > 1:
        fig.set_figheight(rows * fig.get_figheight())
        grid = GridSpec(rows, columns, figure=fig)
        for place, ax in enumerate(panels):
            ax.set_subplotspec(grid[place])
            ax.tick_params(labelleft=True)
            ax.set_ylabel(panels[0].get_ylabel())
    for ax in panels:
        ax.set_title("")
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
    return fig


def _history(
    study: Study,
    target: Callable[[FrozenTrial], float],
    label: str,
    numbers: Sequence[int],
    best: Sequence[float],
) -> Axes:
    ax = optuna_drawings.plot_optimization_history(study, target=target, target_name=label)
    # Optuna draws the best so far of its value alone.
    ax.step(numbers, best, where="post", color=_BEST, label="best so far")
    ax.legend()
    return ax


def _importances(study: Study) -> Axes:
    ax = optuna_drawings.plot_param_importances(study, evaluator=_EVALUATOR)
    for text in ax.texts:
        text.set_text(f" {text.get_text()}")
    return ax


def _curves(result: SearchResult) -> Axes:
    """In percent, coloured by the state of the trial, the best on top."""
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
        best = [*accumulate(map(target, complete), max)]
        add(
            f"history{mark}",
            f"Optimisation history{of}",
            "The value of each complete trial in the order of their numbers, and the best so far.",
            partial(_history, study, target, label, numbers, best),
            [*table, Series("best so far", numbers, tuple(best))],
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
