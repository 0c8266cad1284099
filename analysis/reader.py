"""From MLflow to the tidy frames of a sweep, and to the answers that its runs kept.

`runs` has a row per run of a sweep, `metrics` a row per (run, metric, step). A configuration that was run more than
once (a retry) appears once: the newest run that is a result, or the newest of all when none is.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.inputs import (
    RUN_COLUMNS,
    SweepData,
    integer,
    is_result,
    points_frame,
    remedy_of,
)
from cppo_lab.answers import records as kept
from cppo_lab.answers.outcomes import OUTCOMES, Outcomes
from cppo_lab.answers.records import FolderFiles
from cppo_lab.answers.texts import Texts
from cppo_lab.answers.tokens import RecordedTokens
from cppo_lab.core_records import core_if_installed
from cppo_lab.errors import UserError
from cppo_lab.tracking import address
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.read import (
    StoredFiles,
    experiment_id,
    histories,
    newest_of_each,
    newest_runs,
    reading,
    search_runs,
    stored_run,
)

MOST_RUNS = 300  # answers of a larger sweep are not read: its page shows no single runs

T = TypeVar("T")
_RESULT_TAGS = (
    schema.TAG_RUN_ID,
    schema.TAG_RULE,
    schema.TAG_MODEL,
    schema.TAG_CORE,
    schema.TAG_SEED,
    schema.TAG_T_STOP,
    schema.TAG_STATUS,
    schema.TAG_REASON,
)


def list_runs(uri: str, experiment: str, tag: str | None = None) -> list[StoredRun]:
    """The runs of an experiment that have `tag` (None: all), without their histories.

    Raises UserError if the store or the experiment does not exist, or if the experiment was deleted.
    """
    address.require_store(uri)
    with reading(uri) as client:
        return [
            stored_run(run) for run in search_runs(client, experiment_id(client, experiment, uri), tag=tag)
        ]


def read_sweep(
    uri: str,
    experiment: str,
    sweep: str,
    metrics: Callable[[str], bool] | None = None,
    run_ids: Collection[str] = (),
    listing: Sequence[StoredRun] | None = None,
) -> SweepData:
    """The runs of `experiment` that carry the tag of `sweep`, and those whose `cppo.run_id` is in `run_ids` (a run may
    have been trained by another sweep). `metrics` decides by name which metrics to read (None: all). `listing`: the
    runs, if they have been listed already.

    Raises UserError if the store or the experiment does not exist, the experiment was deleted, or no run of
    it belongs to the sweep.
    """
    listed = list_runs(uri, experiment) if listing is None else listing
    tag, ids = schema.sweep_tag(sweep), frozenset(run_ids)
    runs = [run for run in listed if tag in run.tags or run.tags.get(schema.TAG_RUN_ID) in ids]
    if not runs:
        prefix = schema.TAG_SWEEP_PREFIX
        tags = {tag for run in listed for tag in run.tags if tag.startswith(prefix)}
        others = ", ".join(sorted(tag.removeprefix(prefix) for tag in tags)) or "no sweep"
        raise UserError(
            f"experiment {experiment!r} has no run of sweep {sweep!r}: it has runs of {others}; run "
            f"{remedy_of(experiment)} first"
        )
    return _sweep_data(uri, experiment, sweep, runs, metrics)


def read_runs(
    uri: str, experiment: str, run_ids: Collection[str], metrics: Callable[[str], bool] | None = None
) -> SweepData:
    """The runs of `experiment` whose `cppo.run_id` is in `run_ids`, of any sweep; missing ones are left out. Raises
    UserError as `read_sweep` does for a store or an experiment.
    """
    runs = [run for run in list_runs(uri, experiment) if run.tags.get(schema.TAG_RUN_ID) in run_ids]
    return _sweep_data(uri, experiment, "", runs, metrics)


def find_runs(uri: str, experiment: str, run_ids: Collection[str]) -> list[StoredRun]:
    """One run for each id that the store has, sorted by id: the newest that is a result, or else the newest of all.
    Raises UserError if the store does not exist.
    """
    address.require_store(uri)
    with reading(uri) as client:
        runs = map(stored_run, newest_runs(client, experiment, tag=schema.TAG_RUN_ID))
        return newest_of_each(run for run in runs if run.tags[schema.TAG_RUN_ID] in run_ids)


def read_points(
    uri: str, runs: Sequence[StoredRun], metrics: Callable[[str], bool] | None = None
) -> pd.DataFrame:
    """The points of these metrics, as a frame of `inputs.points_frame`, in the order of the runs."""
    with reading(uri) as client:
        return points_frame(histories(client, runs, metrics))


def read_searches(uri: str, experiment: str) -> dict[str, list[str]]:
    """The searches of `experiment`: name of the study -> MLflow runs that represent it as a whole, newest first.

    Raises UserError as `read_sweep` does for a store or an experiment.
    """
    of_searches = list_runs(uri, experiment, schema.TAG_SEARCH)
    whole = [run for run in of_searches if schema.TAG_PARENT not in run.tags]
    whole.sort(key=lambda run: (run.start_ms or 0, run.mlflow_id), reverse=True)
    studies: dict[str, list[str]] = {}
    for run in whole:
        studies.setdefault(run.tags[schema.TAG_SEARCH], []).append(run.mlflow_id)
    return dict(sorted(studies.items()))


def _sweep_data(
    uri: str, experiment: str, sweep: str, attempts: list[StoredRun], metrics: Callable[[str], bool] | None
) -> SweepData:
    runs = newest_of_each(attempts)
    rows, versions = [], {}
    for run in runs:
        tags = run.tags
        row = (
            run.mlflow_id,
            run.run_id,
            tags.get(schema.sweep_tag(sweep)) or tags.get(schema.TAG_RULE, ""),
            tags.get(schema.TAG_RULE, ""),
            tags.get(schema.TAG_MODEL, ""),
            tags.get(schema.TAG_CORE, ""),
            integer(tags.get(schema.TAG_SEED, "")),
            integer(tags.get(schema.TAG_T_STOP, "")),
            run.status,
            tags.get(schema.TAG_REASON, ""),
            run.name,
            # Anybody may have written a time beyond all years, which is none.
            *(pd.to_datetime(ms, unit="ms", utc=True, errors="coerce") for ms in (run.start_ms, run.end_ms)),
            tags.get(schema.TAG_WARM_START, ""),
        )
        rows.append(row)
        # A digest of the run's configuration and result, the same for copies of a run in different stores.
        result = (
            [(name, tags.get(name, "")) for name in _RESULT_TAGS],
            sorted(run.params.items()),
            sorted(
                (name, step, repr(value)) for name, (step, _, value) in run.latest.items() if is_result(name)
            ),
        )
        versions[run.mlflow_id] = hashlib.sha256(repr(result).encode()).hexdigest()
    frame = pd.DataFrame(rows, columns=list(RUN_COLUMNS))
    points = read_points(uri, runs, metrics)
    return SweepData(
        experiment,
        sweep,
        frame.astype({"seed": "Int64", "t_stop": "Int64"}),
        points,
        {run.mlflow_id: run.params for run in runs},
        versions,
        read_outcomes(uri, runs) if len(runs) <= MOST_RUNS else {},
        frozenset(
            run.mlflow_id
            for run in runs
            # A run without the tag is older than it, or another core's: then the record of its core says it.
            if run.tags.get(schema.TAG_SEED_FIXES_START) == "true"
            or core_if_installed(run.tags.get(schema.TAG_CORE, "")).seed_fixes_start
        ),
        attempts[0].experiment_id if attempts else "",
        {run.mlflow_id: code for run in runs if (code := run.tags.get(schema.TAG_CODE_VERSION))},
        {run.mlflow_id: note for run in runs if (note := _note(run.tags))},
        {
            run.run_id: run.start_ms or 0
            for run in sorted(attempts, key=lambda run: run.start_ms or 0, reverse=True)
        },
    )


def _note(tags: Mapping[str, str]) -> str:
    if tags.get(schema.TAG_CORE) == schema.PAPER:  # whose descriptions are ours
        return ""
    given = [f"{key}={value}" for key, value in sorted(tags.items()) if not key.startswith(schema.OUR_TAGS)]
    return "; ".join(filter(None, [tags.get(schema.TAG_NOTE, ""), *given]))


# What runs kept of their answers: outcomes, texts and tokens (`cppo_lab.answers`).


@dataclass(frozen=True)
class RunAnswers:
    """The texts and tokens that a run kept of some of its validated steps, by step."""

    texts: tuple[Texts, ...]
    tokens: tuple[RecordedTokens, ...]


def read_outcomes(uri: str, runs: Iterable[StoredRun]) -> dict[str, Outcomes]:
    """MLflow run -> each problem's outcome at each validation, of the runs that kept them.

    Artifacts on this machine are read without querying the store.
    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    outcomes = {}
    with reading(uri) as client:
        for run in runs:
            folder = address.artifact_folder(run.artifact_uri, uri)
            if folder is not None and not (folder / OUTCOMES).exists():
                continue
            files = (
                StoredFiles(client, run.mlflow_id, run.artifact_uri)
                if folder is None
                else FolderFiles(folder)
            )
            if (of_run := kept.read_outcomes(files)) is not None:
                outcomes[run.mlflow_id] = of_run
    return outcomes


def read_answers(
    uri: str, mlflow_ids: Iterable[str], text_steps: int, token_steps: int
) -> Mapping[str, RunAnswers]:
    """MLflow run -> its texts at up to `text_steps` validations, evenly spaced and including the first and the last,
    and its tokens at the last `token_steps`. Runs without either are left out.

    Raises UserError if the store fails, or if a file is too large or not what it should be.
    """
    address.require_store(uri)
    answers = {}
    with reading(uri) as client:
        for mlflow_id in mlflow_ids:
            files = StoredFiles(client, mlflow_id)
            spread = evenly_spaced(kept.steps_with(files, "texts"), text_steps)
            last = kept.steps_with(files, "tokens")[-token_steps:] if token_steps else []
            texts = tuple(filter(None, (kept.read_texts(files, step) for step in spread)))
            tokens = tuple(filter(None, (kept.read_tokens(files, step) for step in last)))
            if texts or tokens:
                answers[mlflow_id] = RunAnswers(texts, tokens)
    return answers


def evenly_spaced(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of the items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[-most:]) if most else []
    places = [round(number * (len(items) - 1) / (most - 1)) for number in range(most)]
    return [items[place] for place in places]
