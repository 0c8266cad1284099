"""The report of a hyper-parameter search: figures, tables, its sentences, and its page."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab.analysis.search import (
    FAILED,
    SearchResult,
    SeedValues,
    TrialResult,
    Value,
    complete_trials,
    counts,
    front_of,
    neighbours,
    ranking,
    read_seed_values,
    separation,
    value_of,
)
from cppo_lab.analysis.search_file import read_search
from cppo_lab.core_records import DEFAULT_CORE
from cppo_lab.reports.build import Contents
from cppo_lab.reports.figures.drawing import USUAL_STYLE, Style
from cppo_lab.reports.figures.search_figures import search_figures
from cppo_lab.reports.names import objective_name, value_text
from cppo_lab.reports.record import About
from cppo_lab.reports.search_tables import space_table, trial_table, trials_csv, trials_text
from cppo_lab.reports.table_texts import table_files

_BARE = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS = frozenset({"true", "false", "null", "nan", "inf"})  # words that Hydra does not parse as text


def percent_text(fraction: float) -> str:
    """A fraction in percent with one decimal, which is the resolution of a search."""
    return f"{100 * fraction:.1f}\u00a0%"


def settings_text(trial: TrialResult) -> str:
    """`rule.delta_b=0.012, rule.w_min=0.75`, for display."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in trial.params.items())


def values_text(result: SearchResult, trial: TrialResult) -> str:
    """`final score 61.3 %, stability 90.0 %`."""
    return ", ".join(
        f"{objective_name(name)} {percent_text(value_of(trial, index))}"
        for index, name in enumerate(result.objectives)
    )


def states_text(result: SearchResult) -> str:
    """`24 trials: 18 complete, 5 pruned, 1 failed`."""
    found = ", ".join(f"{number} {state}" for state, number in counts(result).items())
    return f"{_counted(len(result.trials), 'trial')}: {found}" if found else "no trial yet"


def finding(result: SearchResult) -> tuple[str, ...]:
    """The best trial, or the front, in sentences."""
    ranked = ranking(result)
    if not ranked:
        return ("No trial is complete: there is no best one yet.",)
    total = _counted(len(result.trials), "trial")
    if len(result.objectives) == 1:
        best = ranked[0]
        ties = [trial.number for trial in ranked[1:] if trial.values == best.values]
        if len(ties) == len(ranked) - 1 and ties:
            return (
                f"All {len(ranked)} complete trials have the same value, {values_text(result, best)}: this search "
                "found no difference between settings.",
            )
        same = f" {_trials(ties).capitalize()} reached the same value." if ties else ""
        text = f"{settings_text(best)}: {values_text(result, best)}"
        return (f"The best of {total} is trial {best.number}: {text}.{same}",)
    front = front_of(result)
    names = [objective_name(name) for name in result.objectives]
    are = "is" if len(front) == 1 else "are"
    sentences = [
        f"{len(front)} of {total} {are} on the Pareto front of {_listed(names)}: no other is at least as good in "
        "every one and better in one."
    ]
    for index, name in enumerate(names):
        best = max(ranked, key=lambda trial: (value_of(trial, index), -trial.number))
        sentences.append(
            f"The highest {name} is that of trial {best.number} ({settings_text(best)}): {values_text(result, best)}."
        )
    return tuple(sentences)


def certainty(result: SearchResult, seeds: Sequence[SeedValues]) -> tuple[str, ...]:
    """The limits of the finding: selection bias, noise, and the values of the best trial's neighbours."""
    ranked = ranking(result)
    complete = len(ranked)
    if not ranked or (complete > 1 and len({trial.values for trial in ranked}) == 1):
        return ()
    sentences = []
    if complete > 1:
        what = "Their values are" if len(result.objectives) > 1 else "Its value is"
        sentences.append(
            f"{what} the best of {complete}, and so too high on average (selection bias): expect less "
            "from the same settings with other seeds."
        )
    sentences += _noise(result, seeds)
    near = neighbours(result, ranked[0])
    if len(result.objectives) == 1 and near:
        low, high = (percent_text(end(value_of(trial, 0) for trial in near)) for end in (min, max))
        between = low if low == high else f"{low} to {high}"
        sentences.append(
            f"Its nearest neighbours in the space searched ({_trials(trial.number for trial in near)}) reached "
            f"{between}: if that is far below, the best is a narrow peak or due to chance."
        )
    return tuple(sentences)


def _noise(result: SearchResult, seeds: Sequence[SeedValues]) -> list[str]:
    if len(result.seeds) == 1:
        return [
            f"Every trial ran with one seed ({result.seeds[0]}): how much a value changes with the seed was not "
            "measured, so the differences among the top trials may be noise."
        ]
    sentences = []
    for found in seeds:
        if found.differ:
            sentences.append(
                f"{_trials(found.differ).capitalize()}: the {objective_name(found.objective)} in the search's file is "
                "not that of the validation curves of the training runs."
            )
    unknown = len(complete_trials(result)) - (len(seeds[0].values) if seeds else 0)
    if unknown:
        sentences.append(
            f"The training runs of {_counted(unknown, 'complete trial')} are not all in the store: their scatter over "
            "seeds is unknown."
        )
    apart = separation(result, seeds)
    if apart is None:
        return sentences
    ahead = f"trial {ranking(result)[0].number} leads by {100 * apart.second:.1f} points"
    points = f"{100 * apart.error:.1f} points"
    if apart.close:
        verdict = (
            f"{_trials(trial.number for trial in apart.close)} {'is' if len(apart.close) == 1 else 'are'} within two "
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
        f"pooled over {_counted(apart.trials, 'trial')}), which makes the standard error of a difference {points}; "
        f"{ahead}, and {verdict}"
    )
    return sentences


def override(name: str, value: Value) -> str:
    """`key=value` in Hydra's grammar with full precision, quoted for the shell."""
    if value is None or isinstance(value, (bool, int, float)):
        written = value_text(value) if value is None or isinstance(value, bool) else repr(value)
    elif _BARE.fullmatch(value) and value.lower() not in _WORDS:
        written = value
    else:
        # Hydra treats a backslash before a quote, and at the end, as an escape.
        inner = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
        written = f"'{inner}'"
    return shlex.quote(f"{name}={written}")


def launch_commands(result: SearchResult, chosen: Sequence[str] | None = ()) -> tuple[str, ...]:
    """Shell commands for the paper's main sweep with the settings of the best trial (or of each trial on the front),
    and the same number of seeds that the search has not used. With several commands, comments tell them apart.
    `chosen`: overrides that select the sweep's runs that the search tuned (`variant=cppo`); None if no overrides do,
    and then there are no commands.
    """
    if chosen is None:
        return ()
    front = set(front_of(result))
    ranked = ranking(result)
    single = len(result.objectives) == 1
    best = ranked[:1] if single else [trial for trial in ranked if trial.number in front]
    first = max(result.seeds) + 1
    fresh = ",".join(str(first + index) for index in range(max(2, len(result.seeds))))
    core = [] if result.core == DEFAULT_CORE else [f"core={result.core}"]
    lines = []
    for trial in best:
        if not single:
            lines.append(f"# trial {trial.number}: {values_text(result, trial)}")
        settings = [override(name, value) for name, value in trial.params.items()]
        lines.append(" ".join(["cppo launch main", *core, *chosen, *settings, f"seed={fresh}"]))
    return tuple(lines)


def tune_command(result: SearchResult) -> str:
    """The command that continues the search."""
    words = ["cppo", "tune", result.name]
    if result.core != DEFAULT_CORE:
        words.append(f"core={result.core}")
    if result.study != f"{result.name}-{result.model}":
        words += ["--study", result.study]
    return shlex.join(words)


def _trials(numbers: Iterable[int]) -> str:
    found = [str(number) for number in numbers]
    return ("trial " if len(found) == 1 else "trials ") + _listed(found)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class SearchRequest:
    """What to report: `study` in `experiment` of the store at `uri`, into folder `out`.

    `command` is what rebuilds the report, `tune` what continues the search (by default, what its file suggests).
    `shipped`: the default settings of the configuration, by key; those that the search tunes are marked in figures and
    tables. `chosen`: see `launch_commands`.
    """

    uri: str
    experiment: str
    study: str
    out: Path
    command: str = ""
    tune: str = ""
    style: Style = USUAL_STYLE
    shipped: Mapping[str, Value] = field(default_factory=dict)
    chosen: tuple[str, ...] | None = ()

    def contents(self) -> Contents:
        """Raises UserError as `read_search`."""
        result = read_search(self.uri, self.experiment, self.study)
        return search_contents(self, result, read_seed_values(self.uri, self.experiment, result))


def search_contents(request: SearchRequest, result: SearchResult, seeds: Sequence[SeedValues]) -> Contents:
    """The report of a search."""
    space, trials = space_table(result, request.shipped), trial_table(result, seeds)
    texts = table_files({"table_trials": trials_text(trials), "table_space": space})
    return Contents(
        about=About(
            kind="search",
            name=request.study,
            title=result.name,
            question=result.question,
            experiment=request.experiment,
            core=result.core,
            command=request.command or f"cppo report {result.name}",
        ),
        texts=texts | {"table_trials.csv": trials_csv(result, seeds)},
        pictures=search_figures(result, request.shipped),
        boards={},
        template="search.html.j2",
        page={
            "title": result.title,
            "mlflow_id": result.mlflow_id,
            "model": result.model,
            "states": states_text(result),
            "finding": finding(result),
            "certainty": certainty(result, seeds),
            "space": space,
            "trials": trials,
            "failures": [
                (trial.number, trial.reason or "no reason was recorded")
                for trial in result.trials
                if trial.state == FAILED
            ],
            "launches": launch_commands(result, request.chosen),
            "not_in_main": request.chosen is None and bool(ranking(result)),
            "tune": request.tune or tune_command(result),
            "trial_count": len(result.trials),
        },
    )
