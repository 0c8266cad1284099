"""All statistics of one scored sweep, for tables and pages; what single runs show, and the order of methods.

What a single run can and cannot show. No interval is derived from its evaluations: they belong to one training run,
so their scatter shows the noise of its curve and nothing about other seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

import numpy as np
import pandas as pd

from cppo_lab.analysis.grid import USUAL, Baseline
from cppo_lab.analysis.scoring import Scoreboard, rank_descending
from cppo_lab.analysis.selection import GAPS, SelectionState
from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    RESAMPLES,
    Estimate,
    bootstrap,
    holm,
    mean_estimate,
)
from cppo_lab.analysis.statistics.paired import Difference, difference, mean_difference
from cppo_lab.analysis.statistics.sampling import SamplingError, cell_sampling_error
from cppo_lab.analysis.statistics.values import FinishedRuns, RunValues, Score, by_seed, cell_runs, run_values

CANNOT = (
    "how much the score would change with another seed",
    "whether a difference from another method comes from the method or from the seed",
    "any 95 % interval, p-value or probability of improvement",
    "how many seeds would decide a comparison: that takes the spread of two or more runs",
)


# The order of the methods on each model by each score, and how the margins compare with noise.
#
# This also works with one run per method, as in the paper. There is then no interval over seeds; but a margin below the
# noise of the two compared curves is not even a property of these runs.


@dataclass(frozen=True)
class Rank:
    """One variant in a model's ranking. `rank`: 1 + the number of strictly higher means over seeds.

    `margin`: distance to the next lower variant (None: the last). `noise`: standard error of that margin from the
    scatter of single evaluations alone, assumed independent (None: unknown). It is a lower bound: the spread over seeds
    comes on top, and with BEST and CORRECTED also the noise of selecting a step.
    """

    variant: str
    rank: int
    margin: float | None
    noise: float | None


@dataclass(frozen=True)
class Ranking:
    """The variants of a model by one score, highest first."""

    model: str
    score: Score
    places: tuple[Rank, ...]

    def rank(self, variant: str) -> int | None:
        """The rank of a variant; None if it has no such score."""
        return self._ranks.get(variant)

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return {place.variant: place.rank for place in self.places}


def rankings(board: Scoreboard, runs: FinishedRuns) -> tuple[Ranking, ...]:
    """Every model by every score that any of its variants has."""
    every = (_ranking(board, runs, model, score) for model in board.models for score in Score)
    return tuple(ranking for ranking in every if ranking.places)


def kendall(first: Ranking, second: Ranking) -> float | None:
    """Kendall's tau-b of two rankings over their common variants: 1 is the same order, -1 the reverse; None for fewer
    than two.
    """
    pairs = [(place.rank, rank) for place in first.places if (rank := second.rank(place.variant)) is not None]
    tau = float(pd.DataFrame(pairs, columns=["first", "second"], dtype=float).corr("kendall").iloc[0, 1])
    return None if math.isnan(tau) else tau


def _ranking(board: Scoreboard, runs: FinishedRuns, model: str, score: Score) -> Ranking:
    cells = {variant: list(by_seed(runs, model, variant, score).values()) for variant in board.variants}
    means = {variant: math.fsum(values) / len(values) for variant, values in cells.items() if values}
    order = sorted(means, key=lambda variant: -means[variant])
    ranks = rank_descending({(model, variant): mean for variant, mean in means.items()})
    noise = {variant: _noise(cell_runs(runs, model, variant), score) for variant in order}
    places = []
    for variant, below in zip_longest(order, order[1:]):
        margin = both = None
        if below is not None:
            margin, noises = means[variant] - means[below], (noise[variant], noise[below])
            both = None if None in noises else math.hypot(*filter(None, noises))
        places.append(Rank(variant, ranks[model, variant], margin, both))
    return Ranking(model, score, tuple(places))


def _noise(runs: Sequence[RunValues], score: Score) -> float | None:
    """Standard error of a cell's score from the scatter of evaluations; None if it is unknown for any of the runs."""
    squares = [
        run.step_noise**2 / {Score.FINAL: run.late, Score.AREA: run.evaluations}.get(score, 1)
        for run in runs
        if run.step_noise is not None
    ]
    return math.sqrt(math.fsum(squares)) / len(runs) if len(squares) == len(runs) else None


# All statistics of one scored sweep, for tables and pages.


SEED = 20260610  # of the bootstrap, so that the same runs give the same intervals


@dataclass(frozen=True)
class CellStatistics:
    """One (model, variant) over its seeds. A score that no run has is in neither `scores` nor `differences`.

    `differences`: minus the baseline. `sampling`: the standard error of one evaluation of one run. The spread between
    runs contains it, so the intervals include it already.
    """

    model: str
    variant: str
    runs: int
    collapsed: int
    sampling: SamplingError | None
    scores: dict[Score, Estimate]
    differences: dict[Score, Difference]


@dataclass(frozen=True)
class Aggregate:
    """A variant over the models of the sweep: one of `estimate.AGGREGATES`, with its bootstrap interval."""

    variant: str
    score: Score
    name: str
    estimate: Estimate


@dataclass(frozen=True)
class Statistics:
    """Everything about one sweep. `adjusted`: (model, variant, score) -> two-sided p-value of the difference from the
    baseline with Holm's adjustment over all models and variants of the sweep, for the differences that have one.

    `aggregates` and `overall` (mean differences of final means over models) cover the variants with finished runs on
    every model.
    """

    baseline: Baseline
    cells: tuple[CellStatistics, ...]
    adjusted: dict[tuple[str, str, Score], float]
    aggregates: tuple[Aggregate, ...]
    overall: tuple[Difference, ...]
    rankings: tuple[Ranking, ...]


def baseline_of(variants: Sequence[str], wanted: Baseline = USUAL) -> Baseline:
    """The variant that the others are compared with: the `wanted` one if it is among `variants`, or else DPPO as in the
    paper's ablations, or else the first variant.
    """
    if wanted.matched is not None or wanted.name in variants:
        return wanted
    return Baseline("dppo" if "dppo" in variants else variants[0])


def sweep_statistics(board: Scoreboard, resamples: int = RESAMPLES, baseline: Baseline = USUAL) -> Statistics:
    """The statistics of a scored sweep; the same runs give the same numbers. `baseline`: as `wanted` of
    `baseline_of`.
    """
    runs, baseline = run_values(board), baseline_of(board.variants, baseline)
    cells = tuple(_cell(board, runs, *pair, baseline) for pair in board.cells)
    return Statistics(
        baseline=baseline,
        cells=cells,
        adjusted=_adjusted(cells),
        aggregates=_aggregates(board, runs, np.random.default_rng(SEED), resamples),
        overall=_overall(board, runs, cells),
        rankings=rankings(board, runs),
    )


def _cell(
    board: Scoreboard, runs: FinishedRuns, model: str, variant: str, baseline: Baseline
) -> CellStatistics:
    against = baseline.of(variant)
    means = {score: mean_estimate(list(by_seed(runs, model, variant, score).values())) for score in Score}
    minus = {
        score: None if against is None else difference(runs, model, variant, against, score)
        for score in Score
    }
    finished = [run for run in board.runs_of(model, variant) if run.state not in GAPS]
    return CellStatistics(
        model=model,
        variant=variant,
        runs=len(finished),
        collapsed=sum(run.state is SelectionState.COLLAPSE for run in finished),
        sampling=cell_sampling_error(board, finished),
        scores={score: mean for score, mean in means.items() if mean is not None},
        differences={score: each for score, each in minus.items() if each is not None},
    )


def _adjusted(cells: Sequence[CellStatistics]) -> dict[tuple[str, str, Score], float]:
    adjusted: dict[tuple[str, str, Score], float] = {}
    for score in Score:
        family = {
            (cell.model, cell.variant, score): p
            for cell in cells
            if score in cell.differences and (p := cell.differences[score].estimate.p_value()) is not None
        }
        adjusted |= dict(zip(family, holm(list(family.values())), strict=True))
    return adjusted


def _aggregates(
    board: Scoreboard, runs: FinishedRuns, rng: np.random.Generator, resamples: int
) -> tuple[Aggregate, ...]:
    aggregates = []
    for variant in board.variants:
        for score in Score:
            strata = [np.array(list(by_seed(runs, model, variant, score).values())) for model in board.models]
            if all(len(values) for values in strata):
                aggregates += [
                    Aggregate(variant, score, name, bootstrap(strata, statistic, rng, resamples))
                    for name, statistic in AGGREGATES.items()
                ]
    return tuple(aggregates)


def _overall(
    board: Scoreboard, runs: FinishedRuns, cells: Sequence[CellStatistics]
) -> tuple[Difference, ...]:
    parts: dict[str, list[Difference]] = {variant: [] for variant in board.variants}
    for cell in cells:
        if Score.FINAL in cell.differences:
            parts[cell.variant].append(cell.differences[Score.FINAL])
    whole = (of_variant for of_variant in parts.values() if len(of_variant) == len(board.models))
    return tuple(mean for each in whole if (mean := mean_difference(each, runs)) is not None)
