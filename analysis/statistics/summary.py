"""All statistics of a scored sweep, for tables and pages: the sampling error of an evaluation, the noise of a map of
cells, the order of the methods, and scores and differences with their intervals.

No interval is derived from the evaluations of a single run: their scatter shows the noise of its curve and nothing
about other seeds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from cppo_lab.analysis.inputs import USUAL, Baseline, integer
from cppo_lab.analysis.scoring import RunScore, Scoreboard
from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    LEVEL,
    RESAMPLES,
    Estimate,
    Interval,
    bootstrap,
    mean_of,
)
from cppo_lab.analysis.statistics.paired import Difference, difference, mean_difference, with_holm
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
        variance, _ = evaluation_variance(right, outcomes.samples, outcomes.benchmark_of)
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


# The noise of a map of cells: how far apart the final means of equally good cells are.
#
# The span of a map is the largest of the differences of its cells, which exceeds the standard error of a single
# difference almost always: among nine equal cells it is about twice as large. So the span is compared with Student's
# quantile at Bonferroni's level over all pairs of cells.

_LARGE = 1e9  # degrees of freedom of a variance that is known, where Student's t is normal
_ROUNDING = 1e-9  # fractions closer than this differ by rounding alone


@dataclass(frozen=True)
class MapNoise:
    """`error`: the largest standard error of a difference of two cells (a fraction). `reach`: the span that a map of
    equally good cells exceeds in at most 5 % of cases. `seeds`: whether they are from the spread over seeds; otherwise
    they are from the evaluations' sampling error alone, and the noise of seeds comes on top.
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
    # Where cells have different seeds, starts are noise of their differences.
    whole = len(counts) * len({run.seed for run in runs}) == len(runs)
    residual = _residual(runs, whole and all(run.paired for run in runs)) or _residual(runs, False)
    variance, degrees = residual or (0.0, _LARGE)
    variances = [variance / count for count in counts.values()]  # of each cell's final mean
    if residual is None:  # over other answers, as for fresh answers
        cells = cell_problems(board)
        of_map = [cell for pair, cell in cells.items() if pair[0] == model and pair[1] in counts]
        variances = [mean_variance(cell.spreads) for cell in of_map if cell.spreads]
        if len(variances) < len(counts):
            return None
    error = math.sqrt(math.fsum(sorted(variances)[-2:]))  # no difference has a larger one
    if error < _ROUNDING:
        error = 0.0
    pairs = len(counts) * (len(counts) - 1) / 2
    reach = float(stdtrit(degrees, 1 - (1 - LEVEL) / (2 * pairs))) * error
    return MapNoise(error, reach, residual is not None)


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


# The order of the methods on each model by each score, and how the margins compare with noise.
#
# This also works with one run per method, as in the paper. There is then no interval over seeds; but a margin below the
# noise of the two compared curves is not even a property of these runs.


def rankings(board: Scoreboard, runs: FinishedRuns) -> dict[tuple[str, Score], pd.DataFrame]:
    """(model, score) -> the ranking, for each score that any variant has on the model: a row for each variant, the
    highest mean over seeds first.

    `rank`: 1 + the number of strictly higher means. `margin`: distance to the next lower variant (NaN: the last).
    `noise`: standard error of that margin from the scatter of single evaluations alone, assumed independent (NaN:
    unknown for any of the runs). It is a lower bound: the spread over seeds comes on top, and with BEST and CORRECTED
    also the noise of selecting a step.
    """
    every = {}
    for model, score in product(board.models, Score):
        rows = {}
        for variant in board.variants:
            if values := by_seed(runs, model, variant, score).values():
                of_cell = cell_runs(runs, model, variant)
                noises = np.array([run.step_noise for run in of_cell], dtype=np.float64)
                counts = [
                    {Score.FINAL: run.late, Score.AREA: run.evaluations}.get(score, 1) for run in of_cell
                ]
                rows[variant] = fmean(values), np.sqrt((noises**2 / counts).sum()) / len(of_cell)
        if rows:
            table = pd.DataFrame(rows, ["mean", "noise"]).T.sort_values(
                "mean", ascending=False, kind="stable"
            )
            below = table.shift(-1)
            columns = {
                "rank": table["mean"].rank(method="min", ascending=False),
                "margin": table["mean"] - below["mean"],
                "noise": np.hypot(table["noise"], below["noise"]),
            }
            every[model, score] = pd.DataFrame(columns)
    return every


# All statistics of a scored sweep, for tables and pages.

_SEED = 20260610  # of the bootstrap, so that the same runs give the same intervals


@dataclass(frozen=True)
class CellStatistics:
    """One (model, variant) over its seeds. A score that no run has is in neither `scores` nor `differences`.

    `differences`: minus the baseline. `sampling`: the standard error of a run's evaluation. The spread between runs
    contains it, so the intervals include it already.
    """

    runs: int
    collapsed: int
    sampling: SamplingError | None
    scores: dict[Score, Estimate]
    differences: dict[Score, Difference]


@dataclass(frozen=True)
class Statistics:
    """Everything about a sweep. `cells`: by (model, variant). `adjusted`: (model, variant, score) -> two-sided p-value,
    where it exists, of the difference from the baseline, with Holm's adjustment over all models and variants of the
    sweep.

    `aggregates` (variant, score and one of `estimate.AGGREGATES` -> it, with its bootstrap interval) and `overall`
    (mean differences of final means over models) cover the variants with finished runs on every model.
    """

    baseline: Baseline
    cells: dict[tuple[str, str], CellStatistics]
    adjusted: dict[tuple[str, str, Score], float]
    aggregates: dict[tuple[str, Score, str], Estimate]
    overall: tuple[Difference, ...]
    rankings: dict[tuple[str, Score], pd.DataFrame]

    @property
    def final(self) -> list[Difference]:
        """The differences of final means, of the cells that have one."""
        return [
            cell.differences[Score.FINAL] for cell in self.cells.values() if Score.FINAL in cell.differences
        ]


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
    cells, leads = {}, defaultdict[str, list[Difference]](list)
    for pair, cell in board.cells.items():
        against, scores, differences = baseline.of(pair[1]), {}, {}
        for score in Score:
            if values := list(by_seed(runs, *pair, score).values()):
                scores[score] = mean_of(values)
            if against is not None and (lead := difference(runs, *pair, against, score)) is not None:
                differences[score] = lead
        if Score.FINAL in differences:
            leads[pair[1]].append(differences[Score.FINAL])
        finished = [run for run in board.runs_of(*pair) if run.is_result]
        # That of a typical run (root mean square); unknown if it is for any, or if some have only right answers and all
        # others only wrong ones.
        errors = [error for run in finished if (error := run_sampling_error(board, run)) is not None]
        edges = [error.edge for error in errors if error.edge is not None]
        sampling, at_edge = None, len(edges) == len(errors)
        if (
            errors
            and len(errors) == len(finished)
            and not (at_edge and len({edge.value for edge in edges}) > 1)
        ):
            answers = math.sqrt(math.fsum(error.answers**2 for error in errors) / len(errors))
            widest = max(edges, key=lambda edge: (edge.high or 0.0) - (edge.low or 0.0)) if at_edge else None
            sampling = SamplingError(answers, all(error.known for error in errors), widest)
        cells[pair] = CellStatistics(len(finished), cell.collapsed, sampling, scores, differences)
    adjusted: dict[tuple[str, str, Score], float] = {}
    for score in Score:
        family = [each.differences[score] for each in cells.values() if score in each.differences]
        adjusted |= {(lead.model, lead.variant, score): p for lead, p in with_holm(family) if p is not None}
    aggregates, rng = {}, np.random.default_rng(_SEED)
    for variant, score in product(board.variants, Score):
        strata = [np.array(list(by_seed(runs, model, variant, score).values())) for model in board.models]
        if all(map(len, strata)):
            for name, statistic in AGGREGATES.items():
                aggregates[variant, score, name] = bootstrap(strata, statistic, rng, resamples)
    whole = (of_variant for of_variant in leads.values() if len(of_variant) == len(board.models))
    return Statistics(
        baseline=baseline,
        cells=cells,
        adjusted=adjusted,
        aggregates=aggregates,
        overall=tuple(mean_difference(of_variant, runs) for of_variant in whole),
        rankings=rankings(board, runs),
    )
