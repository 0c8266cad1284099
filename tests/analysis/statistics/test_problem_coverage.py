"""Do the 95 % intervals by problem cover the truth? `benchmarks/problem_coverage.py` measures more cases."""

import numpy as np
import pytest

from cppo_lab.analysis.statistics.estimate import Estimate
from cppo_lab.analysis.statistics.paired import difference_of
from cppo_lab.analysis.statistics.problems import clustered_mean, evaluation_variance, problem_difference
from tests.analysis.statistics.test_coverage import STUDIES, covered, honest, margin

BENCHMARK_OF = np.repeat([0, 1, 2], 30)
BETA = ((0.5, 1.0), (0.4, 1.6), (0.9, 0.9))
SAMPLES = 16


def draw_chances(rng: np.random.Generator) -> np.ndarray:
    return np.concatenate([rng.beta(a, b, 30) for a, b in BETA])


@pytest.mark.parametrize("samples", [1, SAMPLES])
def test_over_other_problems(samples: int) -> None:
    truth = sum(a / (a + b) for a, b in BETA) / 3

    def study(rng: np.random.Generator) -> Estimate:
        return clustered_mean(rng.binomial(samples, draw_chances(rng)) / samples, BENCHMARK_OF)

    assert honest(covered(truth, study, samples))


def test_over_other_answers() -> None:
    rng, hits = np.random.default_rng(1), 0
    for _ in range(STUDIES):
        chances = draw_chances(rng)
        right = rng.binomial(SAMPLES, chances)
        variance = evaluation_variance(right, SAMPLES, BENCHMARK_OF).answers
        assert variance is not None
        hits += abs(right.mean() / SAMPLES - chances.mean()) <= 1.96 * variance**0.5
    assert honest(hits / STUDIES)


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_over_other_seeds_and_other_problems(spread: float) -> None:
    """Three seeds, effects of seed, problem, and both; at least as often as promised, as few seeds make it err so."""

    def study(rng: np.random.Generator) -> Estimate:
        problems = rng.normal(0.02, 0.1, 90)
        seeds = rng.normal(0, spread, (2, 3, 1))
        shares = 0.5 + seeds + rng.normal(0, 0.1, (2, 3, 90)) + np.stack([problems, np.zeros(90)])[:, None]
        ours, theirs = (dict(enumerate(one.mean(axis=1).tolist())) for one in shares)
        over_seeds = difference_of(ours, theirs)
        assert over_seeds is not None
        return problem_difference(*shares, BENCHMARK_OF, over_seeds[0], over_seeds[1]).both

    assert covered(0.02, study, 3) >= 0.95 - margin(0.95)
