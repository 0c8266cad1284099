"""Scores: which checkpoint of a run is scored, how table cells are computed, the runs of a sweep's declared grid with
every gap named, and how robust a selected score is.

The selection rule (the paper's): inside the matched window [0, T_stop] of its model, a run is scored at the step with
the highest unweighted mean over the benchmarks, and the benchmark columns are the components at that same step.
The step is selected for each run separately; seeds are averaged afterwards.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun, SweepData, remedy_of
from cppo_lab.errors import UserError, counted, has, spanned

# PAPER: ties. TRM-Avg on Qwen3-8B-Base has the same mean at steps 150, 160 and 310, and the printed
# components are those of step 150: the earliest step wins. Curves are given to 1e-6, hence the width of a
# tie.
TIE = 1e-5
# PAPER: `collapse` is a run that diverged (Table 4), without a threshold. Our threshold is for the paper's curves only:
# the last mean score inside the window is below this share of the run's best. This holds for CISPO on
# Qwen3-30B-A3B-Base (ends at 0) and no other run (the next lowest, GRPO on Qwen3-1.7B-Base, ends at 0.42 of its best).
# Our runs stop by the rule of schema.py, whose share of 0.4 has to persist over several validations.
COLLAPSE_SHARE = 0.1


class SelectionState(StrEnum):
    """The state of a run. Only SCORED and COLLAPSE are results; every other state is a gap, which reports must name."""

    SCORED = "scored"
    COLLAPSE = "collapse"
    MISSING = "missing"
    RUNNING = "running"
    FAILED = "failed"
    PARTIAL = "partial"
    STOPPED = "stopped"
    NO_VALIDATION = "no validation in the window"
    NO_COMPONENTS = "a benchmark is missing at every step"


GAPS = frozenset(SelectionState) - {SelectionState.SCORED, SelectionState.COLLAPSE}


@dataclass(frozen=True)
class Choice:
    """The result of the selection rule on a validation curve. Scores are fractions in [0, 1].

    `ties`: every step whose mean is within TIE of the best, `step` being the first; empty when nothing was
    selectable.
    """

    state: SelectionState
    step: int | None = None
    score: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    ties: tuple[int, ...] = ()
    last_step: int | None = None
    last_score: float | None = None
    base: float | None = None

    @property
    def gain(self) -> float | None:
        """Score minus the score at step 0, where step 0 was evaluated."""
        return None if self.score is None or self.base is None else self.score - self.base


@dataclass(frozen=True)
class RunScore:
    """One expected run, the stored run that was found for it (`mlflow_id` "": none) and its choice.

    `state` is the run's state in the table: that of the choice if the run is finished. The choice of an unfinished run
    is based on what it has logged so far.
    """

    run_id: str | None
    mlflow_id: str
    model: str
    variant: str
    seed: int | None
    state: SelectionState
    choice: Choice
    rule: str = ""
    core: str = ""
    status: str = ""
    reason: str = ""
    t_stop: int | None = None

    @property
    def is_result(self) -> bool:
        """Whether it is finished; else it is a gap."""
        return self.state not in GAPS

    def describe(self, name: Callable[[str], str] = str) -> str:
        """`cppo on chain-8, seed 1`; `name` gives the variant's name."""
        return ExpectedRun(self.run_id, self.model, name(self.variant), self.seed).describe()


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation over `n` runs; the latter is None for a single run."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Stat | None":
        """Of the values that are there; None if none is."""
        numbers = [value for value in values if value is not None]
        n = len(numbers)
        if not n:
            return None
        mean = fmean(numbers)
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        return cls(mean, math.sqrt(squares / (n - 1)) if n > 1 else None, n)


@dataclass(frozen=True)
class CellScore:
    """One (model, variant) over its seeds.

    `provisional`: a run is missing or unfinished, so the numbers will change. `collapsed`: how many of the `finished`
    runs collapsed. One is enough to make the cell a collapse, because the mean of the others would flatter an unstable
    method.
    """

    model: str
    variant: str
    state: SelectionState
    provisional: bool
    expected: int
    finished: int
    collapsed: int
    t_stop: int | None
    steps: tuple[int, ...]
    score: Stat | None
    components: dict[str, Stat]
    base: Stat | None
    gain: Stat | None

    @property
    def ranked(self) -> Stat | None:
        """The score if it is compared with others: not of a collapse, nor provisional."""
        return None if self.provisional or self.state is not SelectionState.SCORED else self.score


def choose(curve: pd.DataFrame, t_stop: int | None, benchmarks: Sequence[str]) -> Choice:
    """Apply the rule to a run's curves, indexed by step with the columns `benchmarks` and MEAN (`ValidationCurves`).

    `t_stop` None leaves the window open. Steps whose MEAN is NaN are not candidates: a benchmark is missing there.
    """
    window = curve.loc[:t_stop]
    steps, scores = window.index.to_numpy(), window[schema.MEAN].to_numpy(dtype=np.float64)
    if not len(steps):
        return Choice(SelectionState.NO_VALIDATION)
    places = np.flatnonzero(~np.isnan(scores))
    if not len(places):
        return Choice(SelectionState.NO_COMPONENTS)
    means = scores[places]
    best, last = float(means.max()), float(means[-1])
    tied = places[means >= best - TIE]
    first, start = tied[0], places[steps[places] == 0]
    at_best = {name: float(window[name].iloc[first]) for name in benchmarks}
    return Choice(
        state=SelectionState.COLLAPSE if last < COLLAPSE_SHARE * best else SelectionState.SCORED,
        step=int(steps[first]),
        score=float(scores[first]),
        components={name: value for name, value in at_best.items() if not math.isnan(value)},
        ties=tuple(int(step) for step in steps[tied]),
        last_step=int(steps[places[-1]]),
        last_score=last,
        base=float(scores[start[0]]) if len(start) else None,
    )


def state_in_store(status: str, core: str, choice: Choice) -> SelectionState:
    """The state of a run with this status tag: its choice's if it is done, else what the tag says.

    A report reads nothing but the store, so this is the run's state there. `runs.state.state_of` also looks at
    locks, queues and the run's folder; it may know of an end that is not uploaded yet.

    Our runs detect a collapse themselves (`schema.collapse_reason`) and record it, whatever the last score was. Only
    the paper's curves are judged by their shape.
    """
    if status == schema.COLLAPSED:
        return SelectionState.COLLAPSE
    if status != schema.DONE:
        return SelectionState(status)
    by_shape = choice.state is SelectionState.COLLAPSE and core != schema.PAPER
    return SelectionState.SCORED if by_shape else choice.state


def score_cell(runs: Sequence[RunScore], benchmarks: Sequence[str]) -> CellScore:
    """The score of a (model, variant) over its runs. Only finished runs count; without any, the others count with what
    they have so far.
    """
    finished = [run for run in runs if run.is_result]
    collapsed = sum(run.state is SelectionState.COLLAPSE for run in runs)
    counted = finished or [run for run in runs if run.choice.score is not None]
    state = SelectionState.SCORED if counted else runs[0].state
    choices = [run.choice for run in counted]
    stats = {name: Stat.of(choice.components.get(name) for choice in choices) for name in benchmarks}
    return CellScore(
        model=runs[0].model,
        variant=runs[0].variant,
        state=SelectionState.COLLAPSE if collapsed else state,
        provisional=len(finished) < len(runs),
        expected=len(runs),
        finished=len(finished),
        collapsed=collapsed,
        t_stop=max((run.t_stop for run in runs if run.t_stop is not None), default=None),
        steps=tuple(choice.step for choice in choices if choice.step is not None),
        score=Stat.of(choice.score for choice in choices),
        components={name: stat for name, stat in stats.items() if stat is not None},
        base=Stat.of(choice.base for choice in choices),
        gain=Stat.of(choice.gain for choice in choices),
    )


# Validation curves from the tidy metrics: a row per (run, step), a column per benchmark and a column for their mean.


@dataclass(frozen=True, eq=False)
class ValidationCurves:
    """Avg@k of every run as fractions in [0, 1]; k of each run in `samples_of`.

    `frame`: indexed by (mlflow_id, step), sorted; a column per benchmark and the column MEAN, the unweighted mean of
    the benchmarks of the run's model, i.e. of those that any run on that model has logged (models on different tasks
    have different benchmarks). A run that logged only the mean and no benchmark (the paper's ablation curves) keeps the
    mean it logged. MEAN is NaN at a step where a benchmark is missing.
    """

    frame: pd.DataFrame
    benchmarks: tuple[str, ...]
    samples_of: Mapping[str, int]
    of_model: Mapping[str, tuple[str, ...]]  # model -> its benchmarks, sorted by name
    # Split once: looking a run up in the whole frame takes longer the more runs there are.
    of_run: Mapping[str, pd.DataFrame]

    def of(self, mlflow_id: str) -> pd.DataFrame:
        """One run's curves, indexed by step; empty if it has no validation."""
        curve = self.of_run.get(mlflow_id)
        return self.frame.iloc[:0].droplevel("mlflow_id") if curve is None else curve


def validation_curves(metrics: pd.DataFrame, runs: pd.DataFrame) -> ValidationCurves:
    """The validation curves of these `runs`, from the `metrics`: frames of `inputs.SweepData`.

    If benchmarks of a run were evaluated with several sample counts (Avg@1 and Avg@16), its largest is used.
    """
    names = metrics["metric"].unique()
    validations = {name: parsed for name in names if (parsed := schema.parse_validation_metric(name))}
    of_metric = pd.DataFrame([*validations.values()], [*validations], ["benchmark", "samples"])
    rows = metrics[metrics["metric"].isin(validations) & metrics["mlflow_id"].isin(runs["mlflow_id"])]
    rows = rows.astype({"mlflow_id": object, "metric": object})
    rows = rows.join(of_metric, on="metric")
    samples = rows.groupby("mlflow_id")["samples"]
    samples_of = samples.max().to_dict()
    rows = rows[rows["samples"] == samples.transform("max")]
    rows["value"] = rows["value"].where(rows["value"].abs() < schema.LARGEST)
    wide = rows.pivot(index=["mlflow_id", "step"], columns="benchmark", values="value").sort_index()
    wide.columns.name = None
    benchmarks = tuple(sorted(name for name in wide.columns if name != schema.MEAN))
    if schema.MEAN not in wide:
        wide[schema.MEAN] = math.nan
    model_of = runs.set_index("mlflow_id")["model"]
    logged = rows.assign(model=rows["mlflow_id"].map(model_of)).groupby("model")["benchmark"]
    of_model = {model: tuple(sorted(set(names) - {schema.MEAN})) for model, names in logged}
    models = wide.index.get_level_values("mlflow_id").map(model_of)
    for model, names in of_model.items():
        if names:
            inside = models == model
            parts = wide.loc[inside, list(names)]
            only_mean = parts.isna().groupby(level="mlflow_id").transform("all").all(axis=1)
            mean = parts.mean(axis=1, skipna=False)
            wide.loc[inside, schema.MEAN] = mean.mask(only_mean, wide.loc[inside, schema.MEAN])
    wide = wide[[*benchmarks, schema.MEAN]]
    parts = wide.groupby(level="mlflow_id", sort=False, observed=True)
    of_run = {str(mlflow_id): part.droplevel("mlflow_id") for mlflow_id, part in parts}
    return ValidationCurves(wide, benchmarks, samples_of, of_model, of_run)


_MOST_LISTED = 20  # gaps that are named; the others are counted


class NothingScored(UserError):
    """No run has been validated yet, so there is nothing to report."""


@dataclass(frozen=True, eq=False)
class Scoreboard:
    """A scored sweep. `models` and `variants` are in declaration order; `cells` has every declared pair, `of_cell` its
    runs.

    `unused` are runs of the sweep that the declaration does not name (older configurations); they are listed but never
    counted. `pairing`: whether the sweep file requests comparison seed by seed; None if it does not say.
    """

    data: SweepData
    curves: ValidationCurves
    models: tuple[str, ...]
    variants: tuple[str, ...]
    runs: tuple[RunScore, ...]
    cells: dict[tuple[str, str], CellScore]
    of_cell: Mapping[tuple[str, str], tuple[RunScore, ...]]
    unused: pd.DataFrame
    pairing: bool | None = None

    @property
    def core(self) -> str:
        """The core behind the runs (an experiment holds those of one core); several are named together."""
        return "+".join(sorted({run.core for run in self.runs if run.core})) or schema.PAPER

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """The benchmarks of all runs, sorted by name."""
        return self.curves.benchmarks

    @property
    def means_over_benchmarks(self) -> bool:
        """Whether a score of some model is a mean over benchmarks."""
        return any(len(self.benchmarks_of(model)) > 1 for model in self.models)

    def params_of(self, run: RunScore) -> Mapping[str, str]:
        """The configuration that a run logged; empty if it logged none."""
        return self.data.params.get(run.mlflow_id, {})

    def benchmarks_of(self, model: str) -> tuple[str, ...]:
        """The benchmarks of the runs on `model`, sorted by name."""
        return self.curves.of_model.get(model, ())

    def runs_of(self, model: str, variant: str) -> tuple[RunScore, ...]:
        """The runs of a cell in declaration order; empty if the cell is not declared."""
        return self.of_cell.get((model, variant), ())

    def window(self, run: RunScore) -> pd.DataFrame:
        """The validations of a run up to T_stop; all if that is not known."""
        return self.curves.of(run.mlflow_id).loc[: run.t_stop]

    def logged(self, model: str, variant: str, metric: str) -> pd.DataFrame:
        """The points of a metric that the runs of a cell have, as in `data.metrics`."""
        return self.points(metric, *self.runs_of(model, variant))

    def points(self, metric: str, *runs: RunScore) -> pd.DataFrame:
        """The points of a metric that these runs have, as in `data.metrics`."""
        rows = [self._rows.get((metric, run.mlflow_id), ()) for run in runs]
        places = np.sort(np.concatenate([np.empty(0, np.int64), *rows]))
        return self.data.metrics.take(places.astype(np.int64))

    @cached_property
    def _rows(self) -> Mapping[Any, NDArray[np.int64]]:
        """(metric, run) -> its rows in `data.metrics`, grouped once: filtering takes longer the more points it has."""
        rows: Mapping[Any, NDArray[np.int64]] = self.data.metrics.groupby(
            ["metric", "mlflow_id"], observed=True
        ).indices
        return rows

    @cached_property
    def results(self) -> frozenset[tuple[str, str, int]]:
        """(model, variant, seed) of the runs that have a result."""
        return frozenset(
            (run.model, run.variant, run.seed) for run in self.runs if run.seed is not None and run.is_result
        )

    @property
    def gaps(self) -> tuple[RunScore, ...]:
        """The runs that are not finished results."""
        return tuple(run for run in self.runs if not run.is_result)


def score_sweep(
    data: SweepData, expected: Sequence[ExpectedRun], partial: bool = False, pairing: bool | None = None
) -> Scoreboard:
    """Score every expected run and cell. `pairing` is passed on to the scoreboard.

    Raises UserError if the grid has gaps (unless `partial`), listing them; if nothing can be scored; or if `expected`
    is empty or has two configurations of the same name.
    """
    if not expected:
        raise UserError(f"sweep {data.sweep!r} declares no runs: add variants or models to its file")
    named: dict[tuple[str, str, int | None], ExpectedRun] = {}
    for entry in expected:
        twin = named.setdefault((entry.model, entry.variant, entry.seed), entry)
        if twin.run_id != entry.run_id:  # they would be averaged as if they were seeds
            raise UserError(
                f"sweep {data.sweep!r} declares two configurations as {entry.describe()} ({twin.run_id} and "
                f"{entry.run_id}): give each setting a different variant name in its file"
            )
    # The rows of the runs by the ways in which a declaration may identify them (see below). If several runs match by
    # name alone, finished runs are preferred, then newer ones.
    stored: dict[tuple[object, ...], Any] = {}
    done = data.runs.assign(done=data.runs["status"].isin(schema.FINISHED))
    for row in done.sort_values(["done", "start", "mlflow_id"]).itertuples():
        name = row.model, row.variant
        stored[(row.run_id,)] = stored[*name, None] = stored[*name, _whole(row.seed)] = row
    row_of = {
        entry: stored.get(
            (entry.model, entry.variant, entry.seed) if entry.run_id is None else (entry.run_id,)
        )
        for entry in expected
    }
    used = {row.mlflow_id for row in row_of.values() if row is not None}
    # Those of older configurations may have had other benchmarks.
    curves = validation_curves(data.metrics, data.runs[data.runs["mlflow_id"].isin(used)])
    scores = []
    for entry, row in row_of.items():
        if row is None:
            state = SelectionState.MISSING
            about = entry.run_id, "", entry.model, entry.variant, entry.seed
            scores.append(RunScore(*about, state, Choice(state)))
            continue
        t_stop = _whole(row.t_stop)
        choice = choose(curves.of(row.mlflow_id), t_stop, curves.benchmarks)
        score = RunScore(
            run_id=row.run_id,
            mlflow_id=row.mlflow_id,
            model=entry.model,
            variant=entry.variant,
            seed=_whole(row.seed),
            state=state_in_store(row.status, row.core, choice),
            choice=choice,
            rule=row.rule,
            core=row.core,
            status=row.status,
            reason=row.reason,
            t_stop=t_stop,
        )
        scores.append(score)
    runs = tuple(scores)
    gaps = [run for run in runs if not run.is_result]
    if gaps and not partial:
        raise UserError(
            f"sweep {data.sweep!r} is incomplete, {len(gaps)} of {counted(len(runs), 'run')} {has(len(gaps))} no "
            f"result yet: {'; '.join(describe_gaps(gaps))}. Run {remedy_of(data.experiment)}, or pass --partial to "
            "report the others"
        )
    if all(run.choice.score is None for run in runs):
        raise NothingScored(
            f"sweep {data.sweep!r} has no validation score yet: none of its {counted(len(runs), 'run')} evaluated "
            f"inside its window; wait for the first evaluation, or see `cppo status`"
        )
    of_cell = by_cell(runs)
    cells = {pair: score_cell(of_pair, curves.benchmarks) for pair, of_pair in of_cell.items()}
    return Scoreboard(
        data=data,
        curves=curves,
        models=tuple(dict.fromkeys(model for model, _ in cells)),
        variants=tuple(dict.fromkeys(variant for _, variant in cells)),
        runs=runs,
        cells=cells,
        of_cell=of_cell,
        unused=data.runs[~data.runs["mlflow_id"].isin(used)],
        pairing=pairing,
    )


def by_cell(runs: Iterable[Any]) -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """(model, variant) -> its runs; cells in the order of their first run."""
    cells: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for run in runs:
        cells[run.model, run.variant].append(run)
    return {pair: tuple(of_cell) for pair, of_cell in cells.items()}


def _whole(value: Any) -> int | None:
    """Of a nullable integer."""
    return None if pd.isna(value) else int(value)


def describe_gap(run: RunScore, *others: RunScore) -> str:
    """`cppo on chain-8, seed 1 (failed: out of memory)`; with `others` that differ in their seeds, `seeds 1 to 4`."""
    named = run.describe()
    if others:
        seeds = spanned(gap.seed or 0 for gap in (run, *others))
        named = f"{run.variant} on {run.model}, seeds {seeds}"
    return f"{named} ({run.state.value}{': ' + run.reason if run.reason else ''})"


def describe_gaps(gaps: Sequence[RunScore]) -> list[str]:
    """Every gap, those that differ in their seeds alone together; of a long list the first ones and the number of the
    others.
    """
    alike: dict[tuple[str, str, str, str], list[RunScore]] = {}
    for run in gaps:
        alike.setdefault((run.variant, run.model, run.state.value, run.reason), []).append(run)
    groups = list(alike.values())
    unnamed = sum(map(len, groups[_MOST_LISTED:]))
    more = [f"and {counted(unnamed, 'more run')}"] if unnamed else []
    return [*(describe_gap(*runs) for runs in groups[:_MOST_LISTED]), *more]


# Robustness of a selected score: the late part of the window, and the step-to-step noise of a run.
#
# The score of the best step favours a noisy run. The mean over the last 30 % of the matched window has no selection
# bias, so it is reported next to the selected score.


def late_curve(curve: pd.DataFrame, t_stop: int | None) -> pd.Series:
    """The mean scores of a run in the last LATE_SHARE of [0, T_stop]; or of its own length if T_stop is unknown."""
    if t_stop is None:
        t_stop = int(curve.index[-1]) if len(curve) else 0
    means = curve.loc[:t_stop, schema.MEAN].dropna()
    return means[means.index > schema.late_after(t_stop)]


def step_noise(late: pd.Series) -> float | None:
    """Standard deviation of an evaluation around the run's trend, in a `late_curve`; None for fewer than 3 points.

    Estimated from differences of neighbouring evaluations (divided by sqrt 2), which a slow trend hardly affects.
    """
    steps = np.diff(late.to_numpy(dtype=np.float64))
    if len(steps) < 2:
        return None
    return math.sqrt(math.fsum(float(value) ** 2 for value in steps) / len(steps) / 2)
