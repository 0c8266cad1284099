"""The selection rule: which checkpoint of a run is scored, and how table cells are computed; with the validation curves
that it is applied to.

Rule (the paper's): inside the matched window [0, T_stop] of its model, a run is scored at the step with the
highest unweighted mean over the benchmarks, and the benchmark columns are the components at that same step.
The step is selected for each run separately; seeds are averaged afterwards.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from statistics import fmean

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.inputs import ExpectedRun

# PAPER: ties. TRM-Avg on Qwen3-8B-Base has the same mean at steps 150, 160 and 310, and the printed
# components are those of step 150: the earliest step wins. Curves are given to 1e-6, hence the width of a
# tie.
TIE = 1e-5
# PAPER: `collapse` is a run that diverged (Table 4), without a threshold. We set one for the paper's curves only: the
# last mean score inside the window is below this share of the run's best. This holds for CISPO on Qwen3-30B-A3B-Base
# (ends at 0) and no other run (the next lowest, GRPO on Qwen3-1.7B-Base, ends at 0.42 of its best). Our runs stop
# by the rule of cores/__init__.py, whose share of 0.4 has to persist over several validations.
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
    """The result of the selection rule on one validation curve. Scores are fractions in [0, 1].

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
    """Apply the rule to one run's curves, indexed by step with the columns `benchmarks` and MEAN
    (`ValidationCurves`).

    `t_stop` None leaves the window open. Steps whose MEAN is NaN are not candidates: a benchmark is missing there.
    """
    steps, scores = curve.index.to_numpy(), curve[schema.MEAN].to_numpy(dtype=np.float64)
    inside = np.full(len(steps), True) if t_stop is None else steps <= t_stop
    if not inside.any():
        return Choice(SelectionState.NO_VALIDATION)
    places = np.flatnonzero(inside & ~np.isnan(scores))
    if not len(places):
        return Choice(SelectionState.NO_COMPONENTS)
    means = scores[places]
    best, last = float(means.max()), float(means[-1])
    tied = places[means >= best - TIE]
    first, start = tied[0], places[steps[places] == 0]
    at_best = {name: float(curve[name].to_numpy()[first]) for name in benchmarks}
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

    Our runs detect a collapse themselves (cores/__init__.py) and record it, whatever the last score was. Only the
    paper's curves are judged by their shape.
    """
    if status == schema.DONE and core != schema.PAPER and choice.state is SelectionState.COLLAPSE:
        return SelectionState.SCORED
    by_status = {
        schema.RUNNING: SelectionState.RUNNING,
        schema.FAILED: SelectionState.FAILED,
        schema.PARTIAL: SelectionState.PARTIAL,
        schema.STOPPED: SelectionState.STOPPED,
        schema.COLLAPSED: SelectionState.COLLAPSE,
    }
    return by_status.get(status, choice.state)


def score_cell(runs: Sequence[RunScore], benchmarks: Sequence[str]) -> CellScore:
    """The score of one (model, variant) over its runs. Only finished runs count; if there is none, the others count
    with what they have so far.
    """
    model, variant = runs[0].model, runs[0].variant
    gaps = [run for run in runs if not run.is_result]
    finished = [run for run in runs if run.is_result]
    collapsed = sum(run.state is SelectionState.COLLAPSE for run in runs)
    counted = finished or [run for run in gaps if run.choice.score is not None]
    if collapsed:
        state = SelectionState.COLLAPSE
    elif counted:
        state = SelectionState.SCORED
    else:
        state = gaps[0].state
    choices = [run.choice for run in counted]
    stats = {name: Stat.of(choice.components.get(name) for choice in choices) for name in benchmarks}
    return CellScore(
        model=model,
        variant=variant,
        state=state,
        provisional=bool(gaps),
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


# Validation curves from the tidy metrics: one row per (run, step), one column per benchmark and one for their mean.


@dataclass(frozen=True, eq=False)
class ValidationCurves:
    """Avg@k of every run as fractions in [0, 1]; k of each run in `samples_of`.

    `frame`: indexed by (mlflow_id, step), sorted; one column per benchmark and the column MEAN, the
    unweighted mean of the benchmarks of the run's model, i.e. of those that any run on that model has logged (models on
    different tasks have different benchmarks). A run that logged only the mean and no benchmark (the paper's ablation
    curves) keeps the mean it logged. MEAN is NaN at a step where a benchmark is missing.
    """

    frame: pd.DataFrame
    benchmarks: tuple[str, ...]
    samples_of: Mapping[str, int]
    of_model: Mapping[str, tuple[str, ...]]  # model -> its benchmarks, sorted by name

    def of(self, mlflow_id: str) -> pd.DataFrame:
        """One run's curves, indexed by step; empty if it has no validation."""
        curve = self._of_run.get(mlflow_id)
        return self.frame.iloc[:0].droplevel("mlflow_id") if curve is None else curve

    @cached_property
    def _of_run(self) -> Mapping[str, pd.DataFrame]:
        """Split once: looking a run up in the whole frame takes longer the more runs there are."""
        parts = self.frame.groupby(level="mlflow_id", sort=False, observed=True)
        return {str(mlflow_id): part.droplevel("mlflow_id") for mlflow_id, part in parts}


def validation_curves(metrics: pd.DataFrame, runs: pd.DataFrame) -> ValidationCurves:
    """The validation curves in the `metrics` and `runs` frames of `inputs.SweepData`.

    If benchmarks of a run were evaluated with several sample counts (Avg@1 and Avg@16), its largest is used.
    """
    names = metrics["metric"].astype("category")
    validations = {
        name: parsed
        for name in names.unique()
        if (parsed := schema.parse_validation_metric(name)) is not None
    }
    rows = metrics[names.isin(validations)].astype({"mlflow_id": object, "metric": object})
    samples = rows["metric"].map({name: size for name, (_, size) in validations.items()})
    rows = rows[samples == samples.groupby(rows["mlflow_id"]).transform("max")]
    rows["benchmark"] = rows["metric"].map({name: benchmark for name, (benchmark, _) in validations.items()})
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
            wide.loc[inside, schema.MEAN] = mean.where(~only_mean, wide.loc[inside, schema.MEAN])
    samples_of = samples.groupby(rows["mlflow_id"]).max().to_dict()
    return ValidationCurves(wide[[*benchmarks, schema.MEAN]], benchmarks, samples_of, of_model)
