"""Coverage and error rates of the statistics by problem in simulated evaluations: a table of docs/evidence/coverage.md.

evaluation    share of studies whose 95 % interval contains the true value. Three benchmarks of 30 problems, chances
              from Beta distributions, 1 or 16 answers each. `naive`: all answers taken as independent.
difference    two methods of correlated difficulty, paired by problem and not, with the ratio of the widths.
crossed       other seeds and other problems at once, beside the intervals that know one of the two.
repeated      two evaluations whose answers share random numbers: the error of their difference and of the mean of ten
              evaluations, formula over simulation, with phi taken as 0 and as measured.
separation    share of studies in which any of 90 problems is named for two equal methods.

    python benchmarks/problem_coverage.py [--quick]

The last line is JSON, see `common.py`.
"""

import math

import numpy as np
from common import Rows, arguments, result, show

from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.paired import difference_of
from cppo_lab.analysis.statistics.problems import (
    clustered_mean,
    difference_variance,
    draw_correlation,
    evaluation_variance,
    mean_variance,
    problem_difference,
    separations,
)

BENCHMARK_OF = np.repeat([0, 1, 2], 30)
BETA = ((0.5, 1.0), (0.4, 1.6), (0.9, 0.9))  # chances of being right, by benchmark
MEAN = sum(a / (a + b) for a, b in BETA) / 3
SAMPLES = 16


def chances(rng: np.random.Generator) -> np.ndarray:
    """Of the 90 problems of one study, [90]."""
    return np.concatenate([rng.beta(a, b, 30) for a, b in BETA])


def holds(found: Estimate, truth: float) -> bool:
    """Whether the interval holds the truth; no interval does not."""
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def evaluation(studies: int) -> Rows:
    """Other problems, and other answers to the same."""
    for samples in (1, SAMPLES):
        rng, counted = np.random.default_rng(samples), np.zeros(4)
        for _ in range(studies):
            p = chances(rng)
            right = rng.binomial(samples, p)
            score = right.mean() / samples
            naive = 1.96 * math.sqrt(score * (1 - score) / (90 * samples))
            found = evaluation_variance(right, samples, BENCHMARK_OF)
            own = 1.96 * math.sqrt(found.answers) if found.answers is not None else math.nan
            counted += (
                holds(clustered_mean(right / samples, BENCHMARK_OF), MEAN),
                abs(score - MEAN) <= naive,
                abs(score - p.mean()) <= own,
                abs(score - p.mean()) <= naive,
            )
        others, plain, same, bound = counted / studies
        yield f"other problems, {samples} answers each", {"ours": others, "naive": plain}
        if samples > 1:
            yield f"other answers, {samples} answers each", {"ours": same, "naive": bound}


def logistic(x: np.ndarray) -> np.ndarray:
    """Log-odds to chances."""
    return np.asarray(1 / (1 + np.exp(-x)))


def methods(rng: np.random.Generator, seeds: int, spread: float, problems: int = 90) -> np.ndarray:
    """Chances [2, seeds, problems]: shared difficulty, an effect of each seed, and of seed and problem."""
    difficulty = rng.normal(-1, 2.0, problems)
    own = rng.normal(0, 0.5, (2, 1, problems))
    effect = spread * rng.standard_normal((2, seeds, 1)) + 0.4 * rng.standard_normal((2, seeds, problems))
    return logistic(difficulty + own + np.array([0.3, 0.0])[:, None, None] + effect)


def true_difference(spread: float) -> float:
    """Mean over a very large number of seeds and problems."""
    rng = np.random.default_rng(99)
    drawn = np.stack([methods(rng, 4, spread, 40_000).mean(axis=(1, 2)) for _ in range(50)])
    return float((drawn[:, 0] - drawn[:, 1]).mean())


def difference(studies: int) -> Rows:
    """One run of each method, other problems; without seed effects, which one run cannot show."""
    rng, truth, counted, widths = np.random.default_rng(1), true_difference(0.0), np.zeros(2), np.zeros(2)
    for _ in range(studies):
        right = rng.binomial(SAMPLES, methods(rng, 1, 0.0)[:, 0]) / SAMPLES
        paired = clustered_mean(right[0] - right[1], BENCHMARK_OF)
        apart = [clustered_mean(one, BENCHMARK_OF).error or 0.0 for one in right]
        wide = 1.96 * math.hypot(*apart)
        counted += (holds(paired, truth), abs(paired.value - truth) <= wide)
        widths += (paired.half or 0.0, wide)
    yield "paired by problem", {"coverage": 100 * counted[0] / studies, "width": 1.0}
    yield "unpaired", {"coverage": 100 * counted[1] / studies, "width": widths[1] / widths[0]}


def crossed(studies: int) -> Rows:
    """Other seeds and other problems; with seed effects of 0, 1 and 4 points or so."""
    for spread in (0.0, 0.1, 0.4):
        truth = true_difference(spread)
        for seeds in (3, 8):
            rng, counted = np.random.default_rng(seeds), np.zeros(3)
            for _ in range(studies):
                shares = rng.binomial(SAMPLES, methods(rng, seeds, spread)) / SAMPLES
                sides: list[dict[int | None, float]] = [dict(enumerate(side.mean(-1))) for side in shares]
                over_seeds = difference_of(sides[0], sides[1])
                assert over_seeds is not None
                found = problem_difference(shares[0], shares[1], BENCHMARK_OF, over_seeds[0], over_seeds[1])
                counted += [holds(each, truth) for each in (found.both, found.problems, found.seeds)]
            columns = dict(zip(("both", "problems alone", "seeds alone"), counted / studies, strict=True))
            yield f"{seeds} seeds, effects of {spread:g} in log-odds", columns


def repeated(studies: int) -> Rows:
    """Variances over other answers, formula over simulation: 1 is right, below 1 too small an error."""
    for shared in (0.0, 0.3, 0.9):
        rng = np.random.default_rng(7)
        p = chances(rng)
        single = float((p * (1 - p)).sum()) / SAMPLES / 90**2
        one, ten = [(1.0, single)], [(0.1, single)] * 10
        scores, found = np.empty((studies, 10)), np.empty(studies)
        for study in range(studies):
            common, fresh = rng.random((90, SAMPLES)), rng.random((10, 90, SAMPLES))
            uniform = np.where(rng.random(fresh.shape) < math.sqrt(shared), common, fresh)
            graded = uniform < p[:, None]
            scores[study] = graded.mean(axis=(1, 2))
            measured = draw_correlation(graded[0], graded[1])
            found[study] = 0.0 if measured is None else measured.value
        apart, together = (scores[:, 0] - scores[:, 1]).var(), scores.mean(axis=1).var()
        phi = float(found.mean())
        yield (
            f"phi = {shared}",
            {
                "measured phi": phi,
                "difference, fresh": difference_variance(one, one) / apart,
                "difference, phi": difference_variance(one, one, phi) / apart,
                "mean of ten, fresh": mean_variance(ten) / together,
                "mean of ten, phi": mean_variance(ten, phi) / together,
            },
        )


def separation(studies: int) -> Rows:
    """Equal chances in all runs; a share of the draws has the same random numbers in all of them."""
    for runs, shared in ((1, 0.0), (1, 0.9), (3, 0.0), (3, 0.9)):
        rng, counted = np.random.default_rng(3), np.zeros(2)
        for _ in range(studies):
            p = chances(rng)
            common, fresh = rng.random((90, SAMPLES)), rng.random((2, runs, 90, SAMPLES))
            uniform = np.where(rng.random(fresh.shape) < math.sqrt(shared), common, fresh)
            ours, theirs = (uniform < p[:, None]).sum(axis=-1)
            found = separations(ours, theirs, SAMPLES)
            counted += (any(one.separates for one in found), any(one.p <= 0.05 for one in found))
        kind = f"{runs} {'run' if runs == 1 else 'runs'} each, phi = {shared}"
        yield kind, dict(zip(("Holm (ours)", "no adjustment"), counted / studies, strict=True))


def main() -> None:
    """Prints the tables, then the JSON line."""
    quick = arguments(__doc__, "100 studies instead of 2,000").quick
    studies = 100 if quick else 2000
    covered = show("coverage by problem, %", evaluation(studies), 100, 1)
    pairs = show("difference of two runs, other problems", difference(studies), 1, 1)
    both = show("coverage over other seeds and other problems, %", crossed(studies), 100, 1)
    shared = show("variance, formula over simulation", repeated(studies), 1, 2)
    false = show("chance of naming any problem for equal methods, %", separation(studies // 4), 100, 1)
    ours = [row["ours"] for row in covered.values()] + [pairs["paired by problem"]["coverage"]]
    figures = {
        "coverage_least": min(ours),
        "coverage_most": max(ours),
        "crossed_least": min(row["both"] for row in both.values()),
        "repeated_error_least": min(row["difference, phi"] for row in shared.values()),
        "unpaired_width": pairs["unpaired"]["width"],
        "false_findings_most": max(row["Holm (ours)"] for row in false.values()),
    }
    units = {"unpaired_width": "x", "repeated_error_least": "x", "*": "%"}
    most = {"coverage_most": 97.0, "false_findings_most": 6.0}
    least = {"coverage_least": 93.0, "crossed_least": 92.0, "repeated_error_least": 0.85}
    print(result("problem_coverage", figures, units, at_most=most, at_least=least, quick=quick).line())


if __name__ == "__main__":
    main()
