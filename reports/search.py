"""The report of a hyper-parameter search: its sentences, tables and page."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial

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
from cppo_lab.reports.build import About, BuildRequest, Contents
from cppo_lab.reports.figures.search import search_figures
from cppo_lab.reports.names import ABSENT, csv_text, number, objective_name, percent, value_text
from cppo_lab.reports.tables import TextRow, TextTable, table_files

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
        space, trials = _space_table(result, self.shipped), _trials_table(result, seeds)
        texts = table_files({"table_trials": trials, "table_space": space})
        return Contents(
            about=About(
                kind="search",
                name=self.study,
                title=result.name,
                question=result.question,
                experiment=self.experiment,
                core=result.core,
                command=self.command,
            ),
            texts=texts | {"table_trials.csv": _trials_csv(result, seeds)},
            pictures=search_figures(result),
            boards={},
            template="search.html.j2",
            page={
                "result": result,
                "states": _states_text(result),
                "finding": finding(result),
                "certainty": certainty(result, seeds),
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
                "trial_count": len(result.trials),
            },
        )


def _states_text(result: SearchResult) -> str:
    """`24 trials: 18 complete, 5 pruned, 1 failed`."""
    counts = {name: sum(trial.state is state for trial in result.trials) for name, state in STATES.items()}
    listed = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return f"{counted(len(result.trials), 'trial')}: {listed}" if listed else "no trial yet"


def finding(result: SearchResult) -> tuple[str, ...]:
    """The best trial, or the front, in sentences."""
    ranked = result.ranking
    if not ranked:
        return ("No trial is complete: there is no best one yet.",)
    total = counted(len(result.trials), "trial")
    if len(result.objectives) == 1:
        best = ranked[0]
        ties = [trial.number for trial in ranked[1:] if trial.values == best.values]
        if len(ties) == len(ranked) - 1 and ties:
            return (
                f"All {len(ranked)} complete trials have the same value, {_values_text(result, best)}: this search "
                "found no difference between settings.",
            )
        same = f" {_trials(ties).capitalize()} reached the same value." if ties else ""
        text = f"{_settings_text(best)}: {_values_text(result, best)}"
        return (f"The best of {total} is trial {best.number}: {text}.{same}",)
    front = result.front
    names = [objective_name(name) for name in result.objectives]
    are = "is" if len(front) == 1 else "are"
    sentences = [
        f"{len(front)} of {total} {are} on the Pareto front of {_listed(names)}: no other is at least as good in "
        "every one and better in one."
    ]
    for index, name in enumerate(names):
        best = max(ranked, key=lambda trial: (trial.values[index], -trial.number))
        sentences.append(
            f"The highest {name} is that of trial {best.number} ({_settings_text(best)}): {_values_text(result, best)}."
        )
    return tuple(sentences)


def certainty(result: SearchResult, seeds: Sequence[SeedValues]) -> tuple[str, ...]:
    """The limits of the finding: selection bias and noise."""
    ranked = result.ranking
    complete = len(ranked)
    if not ranked or (complete > 1 and len({*map(str, (trial.values for trial in ranked))}) == 1):
        return ()
    sentences = []
    if complete > 1:
        what = "Their values are" if len(result.objectives) > 1 else "Its value is"
        sentences.append(
            f"{what} the best of {complete}, and so too high on average (selection bias): expect less "
            "from the same settings with other seeds."
        )
    return (*sentences, *_noise(result, seeds))


def _noise(result: SearchResult, seeds: Sequence[SeedValues]) -> list[str]:
    if len(result.seeds) == 1:
        return [
            f"Every trial ran with one seed ({result.seeds[0]}): how much a value changes with the seed was not "
            "measured, so the differences among the top trials may be noise."
        ]
    sentences = []
    for values in seeds:
        if values.differ:
            sentences.append(
                f"{_trials(values.differ).capitalize()}: the {objective_name(values.objective)} in the search's file "
                "is not that of the validation curves of the training runs."
            )
    unknown = len(result.complete) - (len(seeds[0].values) if seeds else 0)
    if unknown:
        sentences.append(
            f"The training runs of {counted(unknown, 'complete trial')} are not all in the store: their scatter over "
            "seeds is unknown."
        )
    apart = best_trial_lead(result, seeds)
    if apart is None:
        return sentences
    ahead = f"trial {result.ranking[0].number} leads by {100 * apart.second:.1f} points"
    points = f"{100 * apart.error:.1f} points"
    if apart.close:
        verdict = (
            f"{_trials(apart.close)} {'is' if len(apart.close) == 1 else 'are'} within two "
            "standard errors of it: the search cannot tell these apart."
        )
    else:
        verdict = "no other trial is within two standard errors of it."
    compared = (
        "one trial scatters"
        if not apart.paired
        else "one trial, compared with the others of its seed, which share its start, scatters"
    )
    sentences.append(
        f"Over {len(result.seeds)} seeds {compared} by {100 * apart.scatter:.1f} points (standard deviation, "
        f"pooled over {counted(apart.trials, 'trial')}), which makes the standard error of a difference {points}; "
        f"{ahead}, and {verdict}"
    )
    return sentences


def _settings_text(trial: FrozenTrial) -> str:
    """`rule.delta_b=0.012, rule.w_min=0.75`, for display."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in trial.params.items())


def _values_text(result: SearchResult, trial: FrozenTrial) -> str:
    """`final score 61.3 %, stability 90.0 %`."""
    return ", ".join(
        f"{objective_name(name)} {_percent_text(trial.values[index])}"
        for index, name in enumerate(result.objectives)
    )


def _percent_text(fraction: float) -> str:
    """A fraction in percent with one decimal, which is the resolution of a search."""
    return f"{100 * fraction:.1f}\u00a0%"


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


def _trials_csv(result: SearchResult, seeds: Sequence[SeedValues]) -> str:
    """A row for each trial in the order of the table: settings with every digit, values in percent."""
    several = [seed_values for seed_values in seeds if seed_values.values]
    rows = [
        (
            trial.number,
            _NAMES[trial.state],
            *(_exact(trial.params[name]) if name in trial.params else "" for name in result.spaces),
            *(map(percent, trial.values) if trial.values else [""] * len(result.objectives)),
            *(
                " ".join(str(percent(value)) for value in seed_values.values.get(trial.number, ()))
                for seed_values in several
            ),
            trial.user_attrs["seconds"],
            max(trial.intermediate_values, default=""),
            " ".join(trial.user_attrs["run_ids"]),
            trial.user_attrs["mlflow_id"],
            trial.user_attrs["reason"],
            result.core,
        )
        for trial in _by_rank(result)
    ]
    by_seed = [f"{seed_values.objective}_by_seed" for seed_values in several]
    names = ("trial", "state", *result.spaces, *result.objectives, *by_seed)
    return csv_text([*names, "seconds", "last_step", "run_ids", "mlflow_run_id", "reason", "core"], rows)


def _trials_table(result: SearchResult, seeds: Sequence[SeedValues]) -> TextTable:
    """The table of trials, without ids."""
    rows = []
    for trial in _by_rank(result):
        params = [
            value_text(trial.params[name]) if name in trial.params else ABSENT for name in result.spaces
        ]
        values = [ABSENT] * len(result.objectives)
        for place, value in enumerate(trial.values or ()):
            of_seeds = seeds[place].values.get(trial.number, ()) if seeds else ()
            values[place] = f"{100 * value:.1f}" + (
                f" ± {100 * np.std(of_seeds, ddof=1):.1f}" if of_seeds else ""
            )
        seconds = trial.user_attrs["seconds"]
        minutes = number(seconds and seconds / 60, ".1f")
        cells = (_state(result, trial), *params, *values, minutes)
        rows.append(TextRow(str(trial.number), trial.number in result.front, cells))
    shaded = "on the Pareto front, which comes first" if len(result.objectives) > 1 else "the best"
    notes = [
        f"Values in percent, higher is better. Shaded: {shaded}.",
    ]
    if any(seed_values.values for seed_values in seeds):
        notes.append(f"Mean ± standard deviation over {len(result.seeds)} seeds.")
    if any(trial.state is STATES["pruned"] for trial in result.trials):
        notes.append("pruned: ended early because others did better at the same step.")
    headings = ("state", *result.spaces, *map(objective_name, result.objectives), "minutes")
    return TextTable(f"Trials of {result.study}", "trial", headings, rows, notes, result.core)


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
    notes = [f"Sampler {result.sampler}, pruner {result.pruner}, seeds {', '.join(map(str, result.seeds))}."]
    if edges:
        notes.append(
            "at the edge: the best value lies at an end of the interval; a better one may lie beyond it."
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
    return ("trial " if len(words) == 1 else "trials ") + _listed(words)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
