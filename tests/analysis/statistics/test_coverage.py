"""Do 95 % intervals cover the truth in 93 to 97 % of simulated studies, with 3, 5 and 10 seeds?

CPPO_STUDIES sets the number of studies of each test. The two points to each side of 95 % are four standard errors of a
share of 2,000; with fewer studies the margin is four of theirs. `benchmarks/coverage.py` measures more cases.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.estimate import (
    AGGREGATES,
    Estimate,
    Statistic,
    bootstrap,
    holm,
    mean_estimate,
    percentile_interval,
    probability_of_improvement,
)
from cppo_lab.analysis.statistics.paired import difference, difference_of, mean_difference
from cppo_lab.analysis.statistics.values import FinishedRuns, RunValues, Score

STUDIES = int(os.environ.get("CPPO_STUDIES", "400"))
SEEDS = (3, 5, 10)
LEVELS, SPREADS = (0.20, 0.30, 0.40, 0.50), (0.01, 0.02, 0.015, 0.03)  # of four models


def covered(truth: float, study: Callable[[np.random.Generator], Estimate | None], seed: int) -> float:
    """Share of studies whose interval holds the truth."""
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(STUDIES):
        found = study(rng)
        assert found is not None and found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    return hits / STUDIES


def margin(probability: float) -> float:
    """Four standard errors of a share of STUDIES."""
    return 4 * (probability * (1 - probability) / STUDIES) ** 0.5


def honest(share: float) -> bool:
    return abs(share - 0.95) <= max(0.02, margin(0.95))


@pytest.mark.parametrize("n", SEEDS)
def test_mean_of_a_cell(n: int) -> None:
    """Seeds differ, and on top every score is of 3 x 480 graded answers."""

    def study(rng: np.random.Generator) -> Estimate | None:
        return mean_estimate((rng.binomial(1440, rng.normal(0.3, 0.015, n)) / 1440).tolist())

    assert honest(covered(0.3, study, n))


@pytest.mark.parametrize("n", SEEDS)
def test_paired_difference(n: int) -> None:
    def study(rng: np.random.Generator) -> Estimate | None:
        shared = rng.normal(0.3, 0.05, n)  # what a seed does to both
        ours, theirs = shared + 0.02 + rng.normal(0, 0.02, n), shared + rng.normal(0, 0.01, n)
        found = difference_of(dict(enumerate(ours)), dict(enumerate(theirs)))
        return found[0] if found is not None and found[1] else None

    assert honest(covered(0.02, study, n))


@pytest.mark.parametrize(("n", "m"), [(3, 3), (5, 3), (10, 5)])
def test_unpaired_difference_with_unequal_spread(n: int, m: int) -> None:
    def study(rng: np.random.Generator) -> Estimate | None:
        ours, theirs = rng.normal(0.32, 0.01, n), rng.normal(0.3, 0.02, m)
        found = difference_of(dict(enumerate(ours)), dict(enumerate(theirs, start=100)))
        return found[0] if found is not None and not found[1] else None

    assert honest(covered(0.02, study, n))


SHARED, OWN = 0.06, 0.01  # deviations of what a seed does to all runs, and to one


@pytest.mark.parametrize("n", [5, 20])
def test_runs_that_share_their_start(n: int) -> None:
    """As on the exact core: pairs cover the truth as often as promised, with intervals a fifth as wide."""
    paired, welch = [], []

    def study(rng: np.random.Generator, by_pairs: bool) -> Estimate | None:
        start = rng.normal(0.6, SHARED, n)
        ours, theirs = (dict(enumerate(start + lead + rng.normal(0, OWN, n))) for lead in (0.02, 0.0))
        found = difference_of(ours, theirs, by_pairs)
        assert found is not None and found[1] is by_pairs and found[0].half is not None
        (paired if by_pairs else welch).append(found[0].half)
        return found[0]

    assert honest(covered(0.02, lambda rng: study(rng, True), n))
    assert covered(0.02, lambda rng: study(rng, False), n) > 0.99
    assert np.mean(paired) < np.mean(welch) / 4


@pytest.mark.parametrize("n", [5, 20])
def test_a_mean_over_models_whose_starts_a_seed_draws(n: int) -> None:
    """What a seed does to the differences of all models does not average out over them."""
    names = [(model, variant) for model in "mno" for variant in "ab"]

    def study(rng: np.random.Generator, common: bool) -> Estimate | None:
        start, tilt, runs = rng.normal(0.6, SHARED, n), rng.normal(0, OWN, n), []
        for model, variant in names:
            scores = start + (0.02 + tilt) * (variant == "a") + rng.normal(0, OWN, n)
            runs += [run_of(model, variant, seed, score, common) for seed, score in enumerate(scores)]
        values = FinishedRuns(runs)
        parts = [difference(values, model, "a", "b", Score.FINAL) for model in "mno"]
        mean = mean_difference([part for part in parts if part is not None], values)
        return mean and mean.estimate

    assert honest(covered(0.02, lambda rng: study(rng, True), n))
    assert covered(0.02, lambda rng: study(rng, False), n) < 0.95 - margin(0.95)


def run_of(model: str, variant: str, seed: int, score: float, common: bool) -> RunValues:
    return RunValues(model, variant, seed, False, score, score, score, score, None, 9, 3, common=common)


def draw(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    return [rng.normal(level, spread, n) for level, spread in zip(LEVELS, SPREADS, strict=True)]


@pytest.mark.parametrize(
    ("name", "n"), [("mean", 3), ("iqm", 3), ("iqm", 5), ("iqm", 10), ("median", 3), ("median", 10)]
)
def test_aggregates_over_four_models(name: str, n: int) -> None:
    statistic: Statistic = AGGREGATES[name]
    truth = float(statistic(draw(np.random.default_rng(0), 400_000)))
    assert honest(covered(truth, lambda rng: bootstrap(draw(rng, n), statistic, rng, 200), n))


def test_the_percentile_interval_is_not_honest() -> None:
    """Why it is not used: with three seeds of one model it misses the truth in a quarter of the studies."""

    def study(rng: np.random.Generator) -> bool:
        low, high = percentile_interval([rng.normal(0.3, 0.02, 3)], AGGREGATES["mean"], rng, 300)
        return low <= 0.3 <= high

    rng = np.random.default_rng(0)
    assert sum(study(rng) for _ in range(STUDIES)) / STUDIES < 0.8


@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_probability_of_improvement(n: int, shift: float) -> None:
    """Over four models. At least as often as promised: with few runs it takes few values, and errs on that side."""
    truth, hits, rng = stats.norm.cdf(shift / 2**0.5), 0, np.random.default_rng(n)
    for _ in range(STUDIES):
        found = probability_of_improvement(list(rng.normal(shift, 1, (4, n))), list(rng.normal(0, 1, (4, n))))
        assert found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    assert hits / STUDIES >= 0.94


def test_false_findings_among_six_methods_of_equal_worth() -> None:
    """Six methods against one baseline with three seeds: Holm keeps the chance of any false finding under 5 %."""
    rng, found, naive = np.random.default_rng(9), 0, 0
    for _ in range(STUDIES):
        base, others = rng.normal(0.3, 0.02, 3), rng.normal(0.3, 0.02, (6, 3))
        estimates = [mean_estimate((other - base).tolist()) for other in others]
        p_values = [p for each in estimates if each is not None and (p := each.p_value()) is not None]
        naive += min(p_values) <= 0.05
        found += min(holm(p_values)) <= 0.05
    assert found / STUDIES <= 0.06
    assert naive / STUDIES > 0.12  # what goes wrong without it
