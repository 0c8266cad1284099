"""The tables of a search: its trials and its search space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cppo_lab.analysis.audit import percent
from cppo_lab.analysis.search import (
    COMPLETE,
    FAILED,
    PRUNED,
    RUNNING,
    SearchResult,
    SeedValues,
    Space,
    TrialResult,
    Value,
    front_of,
    ranking,
    value_of,
)
from cppo_lab.reports.escapes import csv_text
from cppo_lab.reports.names import ABSENT, objective_name, origin, value_text
from cppo_lab.reports.tables import TextRow, TextTable

EDGE = 0.02  # share of an interval on its scale; values closer to an end are at the edge
_ORDER = (COMPLETE, RUNNING, PRUNED, FAILED)


@dataclass(frozen=True)
class TrialLine:
    """One trial as text; `params` and `values` in the order of the table's headings."""

    number: str
    best: bool
    state: str
    params: tuple[str, ...]
    values: tuple[str, ...]
    minutes: str
    run_ids: tuple[str, ...]
    mlflow_id: str


@dataclass(frozen=True)
class TrialTable:
    """All trials, best first, then those without a value."""

    title: str
    core: str
    parameters: tuple[str, ...]
    objectives: tuple[str, ...]
    lines: tuple[TrialLine, ...]
    notes: tuple[str, ...]


def in_order(result: SearchResult) -> tuple[TrialResult, ...]:
    """The complete trials by rank, then the running, the pruned and the failed ones by number."""
    others = [trial for trial in result.trials if trial.state != COMPLETE]
    return (*ranking(result), *sorted(others, key=lambda trial: (_ORDER.index(trial.state), trial.number)))


def trial_table(result: SearchResult, seeds: Sequence[SeedValues]) -> TrialTable:
    """The table of trials for the page."""
    front = set(front_of(result))
    lines = tuple(
        TrialLine(
            number=str(trial.number),
            best=trial.number in front,
            state=_state(result, trial),
            params=tuple(
                value_text(trial.params[space.name]) if space.name in trial.params else ABSENT
                for space in result.parameters
            ),
            values=_values(result, trial, seeds),
            minutes=ABSENT if trial.seconds is None else f"{trial.seconds / 60:.1f}",
            run_ids=trial.run_ids,
            mlflow_id=trial.mlflow_id or ABSENT,
        )
        for trial in in_order(result)
    )
    several = len(result.objectives) > 1
    notes = [
        f"Source: {origin(result.core)}.",
        "Values in percent, higher is better. "
        + ("Bold: on the Pareto front, which comes first." if several else "Bold: the best."),
    ]
    if any(found.values for found in seeds):
        notes.append(f"Mean ± standard deviation over {len(result.seeds)} seeds.")
    if any(trial.state == PRUNED for trial in result.trials):
        notes.append("pruned: ended early because others did better at the same step.")
    return TrialTable(
        title=f"Trials of {result.study}",
        core=result.core,
        parameters=tuple(space.name for space in result.parameters),
        objectives=tuple(objective_name(name) for name in result.objectives),
        lines=lines,
        notes=tuple(notes),
    )


def _state(result: SearchResult, trial: TrialResult) -> str:
    """The state of a trial, with the training step (and the seed if there are several) at which it ended early."""
    if trial.state != PRUNED or not trial.curve:
        return trial.state
    last = trial.curve[-1][0]
    seed = min(max(0, last - 1) // result.t_stop, len(result.seeds) - 1) if result.t_stop else 0
    at = f"{trial.state} at step {last - seed * result.t_stop}"
    return at if len(result.seeds) == 1 else f"{at} of seed {result.seeds[seed]}"


def _values(result: SearchResult, trial: TrialResult, seeds: Sequence[SeedValues]) -> tuple[str, ...]:
    if trial.values is None:
        return (ABSENT,) * len(result.objectives)
    texts = []
    for index in range(len(result.objectives)):
        std = seeds[index].std(trial.number) if index < len(seeds) else None
        spread = "" if std is None else f" ± {100 * std:.1f}"
        texts.append(f"{100 * value_of(trial, index):.1f}{spread}")
    return tuple(texts)


def trials_text(table: TrialTable) -> TextTable:
    """The table without ids, for Markdown and LaTeX."""
    rows = tuple(
        TextRow(line.number, line.best, (line.state, *line.params, *line.values, line.minutes))
        for line in table.lines
    )
    headings = ("state", *table.parameters, *table.objectives, "minutes")
    notes = tuple(note.replace("Bold", "Shaded") for note in table.notes)
    return TextTable(table.title, table.core, "trial", headings, rows, notes)


def trials_csv(result: SearchResult, seeds: Sequence[SeedValues]) -> str:
    """One row per trial in the order of the table, settings with every digit, values in percent."""
    names = [space.name for space in result.parameters]
    several = [found for found in seeds if found.values]
    header = [
        *("trial", "state", *names, *result.objectives, *(f"{found.objective}_by_seed" for found in several)),
        *("seconds", "last_step", "run_ids", "mlflow_run_id", "reason", "core"),
    ]
    rows = []
    for trial in in_order(result):
        absent = [""] * len(result.objectives)
        values = absent if trial.values is None else [str(percent(value)) for value in trial.values]
        by_seed = [
            " ".join(str(percent(value)) for value in found.values.get(trial.number, ())) for found in several
        ]
        params = [_exact(trial.params[name]) if name in trial.params else "" for name in names]
        last = trial.curve[-1][0] if trial.curve else ""
        ids = (" ".join(trial.run_ids), trial.mlflow_id, trial.reason, result.core)
        rows.append([trial.number, trial.state, *params, *values, *by_seed, trial.seconds, last, *ids])
    return csv_text(header, rows)


def space_table(result: SearchResult, shipped: Mapping[str, Value]) -> TextTable:
    """The search space, the default settings of the configuration, and the values of the best trial."""
    ranked = ranking(result)
    single = ranked[0] if ranked and len(result.objectives) == 1 else None
    known = any(space.name in shipped for space in result.parameters)
    headings = ["searched", *(["as shipped"] if known else []), *(["best trial"] if single else [])]
    rows = []
    for space in result.parameters:
        cells = [space_text(space)]
        if known:
            cells.append(value_text(shipped[space.name]) if space.name in shipped else ABSENT)
        if single:
            cells.append(value_text(single.params[space.name]) + _at_edge(space, single.params[space.name]))
        rows.append(TextRow(space.name, False, tuple(cells)))
    notes = [f"Sampler {result.sampler}, pruner {result.pruner}, seeds {', '.join(map(str, result.seeds))}."]
    if single and any(_at_edge(space, single.params[space.name]) for space in result.parameters):
        notes.append(
            "at the edge: the best value lies at an end of the interval; a better one may lie beyond it."
        )
    return TextTable("Space searched", result.core, "parameter", tuple(headings), tuple(rows), tuple(notes))


def space_text(space: Space) -> str:
    """`0.002 to 0.05, log scale`, `0.4 to 1 in steps of 0.05`, `0.02, 0.05 or 0.15`."""
    if space.choices:
        words = [value_text(choice) for choice in space.choices]
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
    step = "" if space.step is None else f" in steps of {space.step:g}"
    return f"{space.low:g} to {space.high:g}{step}{', log scale' if space.log else ''}"


def _at_edge(space: Space, value: Value) -> str:
    near = not space.choices and not EDGE < space.scaled(value) < 1 - EDGE
    return " (at the edge)" if near else ""


def _exact(value: Value) -> str:
    return value_text(value) if value is None or isinstance(value, (bool, str)) else repr(value)
