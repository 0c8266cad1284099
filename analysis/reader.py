"""MLflow -> tidy frames of sweeps: their runs here, what they logged by `histories`.

`runs` has one row per run of a sweep, `metrics` one row per (run, metric, step). A configuration that was
run more than once (a retry) appears once: the newest run that is a result, or the newest of all when none is.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pandas as pd
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.analysis.answers import read_outcomes
from cppo_lab.analysis.histories import read_points
from cppo_lab.analysis.listing import all_runs, experiment_id, open_store, unreadable
from cppo_lab.analysis.run_versions import result_version, stored_version
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.errors import UserError
from cppo_lab.store import address

RUN_COLUMNS = (
    "mlflow_id",
    "run_id",
    "variant",
    "rule",
    "model",
    "core",
    "seed",
    "t_stop",
    "status",
    "reason",
    "name",
    "start",
    "end",
)
_FROM_MLFLOW = {
    "FINISHED": schema.DONE,
    "RUNNING": schema.RUNNING,
    "SCHEDULED": schema.RUNNING,
    "KILLED": schema.PARTIAL,
}


@dataclass(frozen=True, eq=False)
class SweepData:
    """The runs of one sweep and everything they logged (or the metrics asked for).

    `runs`: columns RUN_COLUMNS; `seed` and `t_stop` are nullable integers, `start` and `end` are UTC times.
    `metrics`: columns `points.METRIC_COLUMNS` of the types named there, sorted, one value per (run, metric, step).
    `params`: MLflow run -> its flattened configuration as logged (`rule.delta` -> "0.15"); empty
    where a run logged none. `versions`: MLflow run -> what changes with its result (`run_versions.result_version`).
    `outcomes`: MLflow run -> each problem's outcome at each validation, of the runs that kept them.
    """

    experiment: str
    sweep: str
    runs: pd.DataFrame
    metrics: pd.DataFrame
    params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class StoreListing:
    """The runs of `experiment` in the store at `uri` as they were at one moment, without their histories."""

    uri: str
    experiment: str
    runs: tuple[Run, ...]

    def of_sweep(self, sweep: str, run_ids: Collection[str]) -> list[Run]:
        """The runs that carry the tag of `sweep`, and those whose `cppo.run_id` is one of `run_ids`."""
        tag, wanted = schema.sweep_tag(sweep), frozenset(run_ids)
        return [
            run for run in self.runs if tag in run.data.tags or run.data.tags.get(schema.TAG_RUN_ID) in wanted
        ]

    def versions(self, sweeps: Mapping[str, Collection[str]]) -> tuple[str, ...]:
        """The state of every run that belongs to one of the sweeps (name -> run ids), in no order of the store's."""
        found = {
            run.info.run_id: run for sweep, run_ids in sweeps.items() for run in self.of_sweep(sweep, run_ids)
        }
        return tuple(sorted(stored_version(run) for run in found.values()))


def list_runs(uri: str, experiment: str) -> StoreListing:
    """All runs of an experiment. Raises UserError if the store or the experiment does not exist, or it was deleted."""
    address.require_store(uri)
    try:
        client = open_store(uri)
        return StoreListing(uri, experiment, tuple(all_runs(client, experiment_id(client, experiment, uri))))
    except (MlflowException, SQLAlchemyError) as error:
        raise unreadable(uri, error) from error


def read_sweep(
    uri: str,
    experiment: str,
    sweep: str,
    metrics: Callable[[str], bool] | None = None,
    run_ids: Collection[str] = (),
    listing: StoreListing | None = None,
) -> SweepData:
    """The runs of `experiment` that carry the tag of `sweep`, and those whose `cppo.run_id` is one of
    `run_ids` (a run that another sweep trained is the same run). `metrics` says of a metric's name whether to
    read it (None: everything). `listing`: the runs, where they are known already.

    Raises UserError if the store or the experiment does not exist, the experiment was deleted, or no run of
    it belongs to the sweep.
    """
    listed = listing or list_runs(uri, experiment)
    found = listed.of_sweep(sweep, run_ids)
    if not found:
        raise UserError(_nothing_found(experiment, sweep, listed.runs))
    try:
        return _sweep_data(open_store(uri), uri, experiment, sweep, found, metrics)
    except (MlflowException, SQLAlchemyError) as error:
        raise unreadable(uri, error) from error


def read_runs(
    uri: str, experiment: str, run_ids: Collection[str], metrics: Callable[[str], bool] | None = None
) -> SweepData:
    """The runs of `experiment` whose `cppo.run_id` is one of `run_ids`, in whatever sweep; those that are not there
    are left out. Raises UserError as `read_sweep` does for a store or an experiment.
    """
    address.require_store(uri)
    try:
        client = open_store(uri)
        everything = all_runs(client, experiment_id(client, experiment, uri))
        found = [run for run in everything if run.data.tags.get(schema.TAG_RUN_ID) in run_ids]
        return _sweep_data(client, uri, experiment, "", found, metrics)
    except (MlflowException, SQLAlchemyError) as error:
        raise unreadable(uri, error) from error


def read_studies(uri: str, experiment: str) -> dict[str, tuple[str, ...]]:
    """The searches of `experiment`: name of the study -> MLflow runs that represent it as a whole, newest first.

    Raises UserError as `read_sweep` does for a store or an experiment.
    """
    address.require_store(uri)
    try:
        client = open_store(uri)
        of_searches = list(all_runs(client, experiment_id(client, experiment, uri), schema.TAG_SEARCH))
    except (MlflowException, SQLAlchemyError) as error:
        raise unreadable(uri, error) from error
    whole = [run for run in of_searches if schema.TAG_PARENT not in run.data.tags]
    whole.sort(key=lambda run: (run.info.start_time or 0, run.info.run_id), reverse=True)
    studies: dict[str, tuple[str, ...]] = {}
    for run in whole:
        name = run.data.tags[schema.TAG_SEARCH]
        studies[name] = (*studies.get(name, ()), run.info.run_id)
    return dict(sorted(studies.items()))


def _sweep_data(
    client: MlflowClient,
    uri: str,
    experiment: str,
    sweep: str,
    found: list[Run],
    metrics: Callable[[str], bool] | None,
) -> SweepData:
    kept = _newest_of_each(found)
    runs = pd.DataFrame([_run_row(run, sweep) for run in kept], columns=list(RUN_COLUMNS))
    runs = runs.astype({"seed": "Int64", "t_stop": "Int64"})
    params = {run.info.run_id: dict(run.data.params) for run in kept}
    versions = {run.info.run_id: result_version(run) for run in kept}
    points = read_points(client, uri, kept, metrics)
    outcomes = read_outcomes(uri, {run.info.run_id: run.info.artifact_uri for run in kept})
    return SweepData(experiment, sweep, runs, points, params, versions, outcomes)


def _nothing_found(experiment: str, sweep: str, runs: Iterable[Run]) -> str:
    prefix = schema.TAG_SWEEP_PREFIX
    sweeps = sorted(
        {tag.removeprefix(prefix) for run in runs for tag in run.data.tags if tag.startswith(prefix)}
    )
    is_paper = experiment == schema.experiment_name(schema.PAPER)
    remedy = "`cppo reference import`" if is_paper else "`cppo launch` with the same sweep and overrides"
    return (
        f"experiment {experiment!r} has no run of sweep {sweep!r}: it has runs of "
        f"{', '.join(sweeps) or 'no sweep'}; run {remedy} first"
    )


def _status(run: Run) -> str:
    """Our status tag; where a run has none, what MLflow itself says."""
    tag = run.data.tags.get(schema.TAG_STATUS)
    return tag if tag in schema.STATUSES else _FROM_MLFLOW.get(run.info.status, schema.FAILED)


def _newest_of_each(found: list[Run]) -> list[Run]:
    """One run per `cppo.run_id`, in an order that does not depend on MLflow's random ids where it need
    not.
    """
    best: dict[str, Run] = {}

    def rank(run: Run) -> tuple[bool, int, str]:
        return (_status(run) in schema.FINISHED, run.info.start_time or 0, run.info.run_id)

    for run in found:
        key = run.data.tags.get(schema.TAG_RUN_ID) or run.info.run_id
        if key not in best or rank(run) > rank(best[key]):
            best[key] = run
    return [best[key] for key in sorted(best)]


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _run_row(run: Run, sweep: str) -> tuple[object, ...]:
    tags, info = run.data.tags, run.info
    return (
        info.run_id,
        tags.get(schema.TAG_RUN_ID) or info.run_id,
        tags.get(schema.sweep_tag(sweep)) or tags.get(schema.TAG_RULE, ""),
        tags.get(schema.TAG_RULE, ""),
        tags.get(schema.TAG_MODEL, ""),
        tags.get(schema.TAG_CORE, ""),
        _integer(tags.get(schema.TAG_SEED)),
        _integer(tags.get(schema.TAG_T_STOP)),
        _status(run),
        tags.get(schema.TAG_REASON, ""),
        info.run_name or "",
        pd.to_datetime(info.start_time, unit="ms", utc=True),
        pd.to_datetime(info.end_time, unit="ms", utc=True),
    )
