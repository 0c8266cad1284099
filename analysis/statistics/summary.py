"""All statistics of a scored sweep, for tables and pages: the sampling error of an evaluation, the noise of a map of
cells, the order of the methods, and scores and differences with their intervals.

No interval is derived from the evaluations of a single run: their scatter shows the noise of its curve and nothing
about other seeds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from cppo_lab.analysis.inputs import USUAL, Baseline, integer
from cppo_lab.analysis.scoring import RunScore, Scoreboard, SelectionState, rank_descending
from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    LEVEL,
    RESAMPLES,
    Estimate,
    Interval,
    bootstrap,
    holm,
    mean_of,
)
from cppo_lab.analysis.statistics.paired import Difference, difference, mean_difference
from cppo_lab.analysis.statistics.problems import (
    cell_problems,
    edge_share,
    evaluation_edge,
    evaluation_variance,
    mean_variance,
)
from cppo_lab.analysis.statistics.values import FinishedRuns, RunValues, Score, by_seed, cell_runs, run_values

# What a single run cannot show.
CANNOT = (
    "how much the score would change with another seed",
    "whether a difference from another method comes from the method or from the seed",
    "any 95 % interval, p-value or probability of improvement",
    "how many seeds would decide a comparison: that takes the spread of two or more runs",
)


# The sampling error of Avg@k: the error of an evaluation due to its finite numbers of answers and problems.
#
# The metrics contain only the share p of right answers, over n problems with k answers each. Let p_i be the probability
# that an answer to problem i is right, and rho = var(p_i) / (p (1 - p)) the share of the variance that lies between
# problems:
#
#     other answers to the same problems:      p (1 - p) (1 - rho) / (n k)
#     other answers to other problems as hard: p (1 - p) (rho + (1 - rho) / k) / n
#
# If a run recorded each problem's outcome, rho can be estimated and both errors are known (`problems`). Otherwise only
# p is known: rho = 0 gives an upper bound of the first, rho = 1 of the second, p (1 - p) / n.
#
# Two runs are compared on the same problems. Given these problems, the first variances add up if the answers are drawn
# independently; with repeated draws (`problems`) their sum is an upper bound. The problems' difficulty cancels as
# far as the runs share it, which `problems` measures and p alone does not show.
#
# The spread over seeds already contains the part of this error that is drawn separately for each run, so it must not be
# added to an interval over seeds. The sampling error describes a single run, and shows how much of the spread over
# seeds more answers could remove.

_AIME_PROBLEMS = 30
_MADE_PROBLEMS = "data.validation_problems"  # the logged configuration key of a run on generated problems


@dataclass(frozen=True)
class SamplingError:
    """Standard error of an evaluation (a fraction) over other `answers` to the same problems. It is an upper bound
    unless `known` from each problem's outcome. `edge`: of an evaluation with only right or only wrong answers, whose
    `answers` is 0, the share with Wilson's 95 % limits (`edge_share`); of a cell, if all its runs are like that.
    """

    answers: float
    known: bool = False
    edge: Interval | None = None


def sampling_error(shares: Sequence[float], problems: int, samples: int) -> SamplingError:
    """The upper bound for the unweighted mean over benchmarks with these shares, `problems` problems each."""
    count, answers = len(shares), problems * samples
    variance = math.fsum(share * (1 - share) for share in shares)
    edge = edge_share(shares, [answers] * count)
    return SamplingError(math.sqrt(variance / answers) / count, edge=edge)


def run_sampling_error(board: Scoreboard, run: RunScore) -> SamplingError | None:
    """The sampling error of the evaluation at the selected step: exact if the run recorded its outcomes, else a bound;
    None if the benchmarks or their numbers of problems are unknown, too.
    """
    outcomes, step = board.data.outcomes.get(run.mlflow_id), run.choice.step
    if outcomes is not None and step in outcomes.steps:
        right = outcomes.right[int(np.searchsorted(outcomes.steps, step or 0))]
        variance = evaluation_variance(right, outcomes.samples, outcomes.benchmark_of).answers
        if variance is not None:
            edge = evaluation_edge(right / outcomes.samples, outcomes.samples, outcomes.benchmark_of)
            return SamplingError(math.sqrt(variance), True, edge)
    scores, samples = run.choice.components, board.curves.samples_of.get(run.mlflow_id, 0)
    problems = max(0, integer(board.params_of(run).get(_MADE_PROBLEMS, "")) or 0)
    if not problems and all(name.lower().startswith("aime") for name in scores):
        problems = _AIME_PROBLEMS
    if not scores or not problems or samples < 1:
        return None
    return sampling_error(list(scores.values()), problems, samples)


def cell_sampling_error(board: Scoreboard, runs: Sequence[RunScore]) -> SamplingError | None:
    """The sampling error of an evaluation of a typical run of a cell (root mean square); None if it is unknown for any
    run, or if some have only right answers and all others only wrong ones.
    """
    errors = [error for run in runs if (error := run_sampling_error(board, run)) is not None]
    if not errors or len(errors) < len(runs):
        return None
    edges = [error.edge for error in errors if error.edge is not None]
    alike = len(edges) == len(errors) and len({edge.value for edge in edges}) == 1
    if len(edges) == len(errors) and not alike:
        return None
    return SamplingError(
        math.sqrt(math.fsum(error.answers**2 for error in errors) / len(errors)),
        all(error.known for error in errors),
        max(edges, key=lambda edge: (edge.high or 0.0) - (edge.low or 0.0)) if alike else None,  # the widest
    )


# The noise of a map of cells: how far apart the final means of equally good cells are.
#
# The span of a map is the largest of the differences of its cells, which exceeds the standard error of a single
# difference almost always: among nine equal cells it is about twice as large. So the span is compared with Student's
# quantile at Bonferroni's level over all pairs of cells.

_LARGE = 1e9  # degrees of freedom of a variance that is known, where Student's t is normal
_ROUNDING = 1e-9  # fractions closer than this differ by rounding alone


@dataclass(frozen=True)
class MapNoise:
    """`error`: the standard error of a difference of two cells (a fraction). `reach`: the span that a map of equally
    good cells exceeds in at most 5 % of cases. `seeds`: whether they are from the spread over seeds; otherwise they are
    from the evaluations' sampling error alone, and the noise of seeds comes on top.
    """

    error: float
    reach: float
    seeds: bool


def map_noise(board: Scoreboard, model: str, variants: Sequence[str]) -> MapNoise | None:
    """The noise of the final means of two or more cells of a model; None if nothing shows it: each cell has one run,
    without the outcomes of its evaluations.
    """
    finished = run_values(board)
    runs = [run for variant in variants for run in cell_runs(finished, model, variant)]
    counts = Counter(run.variant for run in runs)
    if len(counts) < 2:
        return None
    residual = _residual(runs, all(run.paired for run in runs)) or _residual(runs, False)
    if residual is not None:
        variance, degrees = residual
        error = math.sqrt(2 * variance * math.fsum(1 / count for count in counts.values()) / len(counts))
        return _noise_of(error, degrees, len(counts), True)
    # The variance over other answers of each cell's final mean, as for fresh answers.
    cells = [cell for cell in cell_problems(board) if cell.model == model and cell.variant in counts]
    sampled = [mean_variance(cell.evaluations) for cell in cells if cell.evaluations]
    if len(sampled) < len(counts):
        return None
    return _noise_of(math.sqrt(2 * math.fsum(sampled) / len(sampled)), _LARGE, len(sampled), False)


def _residual(runs: Sequence[RunValues], paired: bool) -> tuple[float, int] | None:
    """The variance of a run's score around its cell's mean, and its degrees of freedom; None if there are none. The
    means over cells of runs that share their start (`paired`) are no noise of differences, and are removed too.
    """
    groups = [[run.variant for run in runs]] + ([[run.seed for run in runs]] if paired else [])
    design = np.array(
        [[float(name == level) for name in names] for names in groups for level in dict.fromkeys(names)]
    ).T
    scores = np.array([run.final for run in runs])
    fitted, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
    degrees = len(runs) - int(rank)
    return (float(((scores - design @ fitted) ** 2).sum()) / degrees, degrees) if degrees else None


def _noise_of(error: float, degrees: float, cells: int, seeds: bool) -> MapNoise:
    if error < _ROUNDING:
        return MapNoise(0.0, 0.0, seeds)
    pairs = cells * (cells - 1) / 2
    return MapNoise(error, float(stdtrit(degrees, 1 - (1 - LEVEL) / (2 * pairs))) * error, seeds)


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
    """The variants of a model by a score, highest first."""

    model: str
    score: Score
    places: tuple[Rank, ...]

    def rank(self, variant: str) -> int | None:
        """The rank of a variant; None if it has no such score."""
        return next((place.rank for place in self.places if place.variant == variant), None)


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
    means = {variant: fmean(values) for variant, values in cells.items() if values}
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


# All statistics of a scored sweep, for tables and pages.

_SEED = 20260610  # of the bootstrap, so that the same runs give the same intervals


@dataclass(frozen=True)
class CellStatistics:
    """One (model, variant) over its seeds. A score that no run has is in neither `scores` nor `differences`.

    `differences`: minus the baseline. `sampling`: the standard error of a run's evaluation. The spread between runs
    contains it, so the intervals include it already.
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
    """A variant over the models of the sweep: an aggregate of `estimate.AGGREGATES`, with its bootstrap interval."""

    variant: str
    score: Score
    name: str
    estimate: Estimate


@dataclass(frozen=True)
class Statistics:
    """Everything about a sweep. `adjusted`: (model, variant, score) -> two-sided p-value, where it exists, of the
    difference from the baseline, with Holm's adjustment over all models and variants of the sweep.

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
    """The variant that the others are compared with: `wanted` if it is among `variants`, or else DPPO as in the paper's
    ablations, or else the first variant.
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
        aggregates=_aggregates(board, runs, np.random.default_rng(_SEED), resamples),
        overall=_overall(board, runs, cells),
        rankings=rankings(board, runs),
    )


def _cell(
    board: Scoreboard, runs: FinishedRuns, model: str, variant: str, baseline: Baseline
) -> CellStatistics:
    against = baseline.of(variant)
    scores, differences = {}, {}
    for score in Score:
        if values := list(by_seed(runs, model, variant, score).values()):
            scores[score] = mean_of(values)
        if against is not None and (lead := difference(runs, model, variant, against, score)) is not None:
            differences[score] = lead
    finished = [run for run in board.runs_of(model, variant) if run.is_result]
    return CellStatistics(
        model=model,
        variant=variant,
        runs=len(finished),
        collapsed=sum(run.state is SelectionState.COLLAPSE for run in finished),
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
    leads: dict[str, list[Difference]] = defaultdict(list)
    for cell in cells:
        if lead := cell.differences.get(Score.FINAL):
            leads[cell.variant].append(lead)
    whole = (of_variant for of_variant in leads.values() if len(of_variant) == len(board.models))
    return tuple(mean_difference(of_variant, runs) for of_variant in whole)
