"""Do 95 % intervals cover the truth in 93 to 97 % of simulated studies, with 3, 5 and 10 seeds?

CPPO_STUDIES sets the number of studies of each test. The two points to each side of 95 % are four standard errors of a
share of 2,000; with fewer studies the margin is four of theirs. `benchmarks/coverage.py` measures more cases.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest

from cppo_lab.analysis.statistics.estimate import AGGREGATES, Estimate, bootstrap
from cppo_lab.analysis.statistics.paired import difference_of
from cppo_lab.analysis.statistics.power import STUDIES as PLANNED
from cppo_lab.analysis.statistics.power import Design, planned_power
from cppo_lab.analysis.statistics.problems import problem_difference
from tests.analysis.statistics.test_paired import LENGTHS, TREND, slope_of

STUDIES = int(os.environ.get("CPPO_STUDIES", "400"))
Study = Callable[[np.random.Generator], Estimate]


def covered(truth: float, study: Study, seed: int) -> float:
    """Share of studies whose interval holds the truth."""
    rng = np.random.default_rng(seed)
    return sum(found.low <= truth <= found.high for found in (study(rng) for _ in range(STUDIES))) / STUDIES


def margin(probability: float) -> float:
    """Four standard errors of a share of STUDIES."""
    return 4 * (probability * (1 - probability) / STUDIES) ** 0.5


def honest(truth: float, study: Study, seed: int) -> bool:
    return abs(covered(truth, study, seed) - 0.95) <= max(0.02, margin(0.95))


SHARED, OWN = 0.06, 0.01  # deviations of what a seed does to all runs, and to one


@pytest.mark.parametrize("n", [5, 20])
def test_runs_that_share_their_start(n: int) -> None:
    """As on the exact core: pairs cover the truth as often as promised, with intervals a fifth as wide."""
    halves: dict[bool, list[float]] = {True: [], False: []}

    def study(rng: np.random.Generator, by_pairs: bool) -> Estimate:
        start = rng.normal(0.6, SHARED, n)
        ours, theirs = (dict(enumerate(start + lead + rng.normal(0, OWN, n))) for lead in (0.02, 0.0))
        found, paired = difference_of(ours, theirs, by_pairs)
        halves[paired].append(found.half)
        return found

    assert honest(0.02, lambda rng: study(rng, True), n)
    assert covered(0.02, lambda rng: study(rng, False), n) > 0.99
    assert np.mean(halves[True]) < np.mean(halves[False]) / 4


def draw(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    levels = ((0.20, 0.01), (0.30, 0.02), (0.40, 0.015), (0.50, 0.03))  # and spreads of four models
    return [rng.normal(level, spread, n) for level, spread in levels]


@pytest.mark.parametrize(
    "name, n", [("mean", 3), ("iqm", 3), ("iqm", 5), ("iqm", 10), ("median", 3), ("median", 10)]
)
def test_aggregates_over_four_models(name: str, n: int) -> None:
    statistic = AGGREGATES[name]
    truth = float(statistic(draw(np.random.default_rng(0), 400_000)))
    assert honest(truth, lambda rng: bootstrap(draw(rng, n), statistic, rng, 200), n)


BENCHMARK_OF = np.repeat([0, 1, 2], 30)


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_a_difference_over_other_seeds_and_other_problems(spread: float) -> None:
    """Three seeds, effects of seed, problem, and both; at least as often as promised, as few seeds make it err so."""

    def study(rng: np.random.Generator) -> Estimate:
        problems = rng.normal(0.02, 0.1, 90)
        seeds = rng.normal(0, spread, (2, 3, 1))
        shares = 0.5 + seeds + rng.normal(0, 0.1, (2, 3, 90)) + np.stack([problems, np.zeros(90)])[:, None]
        over_seeds = difference_of(*(dict(enumerate(side.mean(axis=1))) for side in shares))
        return problem_difference(*shares, BENCHMARK_OF, *over_seeds).both

    assert covered(0.02, study, 3) >= 0.95 - margin(0.95)


@pytest.mark.parametrize("scatter", [0.0, 0.005])
def test_the_planned_power_of_a_trend_is_the_share_of_studies_above_0(scatter: float) -> None:
    rng, seeds, deviation = np.random.default_rng(2), 5, 0.01
    x = np.log2(list(LENGTHS.values()))
    lead = dict(zip(LENGTHS, 0.025 * x + scatter * np.array([1, -1, 0, 0]), strict=True))
    scores = {model: {"a": lead[model], "b": 0.0} for model in LENGTHS}
    power = planned_power(TREND, scores, deviation, seeds, Design(lengths=LENGTHS)).power
    supported = 0
    for _ in range(STUDIES):
        found = slope_of({model: rng.normal(lead[model], 2**0.5 * deviation, seeds) for model in LENGTHS})
        supported += found.low > 0
    assert 0.05 < power < 0.95
    error = (power * (1 - power) * (1 / STUDIES + 1 / PLANNED)) ** 0.5
    assert supported / STUDIES == pytest.approx(power, abs=3.5 * error)
