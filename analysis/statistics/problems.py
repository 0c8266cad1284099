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
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import comb

import numpy as np
from numpy.typing import NDArray

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
from cppo_lab.answers.texts import VALIDATION, Texts
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


@dataclass(frozen=True)
class Separation:
    """One problem (its index) under two methods: their shares of right answers, Fisher's two-sided p-value, the same
    after Holm's adjustment over the problems, and whether every run of one method is above every run of the other.
    """

    problem: int
    ours: float
    theirs: float
    p: float
    adjusted: float
    every_run: bool

    @property
    def separates(self) -> bool:
        """Whether the adjusted test is significant."""
        return self.adjusted <= 1 - LEVEL


def separations(ours: CountArray, theirs: CountArray, samples: int) -> tuple[Separation, ...]:
    """The separation of every problem, in order, from the right answers [S, P] (of `samples`) of each run of both
    methods.
    """
    n, m = (samples * len(runs) for runs in (ours, theirs))
    right = [runs.sum(axis=0, dtype=np.int64).tolist() for runs in (ours, theirs)]
    p_values = [_fisher(a, n, b, m) for a, b in zip(*right, strict=True)]
    apart = (ours.min(axis=0) > theirs.max(axis=0)) | (theirs.min(axis=0) > ours.max(axis=0))
    rows = zip(*right, p_values, holm(p_values), apart.tolist(), strict=True)
    return tuple(
        Separation(index, a / n, b / m, p, adjusted, every)
        for index, (a, b, p, adjusted, every) in enumerate(rows)
    )


@cache
def _fisher(right_a: int, answers_a: int, right_b: int, answers_b: int) -> float:
    """Fisher's exact two-sided p-value: the total probability of the tables with these margins that are no likelier
    than the observed table.
    """
    right = right_a + right_b
    ways = [
        comb(answers_a, count) * comb(answers_b, right - count)
        for count in range(max(0, right - answers_b), min(answers_a, right) + 1)
    ]
    seen = comb(answers_a, right_a) * comb(answers_b, right_b)
    return sum(way for way in ways if way <= seen) / sum(ways)


def solved_by_one(ours: CountArray, theirs: CountArray, samples: int) -> tuple[int, ...]:
    """Indices of the problems that a run of ours solved (at least half of its answers right at some validation) and
    that no run of theirs ever answered right. `ours`, `theirs`: right answers [validations of all runs, P] (of
    `samples`).
    """
    alone = (2 * ours.max(axis=0) >= samples) & (theirs.max(axis=0) == 0)
    return tuple(np.flatnonzero(alone).tolist())


# Unbiased pass@k and maj@k of a problem from n answers to it, for every k up to n.
#
# pass@k (Chen et al. 2021, arXiv 2107.03374): the share of the k-subsets of the n answers that hold a right answer.
# maj@k: the share of the k-subsets whose most frequent answer is right, with an m-way tie counting 1 / m; it needs the
# extracted answers, not only their grades. Both average over all subsets, so they are unbiased for k fresh answers.


def pass_at_k(right: CountArray, samples: int, k: int) -> FloatArray:
    """The probability, for each problem [P], that at least one of `k` answers is right; 1 <= `k` <= `samples`."""
    _demand(samples, k)
    by_count = [1 - Fraction(comb(samples - count, k), comb(samples, k)) for count in range(samples + 1)]
    chances: FloatArray = np.array([float(chance) for chance in by_count])[np.asarray(right, dtype=np.intp)]
    return chances


def majority_at_k(right: int, wrong: Sequence[int], k: int) -> float:
    """The probability that the most frequent of `k` answers is right. `right` counts the right answers, `wrong` each
    distinct wrong answer. Answers that could not be extracted do not agree with each other: each is its own entry of 1.
    """
    _demand(right + sum(wrong), k)
    total = Fraction(0)
    for votes in range(1, min(right, k) + 1):
        # ways[t, m]: the number of ways to draw m wrong answers, none more than `votes` times and t of them exactly so
        # often.
        ways = Counter({(0, 0): 1})
        for count in wrong:
            further = Counter[tuple[int, int]]()
            for (tied, taken), number in ways.items():
                for more in range(min(count, votes, k - votes - taken) + 1):
                    further[tied + (more == votes), taken + more] += number * comb(count, more)
            ways = further
        for (tied, taken), number in ways.items():
            if taken == k - votes:
                total += Fraction(comb(right, votes) * number, tied + 1)
    return float(total / comb(right + sum(wrong), k))


def _demand(samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k = {k} is not between 1 and the {samples} answers there are")


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


@dataclass(frozen=True)
class ProblemDifference:
    """`problems`: the difference with its standard error over other problems, for these runs. `both`: with its error
    over other seeds and other problems; it has no interval if `seeds` (the error over seeds, for these problems) has
    none. `correlation`: of the two methods' shares by problem (None if either does not vary); near 1, pairing removes
    most of the error.
    """

    problems: Estimate
    seeds: Estimate
    both: Estimate
    correlation: float | None


def problem_difference(
    ours: FloatArray, theirs: FloatArray, benchmark_of: CountArray, seeds: Estimate, paired: bool
) -> ProblemDifference:
    """The difference of two methods from their shares by run and problem, [S, P] each. `seeds` is their difference over
    seeds; `paired` says that row r of both has the same seed.
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
        over_problems = problems.error**2
        alone = max(over_problems - interaction, 0.0)
        error = math.sqrt(max(seeds.error**2 + alone, over_problems))
        half = math.hypot(
            t_quantile(seeds.degrees) * seeds.error, t_quantile(problems.degrees) * math.sqrt(alone)
        )
        low, high = sorted((seeds.degrees, problems.degrees))
        for _ in range(60):  # the degrees of freedom between both at which t has the quantile half / error
            middle = (low + high) / 2
            low, high = (middle, high) if t_quantile(middle) > half / error else (low, middle)
        both = estimate(problems.value, seeds.n, error, (low + high) / 2)
    a, b = mine - mine.mean(), other - other.mean()
    scale = math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    correlation = float(np.clip((a * b).sum() / scale, -1, 1)) if scale > 0 else None
    return ProblemDifference(problems, seeds, both, correlation)


def _interaction(values: FloatArray, benchmark_of: CountArray) -> float:
    """Variance of the mean over benchmarks that comes from the interaction of run and problem: mean square / (S P)."""
    runs, strata = len(values), _strata_of(benchmark_of)
    variances = [0.0]
    for part in (values[:, stratum] for stratum in strata if len(stratum) > 1 and runs > 1):
        residuals = part - part.mean(axis=0) - part.mean(axis=1, keepdims=True) + part.mean()
        square = float((residuals**2).sum()) / ((runs - 1) * (part.shape[1] - 1))
        variances.append(square / part.size)
    return math.fsum(variances) / len(strata) ** 2


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
# Comparisons use the first: assuming phi = 0 makes their standard errors too large, never too small. The second
# concerns the level of a score: more steps and more seeds remove only the share 1 - phi of the sampling error, and the
# variance over seeds does not contain the rest.

Graded = NDArray[np.bool_]
Evaluations = Sequence[
    tuple[float, float]
]  # (weight, variance over other answers) of each evaluation; the weights sum to 1


@dataclass(frozen=True)
class DrawCorrelation:
    """phi with its standard error (jackknife over problems; None if only a single problem varies)."""

    value: float
    error: float | None
    problems: int

    @property
    def dependent(self) -> bool:
        """Whether phi exceeds 0 by more than two standard errors."""
        return self.error is not None and self.value > 2 * self.error


def draw_correlation(ours: Graded, theirs: Graded) -> DrawCorrelation | None:
    """phi from two evaluations graded answer by answer, [P, k] each with k > 1: the covariance of answers with the same
    draw within problems, over the variance within problems. None if no problem varies in both.
    """
    a, b = (x.astype(np.float64) - x.mean(axis=1, keepdims=True) for x in (ours, theirs))
    together = (a * b).sum(axis=1)
    return _ratio(together, ((a * a).sum(axis=1) + (b * b).sum(axis=1)) / 2)


def least_correlation(right: CountArray, samples: int) -> DrawCorrelation | None:
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


def _ratio(above: FloatArray, below: FloatArray) -> DrawCorrelation | None:
    """sum(above) / sum(below) over problems, with its jackknife standard error."""
    varied = below > 0
    above, below, n = above[varied], below[varied], int(varied.sum())
    if not n:
        return None
    value = float(above.sum() / below.sum())
    if n == 1:
        return DrawCorrelation(value, None, 1)
    without = (above.sum() - above) / (below.sum() - below)
    return DrawCorrelation(value, jackknife_error(without), n)


def mean_variance(evaluations: Evaluations, correlation: float = 0.0) -> float:
    """Variance over other answers of a weighted mean of evaluations of the same problems, with correlation phi between
    any two.
    """
    apart = math.fsum(weight**2 * variance for weight, variance in evaluations)
    return (1 - correlation) * apart + correlation * _together(evaluations) ** 2


def difference_variance(ours: Evaluations, theirs: Evaluations, correlation: float = 0.0) -> float:
    """Variance over other answers of the difference of two such means."""
    shared = 2 * correlation * _together(ours) * _together(theirs)
    return max(0.0, mean_variance(ours, correlation) + mean_variance(theirs, correlation) - shared)


def _together(evaluations: Evaluations) -> float:
    return math.fsum(weight * math.sqrt(variance) for weight, variance in evaluations)


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
    (`least_correlation`). evaluations: the evaluations behind the final mean, of all runs; empty with one answer per
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
    draws: DrawCorrelation | None
    evaluations: Evaluations

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
    """`variant` against the baseline on a model. `separated` has all problems in order. `ours_alone`, `theirs_alone`:
    the indices of problems that only `variant`, or only the baseline, solved (`solved_by_one`).
    """

    model: str
    variant: str
    against: str
    difference: ProblemDifference
    separated: tuple[Separation, ...]
    ours_alone: tuple[int, ...]
    theirs_alone: tuple[int, ...]


def cell_problems(board: Scoreboard) -> dict[tuple[str, str], CellProblems]:
    """(model, variant) -> the cell, of those whose finished runs all recorded outcomes, on the same problems as the
    other cells of their model.
    """
    cells: dict[tuple[str, str], CellProblems | None] = {}
    for model in board.models:
        finished = {
            (model, variant): [run for run in board.runs_of(model, variant) if run.is_result]
            for variant in board.variants
        }
        recorded = [
            board.data.outcomes.get(run.mlflow_id) for of_cell in finished.values() for run in of_cell
        ]
        problems = {
            outcomes.key if outcomes is not None and len(outcomes.steps) else None for outcomes in recorded
        }
        if len(problems) == 1 and None not in problems:
            cells |= {pair: _cell(board, of_cell) for pair, of_cell in finished.items() if of_cell}
    return {pair: cell for pair, cell in cells.items() if cell is not None}


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
            model=lead.model,
            variant=lead.variant,
            against=lead.against,
            difference=problem_difference(mine, other, ours.benchmark_of, lead.estimate, lead.paired),
            separated=separations(ours.last, theirs.last, ours.samples),
            ours_alone=solved_by_one(ours.ever, theirs.ever, ours.samples),
            theirs_alone=solved_by_one(theirs.ever, ours.ever, ours.samples),
        )
        pairs.append(pair)
    return tuple(pairs)


_RIGHT = "right"


def majority_score(
    board: Scoreboard, cell: CellProblems, answers: Mapping[str, RunAnswers]
) -> Estimate | None:
    """maj@k at the last validation, averaged over runs, with its standard error over other problems. None unless the
    texts of all answers to all problems were recorded there.
    """
    runs = {run.mlflow_id: run for run in board.runs_of(cell.model, cell.variant)}
    chances = []
    for mlflow_id in cell.mlflow_ids:
        step = int(_in_window(runs[mlflow_id], board.data.outcomes[mlflow_id]).steps[-1])
        texts = answers[mlflow_id].texts if mlflow_id in answers else ()
        # Problem -> how often each answer was given. Answers of equal value agree, whatever their spelling, as all
        # right ones do. Missing answers never agree with each other.
        votes = defaultdict[str, Counter[str]](Counter)
        for sample in (
            sample for validation in texts if validation.step == step for sample in validation.samples
        ):
            if sample.kind == VALIDATION:
                wrong = f"#{sample.draw}" if sample.answer is None else f"={value(sample.answer)}"
                votes[sample.problem][_RIGHT if sample.right else wrong] += 1
        if any(votes[name].total() != cell.samples for name in cell.problems):
            return None
        of_run = []
        for name in cell.problems:
            right = votes[name].pop(_RIGHT, 0)
            of_run.append(majority_at_k(right, [*votes[name].values()], cell.samples))
        chances.append(of_run)
    return clustered_mean(np.mean(chances, axis=0), cell.benchmark_of)


def _in_window(run: RunScore, outcomes: Outcomes) -> Outcomes:
    return outcomes if run.t_stop is None else outcomes.until(run.t_stop)


def kept_draws(answers: RunAnswers, samples: int) -> DrawCorrelation | None:
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
    grades: dict[str, dict[int, bool]] = defaultdict(dict)
    for sample in texts.samples:
        if sample.kind == VALIDATION:
            grades[sample.problem][sample.draw] = sample.right
    return {
        problem: [graded[draw] for draw in range(samples)]
        for problem, graded in grades.items()
        if graded.keys() == set(range(samples))
    }


def _cell(board: Scoreboard, runs: Sequence[RunScore]) -> CellProblems | None:
    final, inside, evaluations = [], [], []
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
                evaluations.append((weight / len(runs), variance))
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
        evaluations=tuple(evaluations),
    )
