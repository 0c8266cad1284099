"""The state of a hyper-parameter search and the results of its trials: the best trial, the Pareto front, the best
trial's neighbours, and points for figures. `search_file` reads it, `search_noise` quantifies its noise. Nothing here
draws.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
