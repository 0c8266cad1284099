"""The noise of a search: each seed's objective values, recomputed from the validation curves of the training runs, and
what their spread says about the differences between trials.

A search selects the highest of many noisy values, so the value of the best trial has a selection bias: it is too high
on average. With one seed per trial, noise cannot be told from a real difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pandas as pd

from cppo_lab import schema
from cppo_lab.analysis.reader import read_runs
from cppo_lab.analysis.search import SearchResult, TrialResult, complete_trials, ranking, value_of
from cppo_lab.analysis.statistics.values import starts_with_seed
from cppo_lab.analysis.sweep_data import SweepData

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
