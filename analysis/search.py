"""The state of a hyper-parameter search and the results of its trials: the best trial, the Pareto front, the best
trial's neighbours, and points for figures. `search_file` reads it; the functions below quantify its noise. Nothing here
draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.points import SweepData
from cppo_lab.analysis.reader import read_runs
from cppo_lab.analysis.statistics.values import starts_with_seed

OBJECTIVES = ("final_score", "best_score", "mean_score", "stability")
COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "running"
STATES = (COMPLETE, RUNNING, PRUNED, FAILED)
TOLERANCE = 1e-9  # relative, at a bound: the grid of steps is computed in floats

Value = float | str | bool | None


@dataclass(frozen=True)
class Space:
    """The search space of the configuration key `name`: an interval, or `choices` (then `low` and `high` are 0).

    `log`: searched and drawn on a logarithmic scale. `step`: the grid spacing, None without a grid.
    """

    name: str
    low: float
    high: float
    log: bool
    step: float | None
    choices: tuple[Value, ...]

    def scaled(self, value: Value) -> float:
        """The position of `value` in the space, from 0 to 1 on the declared scale; for a choice, by its index."""
        if self.choices:
            return self.place(value) / max(1, len(self.choices) - 1)
        place, low, high = (
            math.log(end) if self.log else end for end in (float(value or 0), self.low, self.high)
        )
        return 0.5 if high == low else (place - low) / (high - low)

    def place(self, value: Value) -> int:
        """The index of a choice."""
        return next(index for index, one in enumerate(self.choices) if _same(value, one))

    def holds(self, value: Value) -> bool:
        """Whether the search could have chosen `value`."""
        if self.choices:
            return any(_same(value, one) for one in self.choices)
        if isinstance(value, (bool, str)) or value is None:
            return False
        slack = TOLERANCE * max(abs(self.low), abs(self.high))
        return self.low - slack <= value <= self.high + slack


@dataclass(frozen=True)
class TrialResult:
    """One trial. `values`: one fraction for each objective, None unless it is complete.

    `curve`: (step, mean score over the seeds so far); training step s of the i-th seed (from 0) is step i * t_stop + s.
    `run_ids`: its training runs, in the order of the seeds. `seconds`: None if unknown.
    """

    number: int
    state: str
    params: Mapping[str, Value]
    values: tuple[float, ...] | None
    curve: tuple[tuple[int, float], ...]
    run_ids: tuple[str, ...]
    mlflow_id: str
    reason: str
    seconds: float | None


@dataclass(frozen=True)
class SearchResult:
    """The current state of a search. All objectives are fractions and are maximised. `best`: the number of the best
    trial, or with several objectives those of the Pareto front. `mlflow_id`: the run that holds the file.
    """

    mlflow_id: str
    name: str
    study: str
    title: str
    question: str
    core: str
    model: str
    seeds: tuple[int, ...]
    sampler: str
    pruner: str
    objectives: tuple[str, ...]
    parameters: tuple[Space, ...]
    t_stop: int
    trials: tuple[TrialResult, ...]
    importances: Mapping[str, Mapping[str, float]]
    best: tuple[int, ...]

    def space(self, name: str) -> Space:
        """The space of the parameter `name`."""
        return next(space for space in self.parameters if space.name == name)

    def trial(self, number: int) -> TrialResult:
        """The trial of that number."""
        return next(trial for trial in self.trials if trial.number == number)


@dataclass(frozen=True)
class SlicePoint:
    """One complete trial: the value `x` of a parameter, and an objective's value (a fraction)."""

    number: int
    x: Value
    value: float


@dataclass(frozen=True)
class PairPoint:
    """One complete trial: the values of two parameters, and an objective's value (a fraction)."""

    number: int
    x: Value
    y: Value
    value: float


def complete_trials(result: SearchResult) -> tuple[TrialResult, ...]:
    """The trials that have values, by number."""
    return tuple(trial for trial in result.trials if trial.values is not None)


def counts(result: SearchResult) -> dict[str, int]:
    """How many trials are in each state that occurs, in the order of STATES."""
    found = {state: sum(trial.state == state for trial in result.trials) for state in STATES}
    return {state: number for state, number in found.items() if number}


def value_of(trial: TrialResult, index: int) -> float:
    """The value of objective `index` of a complete trial."""
    if trial.values is None:
        raise ValueError(f"trial {trial.number} is {trial.state} and has no value")
    return trial.values[index]


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether `one` Pareto-dominates `other`: nowhere worse and somewhere better; all values are maximised."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def pareto_front(values: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Indices of the values that no other dominates. Equal values are all on the front."""
    distinct = set(map(tuple, values))
    front = {one for one in distinct if not any(dominates(other, one) for other in distinct)}
    return tuple(index for index, one in enumerate(values) if tuple(one) in front)


def front_of(result: SearchResult) -> tuple[int, ...]:
    """Numbers of the complete trials that no other dominates; with one objective those of the highest value."""
    trials = complete_trials(result)
    return tuple(trials[index].number for index in pareto_front([trial.values or () for trial in trials]))


def ranking(result: SearchResult) -> tuple[TrialResult, ...]:
    """The complete trials, best first. With several objectives the front comes first; then by the first objective; ties
    by trial number.
    """
    front = set(front_of(result))
    several = len(result.objectives) > 1
    return tuple(
        sorted(
            complete_trials(result),
            key=lambda trial: (several and trial.number not in front, -value_of(trial, 0), trial.number),
        )
    )


def by_importance(result: SearchResult) -> tuple[Space, ...]:
    """The parameters by importance for the first objective, highest first; in declaration order if importances are
    unknown.
    """
    known = result.importances.get(result.objectives[0], {})
    return tuple(sorted(result.parameters, key=lambda space: -known.get(space.name, 0.0)))


def neighbours(result: SearchResult, trial: TrialResult, number: int = 3) -> tuple[TrialResult, ...]:
    """The `number` complete trials nearest to `trial` on the declared scales, nearest first."""

    def distance(other: TrialResult) -> float:
        return sum(
            (space.scaled(trial.params[space.name]) - space.scaled(other.params[space.name])) ** 2
            for space in result.parameters
        )

    others = [other for other in complete_trials(result) if other.number != trial.number]
    return tuple(sorted(others, key=lambda other: (distance(other), other.number))[:number])


def slice_points(result: SearchResult, parameter: str, objective: int = 0) -> tuple[SlicePoint, ...]:
    """The value of `parameter` and of objective number `objective` in each complete trial, by trial number."""
    return tuple(
        SlicePoint(trial.number, trial.params[parameter], value_of(trial, objective))
        for trial in complete_trials(result)
    )


def pair_points(result: SearchResult, x: str, y: str, objective: int = 0) -> tuple[PairPoint, ...]:
    """The values of the parameters `x` and `y` and of objective number `objective` in each complete trial, by trial
    number.
    """
    return tuple(
        PairPoint(trial.number, trial.params[x], trial.params[y], value_of(trial, objective))
        for trial in complete_trials(result)
    )


def _same(one: Value, other: Value) -> bool:
    """Equality that distinguishes numbers from booleans: 1 is not True."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


# The noise of a search: each seed's objective values, recomputed from the validation curves of the training runs, and
# what their spread says about the differences between trials.
#
# A search selects the highest of many noisy values, so the value of the best trial has a selection bias: it is too high
# on average. With one seed per trial, noise cannot be told from a real difference.


LAST = 3  # validations whose mean is the final score
AGREE = 1e-6  # fractions closer than this are the same value
FAR = 2.0  # standard errors beyond which a difference is more than noise


@dataclass(frozen=True)
class SeedValues:
    """The values of one objective for each seed of the complete trials.

    `values`: trial -> its seeds' values, for the trials whose runs are all in the store. `differ`: the trials among
    them whose mean differs from the recorded value. `paired`: the trials of one seed share their start
    (`values.starts_with_seed`).
    """

    objective: str
    values: Mapping[int, tuple[float, ...]]
    differ: tuple[int, ...]
    paired: bool = False

    def std(self, number: int) -> float | None:
        """Sample standard deviation over the seeds of a trial; None for a single seed, or if unknown."""
        found = self.values.get(number, ())
        return _std(found) if len(found) > 1 else None


@dataclass(frozen=True)
class BestTrialLead:
    """The lead of the best trial. `scatter`: standard deviation over seeds, pooled over `trials` trials; if they are
    `paired` by seed, of what is left once the mean of each seed is taken off. `error`: standard error of the difference
    between two trials' means. `close`: the other trials within FAR standard errors of the best. `second`: the margin to
    the runner-up.
    """

    scatter: float
    paired: bool
    trials: int
    error: float
    second: float
    close: tuple[TrialResult, ...]


def read_seed_values(uri: str, experiment: str, result: SearchResult) -> tuple[SeedValues, ...]:
    """The seeds' values per objective; empty with one seed, which has no spread. Raises UserError if the store cannot
    be read.
    """
    if len(result.seeds) < 2:
        return ()
    wanted = {run_id for trial in complete_trials(result) for run_id in trial.run_ids}
    return seed_values(result, read_runs(uri, experiment, wanted, _is_mean_score))


def seed_values(result: SearchResult, data: SweepData) -> tuple[SeedValues, ...]:
    """The seeds' values per objective, from the training runs in `data`."""
    curves = mean_curves(data, result.t_stop)
    paired = all(
        starts_with_seed(data, str(run.mlflow_id), None if pd.isna(run.seed) else int(run.seed))
        for run in data.runs.itertuples()
    )
    found = []
    for index, objective in enumerate(result.objectives):
        values, differ = {}, []
        for trial in complete_trials(result):
            of_trial = [curves[run_id] for run_id in trial.run_ids if run_id in curves]
            if len(of_trial) < len(result.seeds):
                continue
            seeds = tuple(objective_value(objective, curve) for curve in of_trial)
            values[trial.number] = seeds
            if abs(math.fsum(seeds) / len(seeds) - value_of(trial, index)) > AGREE:
                differ.append(trial.number)
        found.append(SeedValues(objective, values, tuple(differ), paired))
    return tuple(found)


def mean_curves(data: SweepData, t_stop: int) -> dict[str, tuple[float, ...]]:
    """Run id -> its mean scores over the benchmarks, one for each validation up to `t_stop`, in order. The missing
    validations of a collapsed run are filled in with its last score.
    """
    curves = {}
    for run in data.runs.itertuples():
        rows = data.metrics[data.metrics["mlflow_id"] == run.mlflow_id].dropna(subset="value")
        rows = rows[rows["step"] <= t_stop].sort_values("step")
        if not rows.empty:
            steps = [int(step) for step in rows["step"]]
            scores = [float(value) for value in rows["value"]]
            every = _spacing(data.params.get(str(run.mlflow_id), {}), steps)
            curves[str(run.run_id)] = (*scores, *[scores[-1]] * ((t_stop - steps[-1]) // every))
    return curves


def _spacing(params: Mapping[str, str], steps: Sequence[int]) -> int:
    """Steps between validations: as configured, or else as between the last two."""
    configured = params.get("validation.every", "")
    if configured.isdecimal() and int(configured) > 0:
        return int(configured)
    return steps[-1] - steps[-2] if len(steps) > 1 else max(1, steps[-1])


def objective_value(objective: str, scores: Sequence[float]) -> float:
    """One of `search.OBJECTIVES` of the scores of one training run, which has at least one.

    final_score: mean of the last three. best_score: the highest. mean_score: mean of all. stability: 1 minus the
    largest drop below the best so far. Raises ValueError for another objective.
    """
    if objective == "final_score":
        return math.fsum(scores[-LAST:]) / len(scores[-LAST:])
    if objective == "best_score":
        return max(scores)
    if objective == "mean_score":
        return math.fsum(scores) / len(scores)
    if objective == "stability":
        return 1.0 - max(high - score for high, score in zip(accumulate(scores, max), scores, strict=True))
    raise ValueError(f"no objective: {objective!r}")


def separation(result: SearchResult, seeds: Sequence[SeedValues]) -> BestTrialLead | None:
    """The lead of the best trial of a search with one objective; None if the spread over seeds is unknown or there is
    nothing to compare.
    """
    ranked = ranking(result)
    if not seeds or len(result.objectives) > 1 or len(ranked) < 2:
        return None
    values, paired = seeds[0].values, seeds[0].paired and len(seeds[0].values) > 1
    if not values or len(result.seeds) < 2:
        return None
    # What the seeds do to all trials cancels in their differences.
    table = np.array([*values.values()])
    squares = (table - table.mean(1, keepdims=True) - paired * (table.mean(0) - table.mean())) ** 2
    scatter = math.sqrt(squares.sum() / ((len(table) - paired) * (table.shape[1] - 1)))
    error = scatter * math.sqrt(2 / len(result.seeds))
    best = value_of(ranked[0], 0)
    close = tuple(trial for trial in ranked[1:] if best - value_of(trial, 0) <= FAR * error)
    return BestTrialLead(scatter, paired, len(values), error, best - value_of(ranked[1], 0), close)


def _std(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _is_mean_score(name: str) -> bool:
    parsed = schema.parse_validation_metric(name)
    return parsed is not None and parsed[0] == schema.MEAN
