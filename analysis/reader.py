"""From MLflow to the tidy frames of a sweep.

`runs` has one row per run of a sweep, `metrics` one row per (run, metric, step). A configuration that was
run more than once (a retry) appears once: the newest run that is a result, or the newest of all when none is.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.answers import read_outcomes
from cppo_lab.analysis.points import (
    RUN_COLUMNS,
    SweepData,
    newest_of_each,
    points_frame,
    result_version,
    run_id_of,
)
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.core_records import core_if_installed
from cppo_lab.errors import UserError
from cppo_lab.tracking import address
from cppo_lab.tracking.history import StoredRun
from cppo_lab.tracking.read import experiment_id, histories, newest_runs, reading, search_runs, stored_run


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
    """The runs of `experiment` that carry the tag of `sweep`, and those whose `cppo.run_id` is one of
    `run_ids` (a run may have been trained by another sweep). `metrics` decides by name which metrics to read (None:
    all). `listing`: the runs, if they have been listed already.

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
        is_paper = experiment == schema.experiment_name(schema.PAPER)
        remedy = "`cppo reference import`" if is_paper else "`cppo launch` with the same sweep and overrides"
        raise UserError(
            f"experiment {experiment!r} has no run of sweep {sweep!r}: it has runs of {others}; run {remedy} first"
        )
    return _sweep_data(uri, experiment, sweep, runs, metrics)


def read_runs(
    uri: str, experiment: str, run_ids: Collection[str], metrics: Callable[[str], bool] | None = None
) -> SweepData:
    """The runs of `experiment` whose `cppo.run_id` is one of `run_ids`, of any sweep; missing ones are left out. Raises
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
    """The points of these metrics, as a frame of `points.points_frame`, in the order of the runs."""
    with reading(uri) as client:
        return points_frame(histories(client, runs, metrics))


def read_all_outcomes(uri: str, runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
    """MLflow run -> each problem's outcome at each validation, of the runs that kept them."""
    return read_outcomes(uri, {run.mlflow_id: run.artifact_uri for run in runs}, of_any_number=True)


def read_searches(uri: str, experiment: str) -> dict[str, tuple[str, ...]]:
    """The searches of `experiment`: name of the study -> MLflow runs that represent it as a whole, newest first.

    Raises UserError as `read_sweep` does for a store or an experiment.
    """
    of_searches = list_runs(uri, experiment, schema.TAG_SEARCH)
    whole = [run for run in of_searches if schema.TAG_PARENT not in run.tags]
    whole.sort(key=lambda run: (run.start_ms or 0, run.mlflow_id), reverse=True)
    studies: dict[str, tuple[str, ...]] = {}
    for run in whole:
        name = run.tags[schema.TAG_SEARCH]
        studies[name] = (*studies.get(name, ()), run.mlflow_id)
    return dict(sorted(studies.items()))


def _sweep_data(
    uri: str, experiment: str, sweep: str, attempts: list[StoredRun], metrics: Callable[[str], bool] | None
) -> SweepData:
    runs = newest_of_each(attempts)
    frame = pd.DataFrame([_run_row(run, sweep) for run in runs], columns=list(RUN_COLUMNS))
    points = read_points(uri, runs, metrics)
    return SweepData(
        experiment,
        sweep,
        frame.astype({"seed": "Int64", "t_stop": "Int64"}),
        points,
        {run.mlflow_id: run.params for run in runs},
        {run.mlflow_id: result_version(run) for run in runs},
        read_outcomes(uri, {run.mlflow_id: run.artifact_uri for run in runs}),
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
    )


def _note(tags: Mapping[str, str]) -> str:
    if tags.get(schema.TAG_CORE) == schema.PAPER:  # whose descriptions are ours
        return ""
    given = [f"{key}={value}" for key, value in sorted(tags.items()) if not key.startswith(schema.OUR_TAGS)]
    return "; ".join(filter(None, [tags.get(schema.TAG_NOTE, ""), *given]))


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _run_row(run: StoredRun, sweep: str) -> tuple[object, ...]:
    tags = run.tags
    return (
        run.mlflow_id,
        run_id_of(run),
        tags.get(schema.sweep_tag(sweep)) or tags.get(schema.TAG_RULE, ""),
        tags.get(schema.TAG_RULE, ""),
        tags.get(schema.TAG_MODEL, ""),
        tags.get(schema.TAG_CORE, ""),
        _integer(tags.get(schema.TAG_SEED)),
        _integer(tags.get(schema.TAG_T_STOP)),
        run.status,
        tags.get(schema.TAG_REASON, ""),
        run.name,
        pd.to_datetime(run.start_ms, unit="ms", utc=True),
        pd.to_datetime(run.end_ms, unit="ms", utc=True),
        tags.get(schema.TAG_WARM_START, ""),
    )
