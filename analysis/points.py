"""Which attempts of a configuration count, and their points in tidy frames.

Which of several attempts at one configuration counts, and in what state it is.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cppo_lab import schema
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.tracking.history import History, StoredRun


def run_id_of(run: StoredRun) -> str:
    """The id of the run's configuration, or MLflow's id if it has none."""
    return run.tags.get(schema.TAG_RUN_ID) or run.mlflow_id


def newest_of_each(attempts: Iterable[StoredRun]) -> list[StoredRun]:
    """One run per run id, sorted by id: the newest that is a result, or the newest of all if none is."""

    def rank(run: StoredRun) -> tuple[str, bool, int, str]:
        return run_id_of(run), run.status in schema.FINISHED, run.start_ms or 0, run.mlflow_id

    return list({run_id_of(run): run for run in sorted(attempts, key=rank)}.values())


# The tidy frames of a sweep, as returned by the readers of a store.


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
    "warm_start",
)


@dataclass(frozen=True, eq=False)
class SweepData:
    """The runs of one sweep and all their logged metrics (or the requested ones).

    `runs`: columns RUN_COLUMNS; `seed` and `t_stop` are nullable integers, `start` and `end` are UTC times;
    `warm_start` is the digest of the weights from which training began, empty if the run has none.
    `metrics`: columns METRIC_COLUMNS of the types named there, sorted, one value per (run, metric, step).
    `params`: MLflow run -> its flattened configuration as logged (`rule.delta` -> "0.15"); empty if a run logged none.
    `versions`: MLflow run -> its `result_version`. `outcomes`: MLflow run -> each problem's outcome at
    each validation, of the runs that kept them. `drawn_starts`: MLflow runs whose seed draws their start,
    alike for all rules and models (`CoreRecord.seed_fixes_start`). `experiment_id`: the experiment's id in the store;
    empty without runs. `code`: MLflow run -> the version that made it, of the runs that recorded one. `notes`:
    MLflow run -> its description and tags of the users' own, of the runs that have any.
    """

    experiment: str
    sweep: str
    runs: pd.DataFrame
    metrics: pd.DataFrame
    params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, Outcomes] = field(default_factory=dict)
    drawn_starts: frozenset[str] = frozenset()
    experiment_id: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


# Many metric points in one compact tidy frame: 15 bytes per point for 1,000 runs.


METRIC_COLUMNS = ("mlflow_id", "metric", "step", "value")


def points_frame(histories: Iterable[tuple[str, History]]) -> pd.DataFrame:
    """The histories of runs, given as (MLflow id, history), as one tidy frame with one row per (run, metric, step).

    Columns METRIC_COLUMNS: `mlflow_id` and `metric` categorical, `step` int32 (int64 if one does not fit), `value`
    float64; sorted by the order of the runs, metric and step.
    """
    ids: list[str] = []
    number: dict[str, int] = {}  # of each metric
    segments: list[tuple[int, int, int]] = []  # run, metric, points
    steps: list[NDArray[Any]] = []
    values: list[NDArray[Any]] = []
    for mlflow_id, history in histories:
        for name, place in history.points():
            segments.append((len(ids), number.setdefault(name, len(number)), place.stop - place.start))
        ids.append(mlflow_id)
        fits = np.all(np.abs(history.step) < 2**31)
        steps.append(history.step.astype(np.int32 if fits else np.int64))
        values.append(np.array(history.value))  # a copy, so that the file's buffer can be freed
    runs, metrics, lengths = np.array(segments, dtype=np.int64).reshape(-1, 3).T
    names = sorted(number)
    place_of = np.empty(len(names), dtype=np.int64)
    place_of[[number[name] for name in names]] = np.arange(len(names))
    # Each column is joined and its parts dropped before the next one, so that the data is never held twice.
    step = np.concatenate([np.empty(0, np.int32), *steps])
    steps.clear()
    value = np.concatenate([np.empty(0, np.float64), *values])
    values.clear()
    return pd.DataFrame(
        {
            "mlflow_id": _category(runs, ids, lengths),
            "metric": _category(place_of[metrics], names, lengths),
            "step": step,
            "value": value,
        },
        copy=False,
    )


def _category(codes: NDArray[np.int64], names: Sequence[str], lengths: NDArray[np.int64]) -> pd.Categorical:
    kind = np.min_scalar_type(-max(1, len(names)))
    categories = pd.Index(names, dtype=object)
    return pd.Categorical.from_codes(np.repeat(codes.astype(kind), lengths), categories=categories)


# The version of a run's result, without reading its history.


_BESIDE = ("perf/", "system/")
_RESULT_TAGS = (
    *(schema.TAG_RUN_ID, schema.TAG_RULE, schema.TAG_MODEL, schema.TAG_CORE, schema.TAG_SEED),
    *(schema.TAG_T_STOP, schema.TAG_STATUS, schema.TAG_REASON),
)


def is_result(metric: str) -> bool:
    """Whether this metric is part of a run's result: all are, except speed and system metrics."""
    return not metric.startswith(_BESIDE)


def result_version(run: StoredRun) -> str:
    """A digest of the run's configuration and result; copies of a run in different stores have the same one."""
    tags = [(name, run.tags.get(name, "")) for name in _RESULT_TAGS]
    points = sorted(
        (name, step, repr(value)) for name, (step, _, value) in run.latest.items() if is_result(name)
    )
    return hashlib.sha256(repr((tags, sorted(run.params.items()), points)).encode()).hexdigest()
