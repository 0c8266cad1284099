"""The tidy frames of a sweep, as returned by the readers of a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

from cppo_lab.answers.outcomes import Outcomes

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
    `metrics`: columns `points.METRIC_COLUMNS` of the types named there, sorted, one value per (run, metric, step).
    `params`: MLflow run -> its flattened configuration as logged (`rule.delta` -> "0.15"); empty if a run logged none.
    `versions`: MLflow run -> its `run_versions.result_version`. `outcomes`: MLflow run -> each problem's outcome at
    each validation, of the runs that kept them. `drawn_starts`: MLflow runs whose seed draws their start,
    alike for all rules and models (`CoreRecord.seed_fixes_start`). `experiment_id`: the experiment's id in the store;
    empty without runs.
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
