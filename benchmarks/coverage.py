"""Coverage and error rates of the statistics in simulated studies: the tables of docs/evidence/coverage.md.

Scores of runs:

coverage      share of studies whose 95 % interval contains the true value, for normal scores and for scores with a
              long upper tail (Gumbel, skewness 1.14).
selection     bias and standard deviation of the best step's score and of its corrections, relative to the noise-free
              score of the selected step. Runs rise and level off, wander (autocorrelated), and have sampling error.
families      familywise error rate for six methods compared with an equally good baseline.

Answers to problems: three benchmarks of 30 problems, chances from Beta distributions, 1 or 16 answers each.

evaluation    coverage over other problems and other answers. `naive`: all answers taken as independent. And of the
              difference of two methods of correlated difficulty, paired by problem.
crossed       other seeds and other problems at once, beside the intervals that know one of the two.
repeated      two evaluations whose answers share random numbers: the error of their difference and of the mean of ten
              evaluations, formula over simulation, with phi taken as 0 and as measured.
separation    share of studies in which any of 90 problems is named for two equal methods.

The whole procedure, at the level of the verdicts:

pairing       comparisons by Welch and seed by seed, for results of one seed that correlate; with equal methods (how
              often an advantage is claimed) and with a lead of 1.5 standard deviations.
collapses     N(73, 5) with one collapse in eight, to 20: coverage of the mean by Student's t, by the interval that
              allows for collapses, and of the mean of the runs that last; how often an advantage is claimed.
chain         the claims of `main` for four models and equal methods: how often any is confirmed.
unequal       how often an advantage in the mean over four models is claimed without one, if one of the models has a
              larger deviation than the others.
trends        how often a lead is said to grow with the length if it does not, and leads differ between four models:
              by the spread over seeds alone, and by the wider interval that verdicts use.
more          how often a claim of more collapses is supported: for equal shares, and for 0.2 and 0.5 more.

    python benchmarks/coverage.py [--quick]

The last line is JSON, see `common.py`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from common import arguments, finish
from scipy.signal import lfilter

from cppo_lab.analysis.statistics.collapse import mean_with_collapses, share_difference
from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    Estimate,
    Interval,
    SlopeEstimate,
    bootstrap,
    combine,
    holm,
    mean_estimate,
    mean_of,
    probability_of_improvement,
)
from cppo_lab.analysis.statistics.paired import Difference, difference_of, slope
from cppo_lab.analysis.statistics.power import ONE_SIDED_LEVEL
from cppo_lab.analysis.statistics.problems import (
    clustered_mean,
    difference_variance,
    draw_correlation,
    evaluation_variance,
    mean_variance,
    problem_difference,
    separations,
)
from cppo_lab.analysis.statistics.values import FinishedRuns, Score, held_out_best

Rows = Iterator[tuple[str, Mapping[str, float]]]
Random = np.random.Generator
Outcomes = Mapping[str, float | None]  # of one study; None is no count
Draw = Callable[[Random, tuple[int, ...]], np.ndarray]
SEEDS = (3, 5, 10)
LEVELS = np.array([[0.20], [0.30], [0.40], [0.50]])  # four models
SPREADS = np.array([[0.01], [0.02], [0.015], [0.03]])
QUARTERS = [0.25] * 4
GUMBEL_STD, EULER = np.pi / 6**0.5, 0.5772156649015329
RESAMPLES = 400
MEMORY = 0.8  # of a step for the one before
PROCEDURE_SEEDS = (3, 5, 8)
LEVEL, DEVIATION, BROKEN, OFTEN = 0.73, 0.05, 0.20, 1 / 8  # of runs of which some collapse
LENGTHS = {"a": 3000.0, "b": 6000.0, "c": 8000.0, "d": 10_000.0}  # of responses, by model
BENCHMARK_OF = np.repeat([0, 1, 2], 30)
BETA = ((0.5, 1.0), (0.4, 1.6), (0.9, 0.9))  # chances of being right, by benchmark
MEAN = sum(a / (a + b) for a, b in BETA) / 3
SAMPLES = 16


def show(title: str, rows: Rows, scale: float = 100, digits: int = 1) -> pd.DataFrame:
    """Print the rows as a table, each value times `scale`, and return it."""
    named = dict(rows)
    table = scale * pd.DataFrame(named.values(), named.keys(), dtype=float)
    shown = table.to_string(float_format=f"{{:.{digits}f}}".format, na_rep="")
    print(f"\n{title}\n{shown}", flush=True)
    return table


def means(studies: int, seed: int, study: Callable[..., Outcomes], *settings: Any) -> dict[str, float]:
    """The mean over so many studies of what each counts."""
    rng = np.random.default_rng(seed)
    counted = pd.DataFrame([study(rng, *settings) for _ in range(studies)]).astype(float)
    return {str(name): float(mean) for name, mean in counted.mean().items()}


def normal(rng: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Mean 0, variance 1."""
    return rng.standard_normal(shape)


def skewed(rng: Random, shape: tuple[int, ...]) -> np.ndarray:
    """Mean 0, variance 1, a long upper tail."""
    return (rng.gumbel(size=shape) - EULER) / GUMBEL_STD


def holds(estimate: Estimate | Interval | None, truth: float) -> bool | None:
    """Whether the interval holds the truth; None if there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    return estimate.low <= truth <= estimate.high


def compared(ours: np.ndarray, theirs: np.ndarray, by_pairs: bool = False) -> Estimate:
    """The difference of two cells as the verdicts take it; `by_pairs`: of runs of one seed."""
    sides: list[Mapping[int | None, float]] = [dict(enumerate(side.tolist())) for side in (ours, theirs)]
    taken = difference_of(sides[0], sides[1], by_pairs)
    assert taken is not None, "both sides have runs"
    return taken[0]


def coverage(studies: int) -> Rows:
    """Intervals of means, of paired differences, and of aggregates over four models."""

    def alone(rng: Random, draw: Draw, n: int) -> Outcomes:
        values, ours, theirs = draw(rng, (3, n))
        return {
            "mean": holds(mean_of((0.3 + 0.02 * values).tolist()), 0.3),
            "paired difference": holds(mean_of((0.02 * ours - 0.01 * theirs).tolist()), 0.0),
        }

    def together(rng: Random, draw: Draw, n: int, truths: Mapping[str, float]) -> Outcomes:
        models = list(LEVELS + SPREADS * draw(rng, (4, n)))
        return {
            name: holds(bootstrap(models, AGGREGATES[name], rng, RESAMPLES), truth)
            for name, truth in truths.items()
        }

    for draw in (normal, skewed):
        many = list(LEVELS + SPREADS * draw(np.random.default_rng(0), (4, 400_000)))
        truths = {name: float(statistic(many)) for name, statistic in AGGREGATES.items()}
        for n in SEEDS:
            yield f"one model, {n} seeds, {draw.__name__}", means(studies, n, alone, draw, n)
            yield f"four models, {n} seeds, {draw.__name__}", means(studies, n, together, draw, n, truths)


def improvement(studies: int) -> Rows:
    """The interval of the probability of improvement, where the true one is 0.5 and 0.92."""

    def study(rng: Random, models: int, n: int) -> Outcomes:
        ours, theirs = rng.standard_normal((2, models, n))
        return {
            f"P = {truth:.2f}": holds(probability_of_improvement(list(ours + lead), list(theirs)), truth)
            for lead, truth in ((0.0, 0.5), (2.0, 0.9214))
        }

    for models, n in itertools.product((1, 4), SEEDS):
        columns = means(studies, n, study, models, n)
        yield f"{models} {'model' if models == 1 else 'models'}, {n} seeds", columns


def wander(rng: Random, shape: tuple[int, ...], spread: float) -> np.ndarray:
    """Autocorrelated steps on the last axis, standard deviation `spread`."""
    noise = rng.standard_normal(shape)
    noise[..., 1:] *= np.sqrt(1 - MEMORY**2)
    return np.asarray(spread * lfilter([1.0], [1.0, -MEMORY], noise))


def selection(studies: int) -> Rows:
    """Points; one row per kind of curve and estimator, each of one seed."""
    kinds = {
        "like the paper's": (68, 0.008, 0.005),
        "noise only": (68, 0.0, 0.0),
        "long runs": (112, 0.012, 0.005),
    }
    for kind, (steps, together, alone) in kinds.items():
        rng = np.random.default_rng(1)
        rise = 0.1 + 0.25 * (1 - np.exp(-4 * np.linspace(0, 1, steps)))
        of_benchmark = wander(rng, (studies, 3, steps), alone)
        true = rise + wander(rng, (studies, 1, steps), together) + of_benchmark
        seen = rng.binomial(480, np.clip(true, 0, 1)) / 480
        mean, quality = seen.mean(axis=1), true.mean(axis=1)
        picked = mean.argmax(axis=-1)[..., None]
        truth = np.take_along_axis(quality, picked, -1)[..., 0]
        estimators = {
            "best step": np.take_along_axis(mean, picked, -1)[..., 0],
            "selected on other benchmarks (ours)": held_out_best(np.moveaxis(seen, 1, -1)),
            "final mean": mean[..., int(0.7 * steps) :].mean(axis=-1),
        }
        for name, values in estimators.items():
            error = 100 * (values - truth)
            yield f"{kind}: {name}", {"bias": float(error.mean()), "standard deviation": float(error.std())}


def families(studies: int) -> Rows:
    """Six methods of equal worth, paired by seed with the baseline."""

    def study(rng: Random, n: int) -> Outcomes:
        pairs = 0.02 * (rng.standard_normal((6, n)) - rng.standard_normal(n))
        p_values = [p for row in pairs if (p := mean_of(row.tolist()).p_value()) is not None]
        return {"holm (ours)": min(holm(p_values)) <= 0.05, "no adjustment": min(p_values) <= 0.05}

    for n in SEEDS:
        yield f"{n} seeds", means(studies, n, study, n)


def chances(rng: Random) -> np.ndarray:
    """Of the 90 problems of one study, [90]."""
    return np.concatenate([rng.beta(a, b, 30) for a, b in BETA])


def evaluation(studies: int) -> Rows:
    """Other problems, and other answers to the same. The difference has no effects of seeds, which one run of each
    method cannot show.
    """

    def study(rng: Random, samples: int) -> Outcomes:
        p = chances(rng)
        right = rng.binomial(samples, p)
        score = right.mean() / samples
        naive = 1.96 * math.sqrt(score * (1 - score) / (90 * samples))
        answers, _ = evaluation_variance(right, samples, BENCHMARK_OF)
        return {
            "ours": holds(clustered_mean(right / samples, BENCHMARK_OF), MEAN),
            "naive": abs(score - MEAN) <= naive,
            "ours, other answers": answers and abs(score - p.mean()) <= 1.96 * math.sqrt(answers),
            "naive, other answers": abs(score - p.mean()) <= naive,
        }

    for samples in (1, SAMPLES):
        yield f"{samples} answers each", means(studies, samples, study, samples)

    def difference(rng: Random, truth: float) -> Outcomes:
        first, second = rng.binomial(SAMPLES, methods(rng, 1, 0.0)[:, 0]) / SAMPLES
        return {"ours": holds(clustered_mean(first - second, BENCHMARK_OF), truth)}

    yield "two methods' difference", means(studies, 1, difference, true_difference(0.0))


def methods(rng: Random, seeds: int, spread: float, problems: int = 90) -> np.ndarray:
    """Chances [2, seeds, problems]: shared difficulty, an effect of each seed, and of seed and problem."""
    difficulty = rng.normal(-1, 2.0, problems)
    of_method = rng.normal(0, 0.5, (2, 1, problems))
    effect = spread * rng.standard_normal((2, seeds, 1)) + 0.4 * rng.standard_normal((2, seeds, problems))
    log_odds = difficulty + of_method + np.array([0.3, 0.0])[:, None, None] + effect
    return np.asarray(1 / (1 + np.exp(-log_odds)))


def true_difference(spread: float) -> float:
    """Mean over a very large number of seeds and problems."""
    rng = np.random.default_rng(99)
    drawn = np.stack([methods(rng, 4, spread, 40_000).mean(axis=(1, 2)) for _ in range(50)])
    return float((drawn[:, 0] - drawn[:, 1]).mean())


def crossed(studies: int) -> Rows:
    """Other seeds and other problems; with seed effects of 0, 1 and 4 points or so."""

    def study(rng: Random, spread: float, truth: float, seeds: int) -> Outcomes:
        shares = rng.binomial(SAMPLES, methods(rng, seeds, spread)) / SAMPLES
        ours, theirs = shares.mean(-1)
        over_seeds = compared(ours, theirs, by_pairs=True)
        problems, both, _ = problem_difference(shares[0], shares[1], BENCHMARK_OF, over_seeds, True)
        intervals = {"both": both, "problems alone": problems, "seeds alone": over_seeds}
        return {name: holds(interval, truth) for name, interval in intervals.items()}

    for spread in (0.0, 0.1, 0.4):
        truth = true_difference(spread)
        for seeds in (3, 8):
            columns = means(studies, seeds, study, spread, truth, seeds)
            yield f"{seeds} seeds, effects of {spread:g} in log-odds", columns


def alike(rng: Random, p: np.ndarray, shared: float, *shape: int) -> np.ndarray:
    """Answers that are right, [*shape, problem, sample]; a share of them has the same random numbers everywhere."""
    common, fresh = rng.random((90, SAMPLES)), rng.random((*shape, 90, SAMPLES))
    return np.where(rng.random(fresh.shape) < math.sqrt(shared), common, fresh) < p[:, None]


def repeated(studies: int) -> Rows:
    """Variances over other answers, formula over simulation: 1 is right, below 1 too small an error."""
    for shared in (0.0, 0.3, 0.9):
        rng = np.random.default_rng(7)
        p = chances(rng)
        single = math.sqrt((p * (1 - p)).sum() / SAMPLES) / 90
        once, ten = [single], [single / 10] * 10
        scores, phis = np.empty((studies, 10)), np.empty(studies)
        for study in range(studies):
            graded = alike(rng, p, shared, 10)
            scores[study] = graded.mean(axis=(1, 2))
            measured = draw_correlation(graded[0], graded[1])
            phis[study] = 0.0 if measured is None else measured.value
        apart, together = (scores[:, 0] - scores[:, 1]).var(), scores.mean(axis=1).var()
        phi = float(phis.mean())
        columns = {
            "measured phi": phi,
            "difference, fresh": difference_variance(once, once) / apart,
            "difference, phi": difference_variance(once, once, phi) / apart,
            "mean of ten, fresh": mean_variance(ten) / together,
            "mean of ten, phi": mean_variance(ten, phi) / together,
        }
        yield f"phi = {shared}", columns


def separation(studies: int) -> Rows:
    """Equal chances in all runs."""

    def study(rng: Random, runs: int, shared: float) -> Outcomes:
        ours, theirs = alike(rng, chances(rng), shared, 2, runs).sum(axis=-1)
        named = separations(ours, theirs, SAMPLES)
        return {
            "Holm (ours)": named["separates"].any(),
            "no adjustment": (named["p"] <= 0.05).any(),
        }

    for runs, shared in itertools.product((1, 3), (0.0, 0.9)):
        columns = means(studies, 3, study, runs, shared)
        yield f"{runs} {'run' if runs == 1 else 'runs'} each, phi = {shared}", columns


def claimed(estimate: Estimate | None) -> bool:
    """Whether it is above 0 at the level of the verdicts."""
    p = None if estimate is None else estimate.p_above(0.0)
    return p is not None and p <= ONE_SIDED_LEVEL


def pairing(studies: int) -> Rows:
    """Error and power of both ways, in shares of studies; runs of one seed share `rho` of their variance."""

    def study(rng: Random, rho: float, n: int) -> Outcomes:
        seed, ours, theirs = rng.standard_normal((3, n)) * np.sqrt([[rho], [1 - rho], [1 - rho]])
        return {
            f"{what}, {how}": claimed(compared(seed + ours + lead, seed + theirs, by_pairs))
            for what, lead in (("error", 0.0), ("power", 1.5))
            for how, by_pairs in (("Welch", False), ("paired", True))
        }

    for rho, n in itertools.product((0.0, 0.3, 0.6, 0.9), PROCEDURE_SEEDS):
        yield f"correlation {rho:g}, {n} seeds", means(studies, n, study, rho, n)


def broken_runs(rng: Random, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of n runs, and which of them collapsed."""
    broken = rng.random(n) < OFTEN
    return np.where(broken, BROKEN, rng.normal(LEVEL, DEVIATION, n)), broken


def collapses(studies: int) -> Rows:
    """Coverage with rare collapses, and the errors of comparisons. No interval excludes nothing."""
    mean = LEVEL - OFTEN * (LEVEL - BROKEN)

    def study(rng: Random, n: int) -> Outcomes:
        (values, broken), (again, _) = broken_runs(rng, n), broken_runs(rng, n)
        completed = values[~broken].tolist()
        allowed = mean_with_collapses(completed, values[broken].tolist())
        return {
            "mean, Student's t": holds(mean_of(values.tolist()), mean) is not False,
            "mean, with collapses (ours)": holds(allowed, mean) is not False,
            "mean of those that last": holds(mean_estimate(completed), LEVEL) is not False,
            "claimed, same method twice": claimed(compared(values, again)),
            "claimed, over a steady method of equal mean": claimed(
                compared(values, rng.normal(mean, DEVIATION, n))
            ),
        }

    for n in PROCEDURE_SEEDS:
        yield f"{n} seeds", means(studies, n, study, n)


def chain(studies: int) -> Rows:
    """Equal methods on four models: any claim is confirmed with the order if the first is, against all tested at once.

    The three are the lead in the mean, its widening (an independent quantity here), and the lead on every model.
    """

    def study(rng: Random, n: int) -> Outcomes:
        cells = rng.standard_normal((2, 2, 4, n))  # quantity, method, model, seed
        parts = [[compared(*pair) for pair in zip(*quantity, strict=True)] for quantity in cells]
        first, widens = (claimed(combine(models, QUARTERS)) for models in parts)
        every = all(map(claimed, parts[0]))
        return {"any, in order (ours)": first, "any, all at once": first or widens or every}

    for n in PROCEDURE_SEEDS:
        yield f"{n} seeds", means(studies, n, study, n)


def unequal(studies: int) -> Rows:
    """Few seeds, compared in pairs on four models; the last one's deviation is so many times the others'."""

    def study(rng: Random, n: int) -> Outcomes:
        *others, last = rng.standard_normal((4, n))
        return {
            f"1 : 1 : 1 : {times:g}": claimed(
                combine([mean_of(row.tolist()) for row in (*others, times * last)], QUARTERS)
            )
            for times in (1.0, 6.0, 20.0)
        }

    for n in (2, 3, 5):
        yield f"{n} seeds", means(studies, n, study, n)


def trends(studies: int) -> Rows:
    """Leads on four models; those of pairs of runs have a deviation of 1.5 points on a model."""

    def study(rng: Random, n: int, scatter: float) -> Outcomes:
        parts = []
        for model in LENGTHS:
            lead = mean_of((rng.normal(0, scatter) + 1.5 * rng.standard_normal(n)).tolist())
            parts.append(Difference(model, "ours", "theirs", Score.FINAL, lead, True, n, n, None))
        trend = slope(parts, LENGTHS, FinishedRuns())
        assert trend is not None and isinstance(trend.estimate, SlopeEstimate)
        return {
            "by the spread over seeds alone": claimed(trend.estimate.seeds),
            "by the wider interval (ours)": claimed(trend.estimate),
        }

    for n, scatter in itertools.product((3, 5), (0.0, 1.0, 2.0)):
        yield f"{n} seeds, models differ by {scatter:g} points", means(studies, n, study, n, scatter)


def more(studies: int) -> Rows:
    """More collapses on four models, at the level of the verdicts."""

    def study(rng: Random, n: int) -> Outcomes:
        claims = {}
        for shares in ((0.125, 0.125), (0.5, 0.5), (0.325, 0.125), (0.625, 0.125)):
            ours, theirs = ([(int(rng.binomial(n, chance)), n) for _ in range(4)] for chance in shares)
            claims["{:g} against {:g}".format(*shares)] = share_difference(ours, theirs).low > 0
        return claims

    for n in PROCEDURE_SEEDS:
        yield f"{n} seeds on 4 models", means(studies, n, study, n)


def main() -> None:
    """Prints the tables, then the JSON line."""
    quick = arguments(__doc__, "50 studies instead of 2,000 and 4,000").quick
    studies, many = (50, 50) if quick else (2000, 4000)
    covered = show("coverage, %", coverage(studies))
    show("coverage of the probability of improvement, %", improvement(studies))
    picked = show("error of the best step's score, points", selection(studies), 1, 2)
    false = show("familywise error rate, %", families(studies))
    by_problem = show("coverage by problem, %", evaluation(studies))
    both = show("coverage over other seeds and other problems, %", crossed(studies))
    shared = show("variance, formula over simulation", repeated(studies), 1, 2)
    named = show("chance of naming any problem for equal methods, %", separation(studies // 4))
    by_pairs = show("advantage claimed, %", pairing(many))
    rare = show("one collapse in eight, %", collapses(many))
    order = show("equal methods, %", chain(many))
    few = show("advantage claimed in the mean over models, %", unequal(many))
    longer = show("growth with the length claimed, %", trends(many))
    claimed_more = show("more collapses claimed, %", more(many))
    gaussian = covered.filter(like="normal", axis=0)
    figures = {
        "coverage_least": gaussian.min(axis=None),
        "coverage_most": gaussian.max(axis=None),
        "correction_bias": abs(picked.at["like the paper's: selected on other benchmarks (ours)", "bias"]),
        "false_findings_most": false["holm (ours)"].max(),
        "problem_coverage_least": by_problem.filter(like="ours").min(axis=None),
        "problem_coverage_most": by_problem.filter(like="ours").max(axis=None),
        "crossed_least": both["both"].min(),
        "repeated_error_least": shared["difference, phi"].min(),
        "problem_false_findings_most": named["Holm (ours)"].max(),
        "error_most": by_pairs[["error, Welch", "error, paired"]].max(axis=None),
        "coverage_with_collapses_least": rare["mean, with collapses (ours)"].min(),
        "error_same_most": rare["claimed, same method twice"].max(),
        "chain_error_most": order["any, in order (ours)"].max(),
        "unequal_error_most": few.max(axis=None),
        "trend_error_most": longer["by the wider interval (ours)"].max(),
        "share_error_most": claimed_more[["0.125 against 0.125", "0.5 against 0.5"]].max(axis=None),
    }
    units = {"*_bias": "points", "repeated_error_least": "x", "*": "%"}
    most = {
        "*coverage_most": 97.0,
        "correction_bias": 0.4,
        "*false_findings_most": 6.0,
        "unequal_error_most": 5.0,  # Satterthwaite's approximation with one or two degrees of freedom
        "share_error_most": 5.0,  # few outcomes: no interval meets its level at every share
        "*error*_most": 3.5,
    }
    least = {
        "*coverage_least": 93.0,
        "crossed_least": 92.0,
        "repeated_error_least": 0.85,
        "coverage_with_collapses_least": 94.0,
    }
    finish(figures, units, at_most=most, at_least=least, quick=quick)


if __name__ == "__main__":
    main()
