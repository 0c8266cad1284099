"""The sampling error of Avg@k: the error of one evaluation due to its finite numbers of answers and problems.

The metrics contain only the share p of right answers, over n problems with k answers each. Let p_i be the probability
that an answer to problem i is right, and rho = var(p_i) / (p (1 - p)) the share of the variance that lies between
problems:

    other answers to the same problems:      p (1 - p) (1 - rho) / (n k)
    other answers to other problems as hard: p (1 - p) (rho + (1 - rho) / k) / n

If a run recorded each problem's outcome, rho can be estimated and both errors are known (`problems`). Otherwise only
p is known: rho = 0 gives an upper bound of the first, rho = 1 of the second, p (1 - p) / n.

Two runs are compared on the same problems. Given these problems, the first variances add up if the answers are drawn
independently; with repeated draws (`problems`) their sum is an upper bound. The problems' difficulty cancels as
far as the runs share it, which `problems` measures and p alone does not show.

The spread over seeds already contains the part of this error that is drawn separately for each run, so it must not be
added to an interval over seeds. The sampling error describes a single run, and shows how much of the spread over seeds
more answers could remove.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.selection import RunScore
from cppo_lab.analysis.statistics.estimate import LEVEL, Share
from cppo_lab.analysis.statistics.problems import (
    cell_problems,
    edge_share,
    evaluation_edge,
    evaluation_variance,
    mean_variance,
)
from cppo_lab.analysis.statistics.values import RunValues, run_values

AIME_PROBLEMS = 30
_MADE_PROBLEMS = "data.validation_problems"  # the logged configuration key of a run on generated problems


@dataclass(frozen=True)
class SamplingError:
    """Standard error of one evaluation (a fraction) over other `answers` to the same problems. It is an upper bound
    unless `known` from each problem's outcome. `edge`: of an evaluation without a right answer or without a wrong one,
    whose `answers` is 0, the share with Wilson's 95 % limits (`edge_share`); of a cell, if all its runs are like that.
    """

    answers: float
    known: bool = False
    edge: Share | None = None


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
    outcomes, step = board.data.outcomes.get(run.mlflow_id or ""), run.choice.step
    if outcomes is not None and step in outcomes.steps:
        right = outcomes.right[int(np.searchsorted(outcomes.steps, step or 0))]
        variance = evaluation_variance(right, outcomes.samples, outcomes.benchmark_of).answers
        if variance is not None:
            edge = evaluation_edge(right / outcomes.samples, outcomes.samples, outcomes.benchmark_of)
            return SamplingError(math.sqrt(variance), True, edge)
    scores, samples = run.choice.components, board.curves.samples
    made = board.data.params.get(run.mlflow_id or "", {}).get(_MADE_PROBLEMS, "")
    problems = int(made) if made.isdecimal() else 0
    if not problems and all(name.lower().startswith("aime") for name in scores):
        problems = AIME_PROBLEMS
    if not scores or not problems or samples < 1:
        return None
    return sampling_error(list(scores.values()), problems, samples)


def cell_sampling_error(board: Scoreboard, runs: Sequence[RunScore]) -> SamplingError | None:
    """The sampling error of one evaluation of a typical run of a cell (root mean square); None if it is unknown for any
    run.
    """
    errors = [error for run in runs if (error := run_sampling_error(board, run)) is not None]
    if not errors or len(errors) < len(runs):
        return None
    edges = [error.edge for error in errors if error.edge is not None]
    alike = len(edges) == len(errors) and len({edge.value for edge in edges}) == 1
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
    """The noise of the final means of two or more cells of one model; None if nothing shows it: each cell has one run,
    without the outcomes of its evaluations.
    """
    finished = run_values(board)
    runs = [run for variant in variants for run in finished.cells.get((model, variant), ())]
    if len({run.variant for run in runs}) < 2:
        return None
    residual = _residual(runs, all(run.paired for run in runs)) or _residual(runs, False)
    if residual is not None:
        variance, degrees = residual
        counts = [len(finished.cells[model, variant]) for variant in dict.fromkeys(r.variant for r in runs)]
        error = math.sqrt(2 * variance * math.fsum(1 / count for count in counts) / len(counts))
        return _noise_of(error, degrees, len(counts), True)
    # The variance over other answers of each cell's final mean, as for fresh answers.
    names = {run.variant for run in runs}
    cells = [cell for cell in cell_problems(board) if cell.model == model and cell.variant in names]
    sampled = [mean_variance(cell.evaluations) for cell in cells if cell.evaluations]
    if len(sampled) < len(names):
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
