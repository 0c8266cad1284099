"""What analysis begins with: the grid that a sweep declares, and its runs and their points as tidy frames."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.tracking.history import History

Value = str | int | float | bool | None  # of an axis


@dataclass(frozen=True)
class ExpectedRun:
    """One run of a declared sweep.

    `run_id` is the hash of the run's resolved configuration, or None if only the name is known (the
    paper's runs): then `model`, `variant` and, if not None, `seed` identify the run.
    """

    run_id: str | None
    model: str
    variant: str
    seed: int | None

    def describe(self) -> str:
        """`variant on model, seed 0`, for messages."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.variant} on {self.model}{seed}"


@dataclass(frozen=True)
class Baseline:
    """The variant that differences are taken from: `name`, or the default baseline if empty. With `matched`, `name` is
    a variant of the sweep file that itself has axis values, and `matched` maps each variant to the baseline variant
    with the same values.
    """

    name: str = ""
    matched: Mapping[str, str] | None = None

    def of(self, variant: str) -> str | None:
        """The baseline of `variant`; None for a baseline itself, and if there is none with its axis values."""
        baseline = self.name if self.matched is None else self.matched.get(variant)
        return None if baseline == variant else baseline


USUAL = Baseline()


@dataclass(frozen=True)
class SweepGrid:
    """One sweep of a study: its name, its heading and the question it answers, and all its runs. `pairing`: whether its
    file requests comparison seed by seed; None if it does not say.
    """

    name: str
    title: str
    question: str
    expected: tuple[ExpectedRun, ...]
    baseline: Baseline = USUAL
    pairing: bool | None = None


@dataclass(frozen=True)
class AxisPlace:
    """A variant's position on the sweep's axes. `group` is the variant's name without the axis values; a value is None
    on an axis that does not apply to it.
    """

    variant: str
    group: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Axes:
    """The axes of a sweep except seeds and models: their configuration keys, and each variant's position."""

    keys: tuple[str, ...] = ()
    places: tuple[AxisPlace, ...] = ()


NO_AXES = Axes()


# The tidy frames of a sweep, as `reader` returns them.

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
    """The runs of a sweep and all their logged metrics (or the requested ones).

    `runs`: columns RUN_COLUMNS; `seed` and `t_stop` are nullable integers, `start` and `end` are UTC times;
    `warm_start` is the digest of the weights from which training began, empty if the run has none. `metrics`: columns
    METRIC_COLUMNS of the types named there, sorted, one value per (run, metric, step). `params`: MLflow run -> its
    flattened configuration as logged (`rule.delta` -> "0.15"); empty if a run logged none. `versions`: MLflow run -> a
    digest of its configuration and result. `outcomes`: MLflow run -> each problem's outcome at each validation, of the
    runs that kept them. `drawn_starts`: MLflow runs whose seed draws their start, alike for all rules and models
    (`CoreRecord.seed_fixes_start`). `experiment_id`: the experiment's id in the store; empty without runs. `code`:
    MLflow run -> the version that made it, if recorded. `notes`: MLflow run -> its description and tags of the users'
    own, of the runs that have any. `begun`: run id -> when the first attempt at it began (milliseconds since the
    epoch).
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
    begun: Mapping[str, int] = field(default_factory=dict)


# Many metric points in a compact tidy frame: 15 bytes per point for 1,000 runs.

METRIC_COLUMNS = ("mlflow_id", "metric", "step", "value")


def points_frame(histories: Iterable[tuple[str, History]]) -> pd.DataFrame:
    """The histories of runs, given as (MLflow id, history), as a tidy frame with a row per (run, metric, step).

    Columns METRIC_COLUMNS: `mlflow_id` and `metric` categorical, `step` int32 (int64 if a step does not fit), `value`
    float64; sorted by the order of the runs, metric and step.
    """
    runs, segments = [], []  # segments: run, metric, points
    step, value = np.empty(0, np.int32), np.empty(0)
    for mlflow_id, history in histories:
        runs.append(mlflow_id)
        if not history:
            continue
        segments += [(mlflow_id, name, len(column)) for name, (column, *_) in history.items()]
        steps, values, _ = map(np.concatenate, zip(*history.values(), strict=True))
        if np.any(steps.astype(np.int32) != steps):
            step = step.astype(np.int64)
        begin = len(value)
        for column, new in ((step, steps), (value, values)):
            column.resize(begin + len(new), refcheck=False)  # in place: no point is held twice
            column[begin:] = new
    ids, metrics, lengths = zip(*segments, strict=True) if segments else ((), (), ())
    return pd.DataFrame(
        {
            "mlflow_id": _category(ids, runs, lengths),
            "metric": _category(metrics, sorted({*metrics}), lengths),
            "step": step,
            "value": value,
        },
        copy=False,
    )


def _category(names: Sequence[str], categories: Sequence[str], lengths: Sequence[int]) -> pd.Categorical:
    segments = pd.Categorical(names, categories=pd.Index(categories, dtype=object))
    return pd.Categorical.from_codes(
        np.repeat(segments.codes, np.array(lengths, np.int64)), dtype=segments.dtype
    )


def remedy_of(experiment: str) -> str:
    """The command that brings missing runs into an experiment."""
    is_paper = experiment == schema.experiment_name(schema.PAPER)
    return "`cppo reference import`" if is_paper else "`cppo launch` with the same sweep and overrides"


def integer(text: str) -> int | None:
    """A whole number, as anybody may have written it into a store; None for other text, or more than 18 digits."""
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def is_result(metric: str) -> bool:
    """Whether this metric is part of a run's result: all are, except speed and system metrics."""
    return not metric.startswith(("perf/", "system/"))
