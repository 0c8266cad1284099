"""Statistics from each problem's outcome: errors of an evaluation, pairs of methods, pass@k and maj@k.

The standard error of an evaluation is that of Miller (2024), "Adding Error Bars to Evals" (arXiv 2411.00640): problems
are the independent units, and the answers to a problem are a cluster. Let s_i be the share of right answers among k
answers to problem i, over n problems, and s the mean of the s_i:

    other problems (clustered)     sum (s_i - s)^2 / (n (n - 1))
    other answers to these         sum s_i (1 - s_i) / (k - 1) / n^2

Both are unbiased; the second is the part of the first that more answers to each problem would remove. Benchmarks are
strata: the variances of their means are added and divided by the square of their number.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import multimode

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import comb, stdtridf

from cppo_lab.analysis.reader import RunAnswers
from cppo_lab.analysis.scoring import RunScore, Scoreboard
from cppo_lab.analysis.statistics.collapse import wilson
from cppo_lab.analysis.statistics.estimate import (
    LEVEL,
    Estimate,
    FloatArray,
    Interval,
    combine,
    estimate,
    holm,
    jackknife_error,
    mean_of,
    t_quantile,
)
from cppo_lab.analysis.statistics.paired import Difference
from cppo_lab.analysis.statistics.values import late_weights
from cppo_lab.answers.outcomes import Outcomes
from cppo_lab.answers.texts import VALIDATION, Sample, Texts
from cppo_lab.data.answers import value

CountArray = NDArray[np.integer]


def _strata_of(benchmark_of: CountArray) -> list[NDArray[np.intp]]:
    """The problems of each benchmark, as indices, from the benchmark of each problem [P]."""
    return [np.flatnonzero(benchmark_of == number) for number in np.unique(benchmark_of)]


def _within_problem(right: CountArray, samples: int) -> FloatArray:
    """Unbiased estimate of p_i (1 - p_i) for each problem, the variance of a single answer; `samples` is at least 2."""
    shares = np.asarray(right, dtype=np.float64) / samples
    return shares * (1 - shares) * samples / (samples - 1)


def evaluation_variance(
    right: CountArray, samples: int, benchmark_of: CountArray
) -> tuple[float | None, float | None]:
    """The variance of the unweighted mean over benchmarks over other answers to the same problems, None for one answer
    per problem; and rho, the share of p (1 - p) that lies between problems, None also if nothing varies. `right` [P]:
    right answers of `samples`; `benchmark_of` [P]: each problem's benchmark number.
    """
    if samples < 2:
        return None, None
    shares, inside = np.asarray(right, dtype=np.float64) / samples, _within_problem(right, samples)
    strata = _strata_of(benchmark_of)
    parts = [(float(inside[part].mean()), float(np.var(shares[part])), len(part)) for part in strata]
    answers = math.fsum(mean / (size * samples) for mean, _, size in parts) / len(parts) ** 2
    # The observed variance of the s_i exceeds that of the p_i by p_i (1 - p_i) / k; means over benchmarks.
    spread = math.fsum(observed - mean / samples for mean, observed, _ in parts)
    total = spread + math.fsum(mean for mean, *_ in parts)
    return answers, min(1.0, max(0.0, spread / total)) if total > 0 else None


def edge_share(shares: Sequence[float], answers: Sequence[int]) -> Interval | None:
    """The share of right answers with Wilson's 95 % interval if no answer is right, or all are; None otherwise.

    The standard error of such a share is 0, as if more answers could not change it. `shares`, and numbers of `answers`:
    those of the benchmarks. Their unweighted mean has the effective sample size of `collapse.newcombe`.
    """
    value = shares[0] if shares else 0.5
    if value not in (0, 1) or any(share != value for share in shares):
        return None
    together = round(len(answers) ** 2 / math.fsum(1 / count for count in answers))
    return wilson(round(value * together), together)


def evaluation_edge(shares: FloatArray, samples: int, benchmark_of: CountArray) -> Interval | None:
    """`edge_share` of the shares of right answers to each problem [P]."""
    strata = _strata_of(benchmark_of)
    return edge_share(
        [float(np.round(shares[stratum].mean(), 12)) for stratum in strata],
        [len(stratum) * samples for stratum in strata],
    )


def clustered_mean(shares: FloatArray, benchmark_of: CountArray) -> Estimate:
    """The mean over benchmarks of shares or differences [P], with its error over other problems (t, Satterthwaite).

    `n` is the number of problems. There is no interval if a benchmark has one problem or nothing varies.
    """
    strata = _strata_of(benchmark_of)
    parts = [mean_of(shares[stratum].tolist()) for stratum in strata]
    return combine(parts, [1 / len(strata)] * len(strata))


# The problems that separate two methods, and the performance profile of a method over problems.
#
# For each problem, Fisher's exact test compares the right answers of the two methods, over all runs of each. Holm's
# adjustment over the problems bounds the probability of any false finding by the level. The result is conditional on
# these trained runs. It extends to other seeds only if every run of one method is above every run of the other, and
# with few seeds even that happens by chance (with three seeds each, for a tenth of the problems of equal methods).
#
# Answers drawn with repeated seeds (below) make the test conservative, because the shared part of two
# evaluations cancels in their difference. This also holds with several seeds per method, since both methods share the
# draws.


def separations(ours: CountArray, theirs: CountArray, samples: int) -> pd.DataFrame:
    """A row for each problem, from the right answers [S, P] (of `samples`) of each run of both methods: their shares
    `ours` and `theirs`, Fisher's two-sided `p`, the same after Holm's adjustment over the problems (`adjusted`),
    whether that is significant (`separates`), and whether every run of one method is above every run of the other
    (`every_run`).
    """
    n, m = (samples * len(runs) for runs in (ours, theirs))
    a, b = (runs.sum(axis=0, dtype=np.int64) for runs in (ours, theirs))
    p = [_fisher(*table) for table in zip(a, n - a, b, m - b, strict=True)]
    adjusted = np.array(holm(p))
    apart = (ours.min(axis=0) > theirs.max(axis=0)) | (theirs.min(axis=0) > ours.max(axis=0))
    columns = {"ours": a / n, "theirs": b / m, "p": p, "adjusted": adjusted}
    return pd.DataFrame({**columns, "separates": adjusted <= 1 - LEVEL, "every_run": apart})


@cache
def _fisher(a: int, b: int, c: int, d: int) -> float:
    """Fisher's exact two-sided p-value: the probability of the tables with these margins that are no likelier than a, b
    over c, d. As `scipy.stats.fisher_exact`, whose import would take half a second of each report.
    """
    ways = [math.comb(a + b, first) * math.comb(c + d, a + c - first) for first in range(a + c + 1)]
    return sum(way for way in ways if way <= ways[a]) / sum(ways)


def solved_by_one(ours: CountArray, theirs: CountArray, samples: int) -> tuple[int, ...]:
    """Indices of the problems that a run of ours solved (at least half of its answers right at some validation) and
    that no run of theirs ever answered right. `ours`, `theirs`: right answers [validations of all runs, P] (of
    `samples`).
    """
    alone = (2 * ours.max(axis=0) >= samples) & (theirs.max(axis=0) == 0)
    return tuple(np.flatnonzero(alone).tolist())


def pass_at_k(right: CountArray, samples: int, k: int) -> FloatArray:
    """The probability, for each problem [P], that at least one of `k` answers is right; 1 <= `k` <= `samples`.

    The share of the k-subsets of all answers that hold a right one, which is unbiased for k fresh answers (Chen et al.
    2021, arXiv 2107.03374).
    """
    chances: FloatArray = 1 - comb(samples - np.asarray(right, dtype=np.float64), k) / comb(samples, k)
    return chances


# The difference of two methods, paired by problem.
#
# Both methods answer the same problems, and problems that are hard for either are mostly hard for both. So the standard
# error of the difference over other problems is that of the mean of d_i = s_i(ours) - s_i(theirs), far below that of
# two separate evaluations (Miller 2024, section 4.2). It is conditional on these trained runs. For other seeds and
# other problems at once, seeds and problems are crossed random effects: their variances add up, minus the interaction
# of seed and problem, which both contain:
#
#     var = var over seeds + var over problems - var of the interaction
#
# With few seeds the interaction may be overestimated, so the result is never taken below either part. The interval adds
# the squared half-widths of the parts, each with its Student's t. Satterthwaite's degrees of freedom would trust
# three seeds too much whenever they happen to agree (91 % coverage instead of 95).


def problem_difference(
    ours: FloatArray, theirs: FloatArray, benchmark_of: CountArray, seeds: Estimate, paired: bool
) -> tuple[Estimate, Estimate, float | None]:
    """The difference of two methods from their shares by run and problem, [S, P] each: with its standard error over
    other problems, for these runs; with its error over other seeds and other problems, without an interval if the
    difference over `seeds` has none; and the correlation of the two methods' shares by problem, None if either does not
    vary: near 1, pairing removes most of the error. `paired` says that row r of both has the same seed.
    """
    mine, other = ours.mean(axis=0), theirs.mean(axis=0)
    problems = clustered_mean(mine - other, benchmark_of)
    sides = [ours - theirs] if paired else [ours, theirs]
    both = Estimate(problems.value, seeds.n, unknown=seeds.unknown or problems.unknown)
    if not (
        seeds.error is None or problems.error is None or seeds.degrees is None or problems.degrees is None
    ):
        # The part of the variance over problems that is theirs alone, without the interaction with runs.
        interaction = sum(_interaction(side, benchmark_of) for side in sides)
        alone = max(problems.error**2 - interaction, 0.0)
        error = math.sqrt(max(seeds.error**2 + alone, problems.error**2))
        half = math.hypot(
            t_quantile(seeds.degrees) * seeds.error, t_quantile(problems.degrees) * math.sqrt(alone)
        )
        # The degrees of freedom, between both, at which t has the quantile half / error.
        middle = np.median([stdtridf((1 + LEVEL) / 2, half / error), seeds.degrees, problems.degrees])
        both = estimate(problems.value, seeds.n, error, float(middle))
    varied = mine.std() > 0 and other.std() > 0
    correlation = float(np.corrcoef(mine, other)[0, 1]) if varied else None
    return problems, both, correlation


def _interaction(values: FloatArray, benchmark_of: CountArray) -> float:
    """Variance of the mean over benchmarks that comes from the interaction of run and problem: mean square / (S P)."""
    variances = []
    for stratum in _strata_of(benchmark_of):
        part = values[:, stratum]
        residuals = part - part.mean(axis=0) - part.mean(axis=1, keepdims=True) + part.mean()
        degrees = (len(part) - 1) * (len(stratum) - 1)
        variances.append(float((residuals**2).sum()) / degrees / part.size)
    return math.fsum(variances) / len(variances) ** 2


# Answers drawn with repeated sampling seeds: the dependence between the errors of two evaluations of the same
# problems.
#
# Both cores draw the answers of every validation with the same sampling seeds, whatever the step, training seed or
# method (the embedded core from one generator, verl's with a seed per request). So answer j to problem i shares its
# random numbers between evaluations. The closer the policies are, the more often such answers are right or wrong
# together; equal policies give equal answers. Let phi be their correlation, given both probabilities of being right:
#
#     difference of two evaluations        var(a) + var(b) - 2 phi sd(a) sd(b)       less than for fresh answers
#     mean of L evaluations (or of runs)   (1 - phi) sum var / L^2 + phi (sum sd / L)^2    more than for fresh answers
#
# Comparisons use both: assuming phi = 0 makes their standard errors too large, or too small where means of several
# evaluations have unequal levels. The second concerns the level of a score, too: more steps and more seeds remove only
# the share 1 - phi of the sampling error, and the variance over seeds does not contain the rest.

Graded = NDArray[np.bool_]
Spreads = Sequence[float]  # of evaluations: weight, which sum to 1, times standard error over other answers


def draw_correlation(ours: Graded, theirs: Graded) -> Estimate | None:
    """phi from two evaluations graded answer by answer, [P, k] each with k > 1: the covariance of answers with the same
    draw within problems, over the variance within problems. None if no problem varies in both.
    """
    a, b = (x.astype(np.float64) - x.mean(axis=1, keepdims=True) for x in (ours, theirs))
    together = (a * b).sum(axis=1)
    return _ratio(together, ((a * a).sum(axis=1) + (b * b).sum(axis=1)) / 2)


def least_correlation(right: CountArray, samples: int) -> Estimate | None:
    """A lower bound of phi for neighbouring evaluations from counts alone, `right` [V, P] of `samples` > 1.

    Two evaluations with independent answers differ by at least the two within-problem variances. Counts that differ by
    less share their draws: phi >= 1 - E (R_a - R_b)^2 / (k (w_a + w_b)). Movement of the policy in between lowers the
    bound.
    """
    counts = np.asarray(right, dtype=np.float64)
    if samples < 2 or len(counts) < 2:
        return None
    inside = _within_problem(right, samples) * samples
    fresh = (inside[1:] + inside[:-1]).sum(axis=0)
    return _ratio(fresh - (np.diff(counts, axis=0) ** 2).sum(axis=0), fresh)


def _ratio(above: FloatArray, below: FloatArray) -> Estimate | None:
    """sum(above) / sum(below) over problems, with its jackknife standard error; without if only one problem varies."""
    varied = below > 0
    above, below, n = above[varied], below[varied], int(varied.sum())
    if not n:
        return None
    value = float(above.sum() / below.sum())
    if n == 1:
        return Estimate(value, 1)
    without = (above.sum() - above) / (below.sum() - below)
    return Estimate(value, n, jackknife_error(without))


def mean_variance(spreads: Spreads, correlation: float = 0.0) -> float:
    """Variance over other answers of a weighted mean of evaluations of the same problems, with correlation phi between
    any two.
    """
    apart = math.fsum(spread**2 for spread in spreads)
    return (1 - correlation) * apart + correlation * math.fsum(spreads) ** 2


def difference_variance(ours: Spreads, theirs: Spreads, correlation: float = 0.0) -> float:
    """Variance over other answers of the difference of two such means."""
    shared = 2 * correlation * math.fsum(ours) * math.fsum(theirs)
    return max(0.0, mean_variance(ours, correlation) + mean_variance(theirs, correlation) - shared)


# Per-problem statistics of a scored sweep, from the runs that recorded each problem's outcome (`answers/outcomes.py`).
#
# A model is left out if any of its finished runs recorded no outcomes, or if two runs were validated on different
# problems or with different numbers of answers, since they could not be paired.

THRESHOLDS = (0.25, 0.5, 0.75, 1.0)  # of the performance profile


@dataclass(frozen=True, eq=False)
class CellProblems:
    """One (model, variant): S finished runs on P problems with k answers each.

    mlflow_ids: those of the runs. final [S, P]: each run's shares by problem, averaged like the score `final`. last [S,
    P]: right answers at the last validation in the window. ever [V, P]: right answers at all validations in the window,
    of all runs. draws: a lower bound of the correlation of neighbouring validations of the first run
    (`least_correlation`). spreads: of the evaluations behind the final mean, of all runs; empty with one answer per
    problem.
    """

    model: str
    variant: str
    seeds: tuple[int | None, ...]
    mlflow_ids: tuple[str, ...]
    samples: int
    problems: tuple[str, ...]
    benchmark_of: CountArray
    final: FloatArray
    last: CountArray
    ever: CountArray
    draws: Estimate | None
    spreads: Spreads

    @property
    def over_problems(self) -> Estimate:
        """The final mean with its error over other problems, for these runs."""
        return clustered_mean(self.final.mean(axis=0), self.benchmark_of)

    @property
    def edge(self) -> Interval | None:
        """`edge_share` of the final mean, as from a single evaluation, because evaluations may repeat their draws."""
        return evaluation_edge(self.final.mean(axis=0), self.samples, self.benchmark_of)

    @property
    def between(self) -> float | None:
        """rho at the last validation, averaged over runs; None if no run shows it."""
        variances = (evaluation_variance(run, self.samples, self.benchmark_of) for run in self.last)
        shares = [between for _, between in variances if between is not None]
        return sum(shares) / len(shares) if shares else None

    def pass_at(self, k: int) -> Estimate:
        """pass@k at the last validation, averaged over runs, with its standard error over other problems."""
        chances = np.mean([pass_at_k(run, self.samples, k) for run in self.last], axis=0)
        return clustered_mean(chances, self.benchmark_of)

    @property
    def profile(self) -> tuple[Estimate, ...]:
        """For each of THRESHOLDS, the share of problems with at least that share of right answers at the last
        validation, averaged over runs, with its standard error over other problems.
        """
        shares = self.last / self.samples
        above = ((shares >= threshold - 1e-9).mean(axis=0) for threshold in THRESHOLDS)
        return tuple(clustered_mean(of_threshold, self.benchmark_of) for of_threshold in above)


@dataclass(frozen=True)
class PairedProblems:
    """`lead`: of a variant over the baseline on a model; `problems`, `both` and `correlation`: see
    `problem_difference`. `separated`: see `separations`. `ours_alone`, `theirs_alone`: the indices of problems that
    only the variant, or only the baseline, solved (`solved_by_one`).
    """

    lead: Difference
    problems: Estimate
    both: Estimate
    correlation: float | None
    separated: pd.DataFrame
    ours_alone: tuple[int, ...]
    theirs_alone: tuple[int, ...]


def cell_problems(board: Scoreboard) -> dict[tuple[str, str], CellProblems]:
    """(model, variant) -> the cell, of those whose finished runs all recorded outcomes, on the same problems as the
    other cells of their model.
    """
    cells = {}
    for model in board.models:
        finished = {
            variant: [run for run in board.runs_of(model, variant) if run.is_result]
            for variant in board.variants
        }
        recorded = [board.data.outcomes.get(run.mlflow_id) for runs in finished.values() for run in runs]
        problems = {
            outcomes.key if outcomes is not None and len(outcomes.steps) else None for outcomes in recorded
        }
        if len(problems) == 1 and None not in problems:
            for variant, runs in finished.items():
                if runs and (cell := _cell(board, runs)):
                    cells[model, variant] = cell
    return cells


def paired_problems(
    cells: Mapping[tuple[str, str], CellProblems], differences: Sequence[Difference]
) -> tuple[PairedProblems, ...]:
    """The per-problem comparison for each difference of final means (over seeds) whose two cells are in `cells`."""
    pairs = []
    for lead in differences:
        ours, theirs = (cells.get((lead.model, name)) for name in (lead.variant, lead.against))
        if ours is None or theirs is None:
            continue
        mine, other = ours.final, theirs.final
        if lead.paired:  # the common seeds, in the order of ours
            common = [seed for seed in ours.seeds if seed in theirs.seeds]
            mine, other = (side.final[[*map(side.seeds.index, common)]] for side in (ours, theirs))
        pair = PairedProblems(
            lead,
            *problem_difference(mine, other, ours.benchmark_of, lead.estimate, lead.paired),
            separations(ours.last, theirs.last, ours.samples),
            solved_by_one(ours.ever, theirs.ever, ours.samples),
            solved_by_one(theirs.ever, ours.ever, ours.samples),
        )
        pairs.append(pair)
    return tuple(pairs)


_RIGHT = "right"


def majority_score(
    board: Scoreboard, cell: CellProblems, answers: Mapping[str, RunAnswers]
) -> Estimate | None:
    """maj@k at the last validation, of all k answers: the share of problems whose most frequent answer is right, where
    an m-way tie counts 1 / m; averaged over runs, with its standard error over other problems. None unless the texts of
    all answers to all problems were recorded there.
    """
    runs = {run.mlflow_id: run for run in board.runs_of(cell.model, cell.variant)}
    chances = []
    for mlflow_id in cell.mlflow_ids:
        step = int(_in_window(runs[mlflow_id], board.data.outcomes[mlflow_id]).steps[-1])
        of_steps = answers[mlflow_id].texts if mlflow_id in answers else ()
        drawn = next((_by_draw(texts) for texts in of_steps if texts.step == step), {})
        of_run = []
        for name in cell.problems:
            # Answers of equal value agree, whatever their spelling, as all right ones do. Missing answers never agree
            # with each other.
            votes = [
                _RIGHT if sample.right else draw if sample.answer is None else f"={value(sample.answer)}"
                for draw, sample in drawn.get(name, {}).items()
            ]
            if len(votes) != cell.samples:
                return None
            leaders = multimode(votes)
            of_run.append((_RIGHT in leaders) / len(leaders))
        chances.append(of_run)
    return clustered_mean(np.mean(chances, axis=0), cell.benchmark_of)


def _by_draw(texts: Texts) -> dict[str, dict[int, Sample]]:
    """Problem -> draw -> the answer of the validation."""
    drawn: dict[str, dict[int, Sample]] = defaultdict(dict)
    for sample in texts.samples:
        if sample.kind == VALIDATION:
            drawn[sample.problem][sample.draw] = sample
    return drawn


def _in_window(run: RunScore, outcomes: Outcomes) -> Outcomes:
    return outcomes if run.t_stop is None else outcomes.until(run.t_stop)


def kept_draws(answers: RunAnswers, samples: int) -> Estimate | None:
    """phi between neighbouring validations with recorded texts, from the problems for which both have all `samples`
    answers; None without two such validations.
    """
    pairs = [
        (before[problem], after[problem])
        for before, after in pairwise(_graded(texts, samples) for texts in answers.texts)
        for problem in sorted(before.keys() & after.keys())
    ]
    return draw_correlation(*map(np.array, zip(*pairs, strict=True))) if pairs and samples > 1 else None


def _graded(texts: Texts, samples: int) -> dict[str, list[bool]]:
    """Problem -> the grades of its answers by draw, for the problems with all answers."""
    return {
        problem: [drawn[draw].right for draw in range(samples)]
        for problem, drawn in _by_draw(texts).items()
        if drawn.keys() == set(range(samples))
    }


def _cell(board: Scoreboard, runs: Sequence[RunScore]) -> CellProblems | None:
    final, inside, spreads = [], [], []
    first = board.data.outcomes[runs[0].mlflow_id]
    for run in runs:
        outcomes = _in_window(run, board.data.outcomes[run.mlflow_id])
        weights = late_weights(board, run)
        rows = dict(zip(outcomes.steps.tolist(), outcomes.right, strict=True))
        if not weights or not weights.keys() <= rows.keys():
            return None  # it has scores at validations without outcomes
        total = sum(weight * rows[step].astype(np.float64) for step, weight in weights.items())
        final.append(total / outcomes.samples)
        inside.append(outcomes.right)
        for step, weight in weights.items():
            variance, _ = evaluation_variance(rows[step], outcomes.samples, outcomes.benchmark_of)
            if variance is not None:
                spreads.append(weight / len(runs) * math.sqrt(variance))
    return CellProblems(
        model=runs[0].model,
        variant=runs[0].variant,
        seeds=tuple(run.seed for run in runs),
        mlflow_ids=tuple(run.mlflow_id for run in runs),
        samples=first.samples,
        problems=first.problems,
        benchmark_of=first.benchmark_of,
        final=np.array(final),
        last=np.array([right[-1] for right in inside]),
        ever=np.concatenate(inside),
        draws=least_correlation(inside[0], first.samples),
        spreads=spreads,
    )
