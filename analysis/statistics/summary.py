"""All statistics of one scored sweep, for tables and pages."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cppo_lab.analysis.grid import USUAL, Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import SelectionState
from cppo_lab.analysis.statistics.aggregates import AGGREGATES
from cppo_lab.analysis.statistics.estimate import Estimate, mean_estimate
from cppo_lab.analysis.statistics.multiplicity import holm
from cppo_lab.analysis.statistics.one_seed import SingleRun, single_runs
from cppo_lab.analysis.statistics.paired import Difference, difference, mean_difference
from cppo_lab.analysis.statistics.ranking import Ranking, rankings
from cppo_lab.analysis.statistics.resampling import RESAMPLES, bootstrap
from cppo_lab.analysis.statistics.sampling import SamplingError, cell_sampling_error
from cppo_lab.analysis.statistics.values import RunValues, Score, by_seed, run_values

_RESULTS = (SelectionState.SCORED, SelectionState.COLLAPSE)
SEED = 20260610  # of the bootstrap, so that the same runs give the same intervals


@dataclass(frozen=True)
class CellStatistics:
    """One (model, variant) over its seeds. A score that no run has is in neither `scores` nor `differences`.

    `differences`: minus the baseline. `missing`: the declared seeds without a finished run. `sampling`: the standard
    error of one evaluation of one run. The spread between runs contains it, so the intervals include it already.
    """

    model: str
    variant: str
    runs: int
    collapsed: int
    missing: tuple[int | None, ...]
    sampling: SamplingError | None
    scores: dict[Score, Estimate]
    differences: dict[Score, Difference]


@dataclass(frozen=True)
class Aggregate:
    """A variant over the models of the sweep: one of `aggregates.AGGREGATES`, with its bootstrap interval."""

    variant: str
    score: Score
    name: str
    estimate: Estimate


@dataclass(frozen=True)
class Statistics:
    """Everything about one sweep. `adjusted`: (model, variant, score) -> two-sided p-value of the difference from the
    baseline with Holm's adjustment over all models and variants of the sweep, for the differences that have one.

    `aggregates` and `overall` (mean differences over models) cover the variants with finished runs on every model.
    """

    baseline: Baseline
    cells: tuple[CellStatistics, ...]
    adjusted: dict[tuple[str, str, Score], float]
    aggregates: tuple[Aggregate, ...]
    overall: tuple[Difference, ...]
    rankings: tuple[Ranking, ...]
    single: tuple[SingleRun, ...]


def baseline_of(variants: Sequence[str], wanted: Baseline = USUAL) -> Baseline:
    """The variant that the others are compared with: the `wanted` one if it is among `variants`, or else DPPO as in the
    paper's ablations, or else the first variant.
    """
    if wanted.matched is not None or wanted.name in variants:
        return wanted
    return Baseline("dppo" if "dppo" in variants else variants[0])


def sweep_statistics(
    board: Scoreboard, seed: int = SEED, resamples: int = RESAMPLES, baseline: Baseline = USUAL
) -> Statistics:
    """The statistics of a scored sweep; the same runs and `seed` give the same numbers. `baseline`: as `wanted` of
    `baseline_of`.
    """
    runs, baseline = run_values(board), baseline_of(board.variants, baseline)
    cells = tuple(_cell(board, runs, *pair, baseline) for pair in board.cells)
    return Statistics(
        baseline=baseline,
        cells=cells,
        adjusted=_adjusted(cells),
        aggregates=_aggregates(board, runs, np.random.default_rng(seed), resamples),
        overall=_overall(board, runs, cells),
        rankings=rankings(board, runs),
        single=single_runs(board, runs),
    )


def _cell(
    board: Scoreboard, runs: tuple[RunValues, ...], model: str, variant: str, baseline: Baseline
) -> CellStatistics:
    scores, differences, against = {}, {}, baseline.of(variant)
    for score in Score:
        found = mean_estimate(list(by_seed(runs, model, variant, score).values()))
        if found is not None:
            scores[score] = found
        if against is not None and (minus := difference(runs, model, variant, against, score)) is not None:
            differences[score] = minus
    declared = board.runs_of(model, variant)
    finished = [run for run in declared if run.state in _RESULTS]
    return CellStatistics(
        model=model,
        variant=variant,
        runs=len(finished),
        collapsed=sum(run.state is SelectionState.COLLAPSE for run in finished),
        missing=tuple(run.seed for run in declared if run.state not in _RESULTS),
        sampling=cell_sampling_error(board, finished),
        scores=scores,
        differences=differences,
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
    board: Scoreboard, runs: tuple[RunValues, ...], rng: np.random.Generator, resamples: int
) -> tuple[Aggregate, ...]:
    found = []
    for variant in board.variants:
        for score in Score:
            strata = [np.array(list(by_seed(runs, model, variant, score).values())) for model in board.models]
            if all(len(values) for values in strata):
                found += [
                    Aggregate(variant, score, name, bootstrap(strata, statistic, rng, resamples))
                    for name, statistic in AGGREGATES.items()
                ]
    return tuple(found)


def _overall(
    board: Scoreboard, runs: tuple[RunValues, ...], cells: Sequence[CellStatistics]
) -> tuple[Difference, ...]:
    found = []
    of_variant: dict[str, list[CellStatistics]] = defaultdict(list)
    for cell in cells:
        of_variant[cell.variant].append(cell)
    for variant in board.variants:
        for score in Score:
            parts = [cell.differences[score] for cell in of_variant[variant] if score in cell.differences]
            if len(parts) == len(board.models) and (mean := mean_difference(parts, runs)) is not None:
                found.append(mean)
    return tuple(found)
