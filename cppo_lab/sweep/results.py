"""Results as tidy pandas frames: `cppo_lab.load`.

- It reads a tracking store, or the paper's curves (those without MLflow), and writes nothing but that
  somebody has looked at a hypothesis before its tests have ended.
- Frames have a row for each run, for each point, for each problem, with documented columns.
- Runs that a sweep declares and the store lacks are rows too, with their state: no gap is hidden.
- Histories and outcomes are read when they are first asked for.

docs/notebook.md is for users.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

from cppo_lab.plugins import remedy

try:
    import numpy as np
    import pandas as pd
except ModuleNotFoundError as error:
    error.msg += f" (cppo_lab.load needs it): {remedy(error.name or '')}"
    raise

from cppo_lab import schema
from cppo_lab.analysis.inputs import points_frame
from cppo_lab.analysis.scoring import (
    SelectionState,
    ValidationCurves,
    choose,
    late_curve,
    state_in_store,
    validation_curves,
)
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.errors import UserError, unknown
from cppo_lab.files import redacted
from cppo_lab.sweep.file import Search, load_sweep
from cppo_lab.sweep.overrides import quote
from cppo_lab.sweep.plan import Plan, make_plan
from cppo_lab.tracking import address
from cppo_lab.tracking.history import StoredRun, from_rows
from cppo_lab.tracking.reference import ReferenceRun, reference_runs

_FIXED = frozenset({"model", "rule", "seed", "variant"})  # keys that have a column in every frame
_CHOICES = frozenset({"core", "model", "variant"})  # names, which a command line has without quotes
_AXES = slice(6, -2)  # their columns in a `Row`
# Of a declared run in a sweep: sweep, run_id, variant, rule, model, core, the axes of all sweeps, seed and t_stop.
Row: TypeAlias = dict[str, Any]


def override_text(key: str, value: Any) -> str:
    """A keyword argument as an override of the command line. A sequence is several values: `seed=[0, 1]` -> `seed=0,1`.

    Raises UserError for a text with a reference (`${...}`), or a value that is no plain one.
    """
    plain = _plain(value)
    values = list(map(_plain, plain)) if np.iterable(plain) and not isinstance(plain, str) else [plain]
    if wrong := [part for part in values if not isinstance(part, str | int | float | None)]:
        raise UserError(f"{key}={wrong[0]!r}: give text, numbers, True, False or None, or a list of them")
    write = str if key in _CHOICES else quote
    return f"{key}={','.join(map(write, values))}"


def _plain(value: Any) -> Any:
    """A value of numpy or pandas as a plain one, a path as text."""
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def declared_runs(plan: Plan) -> list[Row]:
    """The runs, sweep by sweep as declared; a run shared by several sweeps is listed for each."""
    axes = {name: [key for key in part.keys if key not in _FIXED] for name, part in plan.parts.items()}
    everywhere: Row = dict.fromkeys(key for keys in axes.values() for key in keys)
    return [
        {
            "sweep": sweep.name,
            "run_id": run.run_id,
            "variant": run.variants[sweep.name],
            "rule": run.spec.rule.name,
            "model": run.spec.model.name,
            "core": plan.core,
            **everywhere,
            **_values(run.spec.model_dump(), axes[sweep.name]),
            "seed": run.spec.seed,
            "t_stop": run.spec.training.t_stop,
        }
        for sweep in plan.sweeps
        for run in plan.runs
        if sweep.name in run.variants
    ]


def _values(spec: Mapping[str, Any], keys: Iterable[str]) -> Row:
    """The values of dotted keys. A whole section (an axis may be a group) becomes its name, or else its values as
    text.
    """
    by_key = {}
    for key in keys:
        value: Any = spec
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping):
            text = " ".join(f"{name}={inner}" for name, inner in value.items())
            value = value.get("name", text)
        by_key[key] = value
    return by_key


HISTORY_COLUMNS = ("run_id", "metric", "step", "value")
OUTCOME_COLUMNS = ("run_id", "step", "benchmark", "problem", "samples", "right", "cut_off", "length")
_SCORES = ("best", "best_step", "last", "last_step", "final_mean", "base")
_COLUMNS = ("state", "reason", *_SCORES, "start", "end", "mlflow_id", "warm_start")  # behind those of `Row`
_NULLABLE = dict.fromkeys(("seed", "t_stop", "best_step", "last_step"), "Int64")

Runs: TypeAlias = str | Iterable[str] | pd.DataFrame | pd.Series


@dataclass(frozen=True, eq=False)
class Results:
    """The declared runs of a sweep or study, with their data in the store.

    `name` is the sweep's name; `place` describes the store.
    """

    name: str
    place: str
    _declared: Sequence[Row]
    _stored: Mapping[str, StoredRun]  # by run id
    _points: Callable[[Sequence[StoredRun], Callable[[str], bool]], pd.DataFrame]
    _outcomes: Callable[[Sequence[StoredRun]], Mapping[str, Outcomes]]

    def __repr__(self) -> str:
        states = self.runs.drop_duplicates("run_id")["state"].value_counts()
        counted = ", ".join(f"{states[state]} {state}" for state in schema.STATES if state in states)
        return f"<Results of {self.name} in {self.place}: {counted}>"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each declared run, including untrained ones (state `missing`).

        A run shared by several sweeps of a study has a row for each sweep: `runs.drop_duplicates("run_id")`.

        Columns:
            sweep, run_id, variant, rule, model, core: text. `run_id` joins with `history` and `outcomes`.
            a column for each axis of the sweep, named by its key (`rule.w_min`): the run's value; missing if it has
            none. seed: Int64; the paper gives none. t_stop: Int64, the training step that ends the window [0, t_stop]
            in which a run is scored. state: done, collapsed, running, failed, partial, stopped or missing, by the
            store (`cppo status` also checks the queue and the locks); reason: why it failed, collapsed or was
            interrupted. best, best_step: the selected validation score and its training step: the highest mean over the
            benchmarks inside the window, the first on ties, as in the reports (`analysis.scoring`). last, last_step:
            the last score inside the window. final_mean: mean score over the last 30 % of the window, which has no
            selection bias. base: score before training (step 0). start, end: UTC times of the run in the store;
            mlflow_id: its id there. warm_start: digest of the weights from which training began; empty without it.

        Scores are fractions in [0, 1], NaN where there is none.
        """
        by_sweep: dict[str, list[Row]] = {}
        for declared in self._declared:
            by_sweep.setdefault(declared["sweep"], []).append(declared)
        points = self._points(
            list(self._stored.values()), lambda name: schema.parse_validation_metric(name) is not None
        )
        rows = []
        # Sweep by sweep, as in the reports, since a model's benchmarks are determined by its runs in the sweep.
        for runs in by_sweep.values():
            stored = [self._stored.get(row["run_id"]) for row in runs]
            models = {run.mlflow_id: row["model"] for row, run in zip(runs, stored, strict=True) if run}
            curves = validation_curves(points, pd.DataFrame(models.items(), columns=["mlflow_id", "model"]))
            rows += [_row(row, run, curves) for row, run in zip(runs, stored, strict=True)]
        frame = pd.DataFrame(rows, columns=[*self._declared[0], *_COLUMNS])
        for key in [*self._declared[0]][_AXES]:
            given = frame[key].dropna()
            whole = all(isinstance(value, int) and not isinstance(value, bool) for value in given)
            frame[key] = frame[key].astype("Int64") if whole and len(given) else frame[key].infer_objects()
        return frame.astype(_NULLABLE)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics that any run has logged, sorted. Units: `cppo_lab.schema`."""
        return tuple(sorted({name for run in self._stored.values() for name in run.latest}))

    def history(self, metrics: str | Iterable[str] | None = None, runs: Runs | None = None) -> pd.DataFrame:
        """The logged metrics in long format: a row for each (run, metric, step).

        Args:
            metrics: names or patterns such as "val/*" (`*` takes slashes too); None: all.
            runs: ids, a column of ids, or rows of `runs`; None: all.

        Returns:
            Columns run_id and metric (categorical), step (training steps; 0 is before training) and value (float64,
            in the metric's unit of `cppo_lab.schema`; accuracies and shares are fractions). Sorted by run, metric
            and step.

        Raises:
            UserError: a metric that no run has logged, an id that is not in `runs`; the store cannot be read.
        """
        stored = self._chosen(runs)
        frame = self._points(stored, self._wanted(metrics))
        of_run = {run.mlflow_id: run.run_id for run in stored}
        frame["mlflow_id"] = frame["mlflow_id"].cat.rename_categories(of_run)
        return frame.rename(columns={"mlflow_id": "run_id"})[list(HISTORY_COLUMNS)]

    def outcomes(self, runs: Runs | None = None) -> pd.DataFrame:
        """The outcomes of single problems in long format: a row for each (run, validated step, problem).

        Args:
            runs: ids, a column of ids, or rows of `runs`; None: all. Runs that recorded no outcomes have no rows.

        Returns:
            Columns run_id, benchmark and problem (categorical; a problem's id is the same in every run on the same
            data), step (training steps), samples (answers to the problem, k), right and cut_off (how many of them were
            right, or hit the length limit), length (mean, in tokens). The Avg@k of a benchmark is the mean of right /
            samples over its problems.

        Raises:
            UserError: source="paper"; an id that is not in `runs`; a file of outcomes is broken.
        """
        stored = self._chosen(runs)
        outcomes = self._outcomes(stored)
        parts = [
            _outcome_rows(run.run_id, outcomes[run.mlflow_id]) for run in stored if run.mlflow_id in outcomes
        ]
        if not parts:
            return pd.DataFrame({name: [] for name in OUTCOME_COLUMNS})
        frame = pd.concat(parts, ignore_index=True)
        return frame.astype(dict.fromkeys(("run_id", "benchmark", "problem"), "category"))

    def _chosen(self, runs: Runs | None) -> list[StoredRun]:
        """The stored runs with the requested ids; missing ones are left out."""
        if runs is None:
            return list(self._stored.values())
        if isinstance(runs, pd.DataFrame):
            runs = runs.get("run_id", runs)  # else its columns are no ids
        ids = dict.fromkeys([runs] if isinstance(runs, str) else map(str, runs))
        declared = {row["run_id"] for row in self._declared}
        for run_id in ids:
            if run_id not in declared:
                raise UserError(
                    f"run {run_id!r} is not one of {self.name}: take ids from the column `run_id` of runs"
                )
        return [self._stored[run_id] for run_id in ids if run_id in self._stored]

    def _wanted(self, metrics: str | Iterable[str] | None) -> Callable[[str], bool]:
        if metrics is None:
            return lambda name: True
        patterns = list(metrics) if np.iterable(metrics) and not isinstance(metrics, str) else [metrics]
        chosen = set[str]()
        for pattern in patterns:
            matching = {name for name in self.metrics if name == pattern or fnmatchcase(name, str(pattern))}
            if not matching:
                raise unknown("metric", pattern, self.metrics)
            chosen |= matching
        return chosen.__contains__


def _row(declared: Row, stored: StoredRun | None, curves: ValidationCurves) -> Row:
    if stored is None:
        return declared | {"state": schema.MISSING, "reason": "", "mlflow_id": "", "warm_start": ""}
    curve = curves.of(stored.mlflow_id)
    choice = choose(curve, declared["t_stop"], curves.benchmarks)
    late = late_curve(curve, declared["t_stop"])
    # The paper's runs have no status; their collapses are detected from the curve.
    collapsed = state_in_store(stored.status, declared["core"], choice) is SelectionState.COLLAPSE
    final_mean = float(late.mean()) if len(late) else None
    scores = (choice.score, choice.step, choice.last_score, choice.last_step, final_mean, choice.base)
    return declared | {
        "state": schema.COLLAPSED if collapsed else stored.status,
        "reason": stored.tags.get(schema.TAG_REASON, ""),
        **dict(zip(_SCORES, scores, strict=True)),
        "start": pd.to_datetime(stored.start_ms, unit="ms", utc=True, errors="coerce"),
        "end": pd.to_datetime(stored.end_ms, unit="ms", utc=True, errors="coerce"),
        "mlflow_id": stored.mlflow_id,
        "warm_start": stored.tags.get(schema.TAG_WARM_START, ""),
    }


def _outcome_rows(run_id: str, outcomes: Outcomes) -> pd.DataFrame:
    validations, problems = outcomes.right.shape
    benchmarks = np.array(outcomes.benchmarks, dtype=object)[outcomes.benchmark_of]
    return pd.DataFrame(
        {
            "run_id": run_id,
            "step": np.repeat(outcomes.steps, problems),
            "benchmark": np.tile(benchmarks, validations),
            "problem": np.tile(np.array(outcomes.problems, dtype=object), validations),
            "samples": outcomes.samples,
            "right": outcomes.right.reshape(-1).astype(np.int64),
            "cut_off": outcomes.cut_off.reshape(-1).astype(np.int64),
            "length": outcomes.length.reshape(-1).astype(np.float64),
        }
    )


# Where the runs come from.

WHOLE = "study"  # all sweeps with curves in the paper


def paper_runs(name: str) -> list[Row]:
    """The runs of a sweep (`study`: of all sweeps) for which the paper has curves, in its order.

    Raises UserError for a sweep without curves in the paper.
    """
    runs = reference_runs()
    sweeps = dict.fromkeys(sweep for run in runs for sweep in run.sweeps)
    if name != WHOLE and name not in sweeps:
        raise unknown("sweep of the paper's curves", name, [*sweeps, WHOLE])
    return [
        {
            "sweep": sweep,
            "run_id": run.run_id,
            "variant": run.sweeps[sweep],
            "rule": run.rule,
            "model": run.model,
            "core": schema.PAPER,
            "seed": None,
            "t_stop": run.t_stop,
        }
        for sweep in sweeps
        if name in (WHOLE, sweep)
        for run in runs
        if sweep in run.sweeps
    ]


def _paper_run(run: ReferenceRun) -> StoredRun:
    """A run's id also serves as its MLflow id."""
    tags = run.tags() | {schema.TAG_STATUS: schema.DONE}
    latest = {name: (max(curve), 0, curve[max(curve)]) for name, curve in run.points.items()}
    return StoredRun(run.run_id, "", tags, name=f"{run.variant} on {run.model} (paper)", latest=latest)


def _paper_points(runs: Sequence[StoredRun], wanted: Callable[[str], bool]) -> pd.DataFrame:
    curves = {run.run_id: run.points for run in reference_runs()}
    return points_frame(
        (
            run.mlflow_id,
            from_rows(
                (step, 0, {name: value})
                for name, curve in curves[run.mlflow_id].items()
                if wanted(name)
                for step, value in curve.items()
            ),
        )
        for run in runs
    )


def _paper_outcomes(runs: Sequence[StoredRun]) -> Mapping[str, Outcomes]:
    raise UserError(
        "source='paper': the paper has no outcomes of single problems; load your own runs: source='runs'"
    )


RUNS, PAPER = "runs", "paper"


def load(
    sweep: str | Path,
    *overrides: str,
    uri: str | Path | None = None,
    source: str = RUNS,
    **values: Any,
) -> Results:
    """The results of a sweep or study as tidy pandas frames.

    Args:
        sweep: name of a shipped sweep or study, or path to a sweep file.
        overrides: as on the command line: "core=verl", "rule.w_min=0.6,0.8". They choose the runs, as in `cppo launch`.
        uri: the tracking store, as a URI or as the path of a SQLite file. Default: MLFLOW_TRACKING_URI, else
            `tracking.uri` of the configuration, else sqlite:///mlflow.db in the working folder.
        source: "runs" for your own runs, "paper" for the paper's curves, which come with this package (sweep: "main",
            an ablation, or "study" for all; without overrides and uri).
        values: overrides as keyword arguments; a sequence is several values: seed=[0, 1], model="mini_base",
            **{"rule.w_min": 0.8}.

    Returns:
        The current state of the store. `runs` is read now, `history` and `outcomes` when they are called.

    Raises:
        UserError: an unknown sweep, override or source; a store that is missing, cannot be read or has none of the
        runs.
    """
    if wrong := [text for text in overrides if not isinstance(text, str)]:
        raise UserError(
            f"override {wrong[0]!r}: give texts, one after the other: load(sweep, 'seed=0', 'core=mini')"
        )
    texts = [*overrides, *(override_text(key, value) for key, value in values.items())]
    name = str(sweep)
    if source == PAPER:
        if texts:
            raise UserError(
                f"source='paper' with {' '.join(texts)!r}: its curves take no overrides; remove them"
            )
        if uri is not None:
            raise UserError(
                "source='paper' with uri=: its curves come with this package, from no store; remove it"
            )
        paper = {run.run_id: _paper_run(run) for run in reference_runs()}
        runs = paper_runs(name)
        return Results(
            name, "the paper's curves", runs, _in_order(runs, paper), _paper_points, _paper_outcomes
        )
    if source != RUNS:
        raise unknown("source", source, [RUNS, PAPER])
    from cppo_lab.analysis import reader  # MLflow, which the paper's curves do without
    from cppo_lab.sweep.claims import note_looks

    declared = load_sweep(name)
    if isinstance(declared, Search):
        raise UserError(
            f"{declared.name} is a search, whose trials are no grid: see `{shlex.join(['cppo', 'report', name])}`, "
            "or load a sweep"
        )
    plan = make_plan(declared, texts)
    store = _store(uri, plan.tracking.uri)
    experiment = schema.experiment_name(plan.core)
    runs = declared_runs(plan)
    stored = {run.run_id: run for run in reader.find_runs(store, experiment, {row["run_id"] for row in runs})}
    if not stored:
        command = shlex.join(["cppo", "launch", name, *texts])
        raise UserError(
            f"experiment {experiment!r} of {redacted(store)} has none of the {len(plan.runs)} runs of {plan.name}: "
            f"train them with `{command}`, or name the store that has them: uri= in Python, "
            f"{address.VARIABLE} for commands"
        )
    note_looks(plan, store)
    return Results(
        plan.name,
        f"experiment {experiment} of {redacted(store)}",
        runs,
        _in_order(runs, stored),
        partial(reader.read_points, store),
        partial(reader.read_outcomes, store),
    )


def _in_order(declared: Iterable[Row], stored: Mapping[str, StoredRun]) -> dict[str, StoredRun]:
    """The runs that are stored, in declaration order."""
    return {row["run_id"]: stored[row["run_id"]] for row in declared if row["run_id"] in stored}


def _store(uri: str | Path | None, configured: str | None) -> str:
    """The store to read: `uri`, or the store that commands would use."""
    if uri is None:
        return address.tracking_uri(configured)
    path = isinstance(uri, Path) or (":" not in str(uri) and str(uri).endswith(".db"))
    with address.in_the_environment(f"sqlite:///{uri}" if path else str(uri)):
        return address.tracking_uri()
