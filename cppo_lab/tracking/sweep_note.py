"""The description of a sweep's parent run, as Markdown: what is compared, how it stands, what came of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cppo_lab import schema
from cppo_lab.tracking.markdown import code, escaped, link, table

MOST = 7500  # characters: MLflow keeps 8,000 of a run's tag
_VERDICT = (
    "\n### Verdict\n"  # the last section of a note; what follows it stays when the note is written anew
)
_MOST_VERDICT = 2000
_MOST_SETTINGS = 8  # constants of one variant
_OF_MANY = ("seed", "core")  # keys that vary within a variant


@dataclass(frozen=True)
class SweepText:
    """What a sweep says of itself: its `feeds` are tables and figures of the paper."""

    name: str
    title: str
    question: str
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotedRun:
    """A run of a sweep as its description shows it. `params` is the flattened configuration.

    `mlflow_id` is empty for a run that nobody has started; `score` is the last validation, a fraction.
    """

    run_id: str
    variant: str
    state: str
    rule: str
    model: str
    seed: str
    t_stop: str
    mlflow_id: str = ""
    score: float | None = None
    params: Mapping[str, str] = field(default_factory=dict)


def sweep_note(sweep: SweepText, runs: Sequence[NotedRun], experiment: str, verdict: str = "") -> str:
    """The whole description; `experiment` is the MLflow id of the runs' experiment, `verdict` is Markdown."""
    head = [f"## {escaped(sweep.title)}"]
    if sweep.question:
        head.append(f"**{escaped(sweep.question)}**")
    if sweep.feeds:
        head.append(f"Of the paper: {escaped(', '.join(sweep.feeds))}.")
    head += [_facts(sweep, runs), "### Variants", _variants(runs)]
    end = f"{_VERDICT}\n{verdict.strip()[:_MOST_VERDICT]}\n" if verdict.strip() else ""
    room = MOST - sum(len(part) + 2 for part in head) - len(end)
    return "\n\n".join([*head, "### Runs", _grid(runs, experiment, room)]) + "\n" + end


def verdict_of(note: str) -> str:
    """The verdict in a description; empty if there is none."""
    return note.partition(_VERDICT)[2].strip()


def with_verdict(note: str, verdict: str) -> str:
    """The description with this verdict in place of the one that it has."""
    rest = note.partition(_VERDICT)[0].rstrip()
    return f"{rest}\n{_VERDICT}\n{verdict.strip()[:_MOST_VERDICT]}\n" if verdict.strip() else rest + "\n"


def _facts(sweep: SweepText, runs: Sequence[NotedRun]) -> str:
    """Models, seeds, steps, states, and how to see only these runs."""
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{states[state]} {state}" for state in schema.STATES if states[state])
    return "\n".join(
        [
            f"- runs: {len(runs)} ({counts})",
            f"- models: {_listed(run.model for run in runs)}",
            f"- seeds: {_listed(run.seed for run in runs)}",
            f"- training steps: {_listed(run.t_stop for run in runs)}",
            f"- to see only these runs, filter by ``tags.`{schema.sweep_tag(sweep.name)}` LIKE '%'``",
        ]
    )


def _listed(values: Iterable[str]) -> str:
    return ", ".join(code(value) for value in dict.fromkeys(values)) or "none"


def _variants(runs: Sequence[NotedRun]) -> str:
    """Each variant with its rule and with what it has otherwise than the others."""
    first = {run.variant: run for run in reversed(runs)}
    differing = _differing(list(first.values()))
    rows = []
    for variant in dict.fromkeys(run.variant for run in runs):
        run = first[variant]
        settings = [f"{code(f'{key}={run.params[key]}')}" for key in differing if key in run.params]
        shown = settings[:_MOST_SETTINGS] + (["…"] if len(settings) > _MOST_SETTINGS else [])
        rows.append((escaped(variant), code(run.rule), ", ".join(shown) or "-"))
    return table(("variant", "rule", "settings that differ"), rows)


def _differing(runs: Sequence[NotedRun]) -> list[str]:
    """The keys in which runs of different variants differ. A key that a run lacks has a value of its own.

    Only runs of one model are compared: what a model brings along is no choice of the sweep.
    """
    same = [run for run in runs if run.model == runs[0].model and run.params]
    keys = dict.fromkeys(key for run in same for key in run.params)
    return [
        key
        for key in keys
        if key not in _OF_MANY and key != "rule.name" and len({run.params.get(key) for run in same}) > 1
    ]


def _grid(runs: Sequence[NotedRun], experiment: str, room: int) -> str:
    """Variants by seeds: the last score of each run, or how it stands; as many rows as there is room for."""
    seeds = list(dict.fromkeys(run.seed for run in runs))
    places: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for run in runs:
        places[run.variant, run.model][run.seed] = _cell(run, experiment)
    head = ("variant", "model", *(f"seed {escaped(seed)}" for seed in seeds))
    rows = [
        (escaped(variant), code(model), *(cells.get(seed, "") for seed in seeds))
        for (variant, model), cells in places.items()
    ]
    left = room - 200  # the line on rows that are left out, and the heading
    for count, _ in enumerate(rows):
        left -= len(table(head, rows[count : count + 1])) - (len(table(head, [])) if count else 0)
        if left < 0:
            more = f"{len(rows) - count} more rows have no room here: filter the runs as said above."
            return f"{table(head, rows[:count])}\n\n{more}"
    return table(head, rows)


def _cell(run: NotedRun, experiment: str) -> str:
    state = "" if run.state == schema.DONE and run.score is not None else run.state
    score = "" if run.score is None else f"{100 * run.score:.1f} %"
    text = " ".join(part for part in (score, state) if part)
    address = f"#/experiments/{experiment}/runs/{run.mlflow_id}?workflowType=machine_learning"
    return link(text, address) if run.mlflow_id else escaped(text)
