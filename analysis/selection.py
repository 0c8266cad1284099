"""The selection rule: which checkpoint of a run is scored, and how table cells are computed.

Rule (the paper's): inside the matched window [0, T_stop] of its model, a run is scored at the step with the
highest unweighted mean over the benchmarks, and the benchmark columns are the components at that same step.
The step is selected for each run separately; seeds are averaged afterwards.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
import pandas as pd

from cppo_lab import schema

# PAPER: ties. TRM-Avg on Qwen3-8B-Base has the same mean at steps 150, 160 and 310, and the printed
# components are those of step 150: the earliest step wins. Curves are given to 1e-6, hence the width of a
# tie.
TIE = 1e-5
# PAPER: `collapse` is a run that diverged (Table 4), without a threshold. We set one for the paper's curves only: the
# last mean score inside the window is below this share of the run's best. This holds for CISPO on Qwen3-30B-A3B-Base
# (ends at 0) and no other run (the next lowest, GRPO on Qwen3-1.7B-Base, ends at 0.42 of its best). Our own runs stop
# by the rule of cores/collapse.py, whose share of 0.4 has to persist over several validations.
COLLAPSE_SHARE = 0.1


class SelectionState(StrEnum):
    """The state of a run. Only SCORED and COLLAPSE are results; every other state is a gap, which reports must name."""

    SCORED = "scored"
    COLLAPSE = "collapse"
    MISSING = "missing"
    RUNNING = "running"
    FAILED = "failed"
    PARTIAL = "partial"
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
    """One expected run, the stored run that was found for it (`mlflow_id` None: none) and its choice.

    `state` is the run's state in the table: that of the choice if the run is finished. The choice of an unfinished run
    is based on what it has logged so far.
    """

    run_id: str | None
    mlflow_id: str | None
    model: str
    variant: str
    seed: int | None
    rule: str
    core: str
    status: str
    reason: str
    t_stop: int | None
    state: SelectionState
    choice: Choice


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation over `n` runs; the latter is None for a single run."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Stat | None":
        """None for no values."""
        if not values:
            return None
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return cls(mean, None, 1)
        return cls(
            mean,
            math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)),
            len(values),
        )


@dataclass(frozen=True)
class CellScore:
    """One (model, variant) over its seeds.

    `provisional`: a run is missing or unfinished, so the numbers will change. `collapsed`: how many runs
    collapsed. One is enough to make the cell a collapse, because the mean of the others would flatter an unstable
    method.
    """

    model: str
    variant: str
    state: SelectionState
    provisional: bool
    expected: int
    collapsed: int
    t_stop: int | None
    steps: tuple[int, ...]
    score: Stat | None
    components: dict[str, Stat]
    base: Stat | None
    gain: Stat | None


def choose(curve: pd.DataFrame, t_stop: int | None, benchmarks: Sequence[str]) -> Choice:
    """Apply the rule to one run's curves, indexed by step with the columns `benchmarks` and MEAN
    (`curves.ValidationCurves`).

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

    Our runs detect a collapse themselves (cores/collapse.py) and record it, whatever the last score was. Only the
    paper's curves are judged by their shape.
    """
    if status == schema.DONE and core != schema.PAPER and choice.state is SelectionState.COLLAPSE:
        return SelectionState.SCORED
    by_status = {
        schema.RUNNING: SelectionState.RUNNING,
        schema.FAILED: SelectionState.FAILED,
        schema.PARTIAL: SelectionState.PARTIAL,
        schema.COLLAPSED: SelectionState.COLLAPSE,
    }
    return by_status.get(status, choice.state)


def score_cell(runs: Sequence[RunScore], benchmarks: Sequence[str]) -> CellScore:
    """The score of one (model, variant) over its runs. Only finished runs count; if there is none, the others count
    with what they have so far.
    """
    model, variant = runs[0].model, runs[0].variant
    gaps = [run for run in runs if run.state in GAPS]
    finished = [run for run in runs if run.state not in GAPS]
    collapsed = sum(run.state is SelectionState.COLLAPSE for run in runs)
    counted = finished or [run for run in gaps if run.choice.score is not None]
    if collapsed:
        state = SelectionState.COLLAPSE
    elif counted:
        state = SelectionState.SCORED
    else:
        state = gaps[0].state
    choices = [run.choice for run in counted]
    components = {}
    for name in benchmarks:
        stat = Stat.of([choice.components[name] for choice in choices if name in choice.components])
        if stat is not None:
            components[name] = stat
    return CellScore(
        model=model,
        variant=variant,
        state=state,
        provisional=bool(gaps),
        expected=len(runs),
        collapsed=collapsed,
        t_stop=max((run.t_stop for run in runs if run.t_stop is not None), default=None),
        steps=tuple(choice.step for choice in choices if choice.step is not None),
        score=Stat.of([choice.score for choice in choices if choice.score is not None]),
        components=components,
        base=Stat.of([choice.base for choice in choices if choice.base is not None]),
        gain=Stat.of([choice.gain for choice in choices if choice.gain is not None]),
    )


# Validation curves from the tidy metrics: one row per (run, step), one column per benchmark and one for their mean.


@dataclass(frozen=True, eq=False)
class ValidationCurves:
    """Avg@`samples` of every run as fractions in [0, 1].

    `frame`: indexed by (mlflow_id, step), sorted; one column per benchmark and the column MEAN, the
    unweighted mean of the benchmarks of the run's model, i.e. of those that any run on that model has logged (models on
    different tasks have different benchmarks). A run that logged only the mean and no benchmark (the paper's ablation
    curves) keeps the mean it logged. MEAN is NaN at a step where a benchmark is missing.
    """

    frame: pd.DataFrame
    benchmarks: tuple[str, ...]
    samples: int
    of_model: Mapping[str, tuple[str, ...]]  # model -> its benchmarks, sorted by name

    def of(self, mlflow_id: str) -> pd.DataFrame:
        """One run's curves, indexed by step; empty if it has no validation."""
        found = self._of_run.get(mlflow_id)
        return self.frame.iloc[:0].droplevel("mlflow_id") if found is None else found

    @cached_property
    def _of_run(self) -> Mapping[str, pd.DataFrame]:
        """Split once: looking a run up in the whole frame takes longer the more runs there are."""
        parts = self.frame.groupby(level="mlflow_id", sort=False, observed=True)
        return {str(mlflow_id): part.droplevel("mlflow_id") for mlflow_id, part in parts}


def validation_curves(metrics: pd.DataFrame, runs: pd.DataFrame) -> ValidationCurves:
    """The validation curves in the `metrics` and `runs` frames of `reader.SweepData`.

    If benchmarks were evaluated with several sample counts (Avg@1 and Avg@16), the largest is used.
    """
    # Few of very many points are validations: they are picked by category code, before names are expanded.
    names = metrics["metric"].astype("category").cat
    parsed = [schema.parse_validation_metric(name) for name in names.categories]
    known = np.array([found is not None for found in parsed], dtype=bool)
    codes = names.codes.to_numpy()
    picked = known[codes] if len(parsed) else np.zeros(len(codes), dtype=bool)
    # Column by column: selecting rows and columns at once would copy whole columns first.
    columns = ("mlflow_id", "step", "value")
    rows = pd.DataFrame({name: metrics[name].array[picked] for name in columns})
    codes = codes[picked]
    sizes = np.array([0 if found is None else found[1] for found in parsed], dtype=int)[codes]
    samples = int(sizes.max()) if len(sizes) else 0
    benchmark = np.array(["" if found is None else found[0] for found in parsed], dtype=object)
    rows = rows.astype({"mlflow_id": object}).assign(benchmark=benchmark[codes])[sizes == samples]
    wide = rows.pivot(index=["mlflow_id", "step"], columns="benchmark", values="value").sort_index()
    wide.columns.name = None
    benchmarks = tuple(sorted(name for name in wide.columns if name != schema.MEAN))
    logged_mean = wide[schema.MEAN] if schema.MEAN in wide else pd.Series(float("nan"), index=wide.index)
    wide[schema.MEAN] = logged_mean
    model_of = runs.set_index("mlflow_id")["model"]
    logged = rows.assign(model=rows["mlflow_id"].map(model_of)).groupby("model")["benchmark"]
    of_model = {model: tuple(sorted(set(names) - {schema.MEAN})) for model, names in logged}
    models = wide.index.get_level_values("mlflow_id").map(model_of)
    for model, own in of_model.items():
        if own:
            inside = models == model
            parts = wide.loc[inside, list(own)]
            only_mean = parts.isna().groupby(level="mlflow_id").transform("all").all(axis=1)
            mean = parts.mean(axis=1, skipna=False)
            wide.loc[inside, schema.MEAN] = mean.where(~only_mean, wide.loc[inside, schema.MEAN])
    return ValidationCurves(wide[[*benchmarks, schema.MEAN]], benchmarks, samples, of_model)
