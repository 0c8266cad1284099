"""The description of a sweep's parent run, as Markdown: what is compared, its state, its result."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cppo_lab import schema
from cppo_lab.tracking.markdown import code, escaped, link, table

MOST = 8000  # MLflow's limit on the characters of a run's tag
_VERDICT = "\n### Verdict\n"  # the last section of a note; what follows it stays when the note is rewritten
MOST_VERDICT = 1900  # characters reserved for it
_MOST_WORDS = 300  # of title and question
_MOST_SEEDS = 10  # columns
_MOST_LISTED = 12  # models, seeds or numbers of steps
_MOST_SETTINGS = 8  # constants of one variant
_OF_MANY = ("seed", "core")  # keys that vary within a variant


@dataclass(frozen=True)
class SweepText:
    """A sweep's own description: its `feeds` are tables and figures of the paper."""

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
    head = [f"## {escaped(sweep.title[:_MOST_WORDS])}"]
    if sweep.question:
        head.append(f"**{escaped(sweep.question[:_MOST_WORDS])}**")
    if sweep.feeds:
        head.append(f"Of the paper: {escaped(', '.join(sweep.feeds))}.")
    head += [_facts(sweep, runs), "### Variants"]
    room = MOST - MOST_VERDICT - 100 - sum(len(part) + 2 for part in head)
    variants = _fitting(("variant", "rule", "settings that differ"), _variants(runs), room // 3)
    grid = _fitting(*_grid(runs, experiment), room - len(variants))
    return with_verdict("\n\n".join([*head, variants, "### Runs", grid]), verdict)


def _fitting(head: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> str:
    """A table of as many rows as fit into `room` characters, and the number of omitted rows."""
    left, count = room - len(table(head, [])) - 60, 0
    for row in rows:
        left -= sum(len(cell) + 9 for cell in row)
        if left < 0:
            break
        count += 1
    shown = table(head, rows[:count])
    return shown if count == len(rows) else f"{shown}\n\n{len(rows) - count} more rows are omitted."


def verdict_of(note: str) -> str:
    """The verdict in a description; empty if there is none."""
    return note.partition(_VERDICT)[2].strip()


def with_verdict(note: str, verdict: str) -> str:
    """The description with this verdict in place of the one that it has."""
    rest = note.partition(_VERDICT)[0].rstrip()
    return f"{rest}\n{_VERDICT}\n{verdict.strip()[:MOST_VERDICT]}\n" if verdict.strip() else rest + "\n"


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
    each = [code(value) for value in dict.fromkeys(values)]
    shown = each[:_MOST_LISTED] + (
        [f"and {len(each) - _MOST_LISTED} more"] if len(each) > _MOST_LISTED else []
    )
    return ", ".join(shown) or "none"


def _variants(runs: Sequence[NotedRun]) -> list[tuple[str, ...]]:
    """Each variant with its rule and the settings that differ between variants."""
    first = {run.variant: run for run in reversed(runs)}
    differing = _differing(list(first.values()))
    rows: list[tuple[str, ...]] = []
    for variant in dict.fromkeys(run.variant for run in runs):
        run = first[variant]
        settings = [f"{code(f'{key}={run.params[key]}')}" for key in differing if key in run.params]
        shown = settings[:_MOST_SETTINGS] + (["…"] if len(settings) > _MOST_SETTINGS else [])
        rows.append((escaped(variant), code(run.rule), ", ".join(shown) or "-"))
    return rows


def _differing(runs: Sequence[NotedRun]) -> list[str]:
    """The keys in which runs of different variants differ. A missing key counts as a different value.

    Only runs of the same model are compared, since settings that come with a model are not a choice of the sweep.
    """
    same = [run for run in runs if run.model == runs[0].model and run.params]
    keys = dict.fromkeys(key for run in same for key in run.params)
    return [
        key
        for key in keys
        if key not in _OF_MANY and key != "rule.name" and len({run.params.get(key) for run in same}) > 1
    ]


def _grid(runs: Sequence[NotedRun], experiment: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows of variants by seeds: the last score of each run, or its state."""
    seeds = list(dict.fromkeys(run.seed for run in runs))[:_MOST_SEEDS]
    places: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for run in runs:
        places[run.variant, run.model][run.seed] = _cell(run, experiment)
    head = ("variant", "model", *(f"seed {escaped(seed)}" for seed in seeds))
    rows = [
        (escaped(variant), code(model), *(cells.get(seed, "") for seed in seeds))
        for (variant, model), cells in places.items()
    ]
    return head, rows


def _cell(run: NotedRun, experiment: str) -> str:
    state = "" if run.state == schema.DONE and run.score is not None else run.state
    score = "" if run.score is None else f"{100 * run.score:.1f} %"
    text = " ".join(part for part in (score, state) if part)
    address = f"#/experiments/{experiment}/runs/{run.mlflow_id}?workflowType=machine_learning"
    return link(text, address) if run.mlflow_id else escaped(text)
