"""Errors of an evaluation by problem, against plain loops, enumeration of all outcomes and simulated problems."""

import itertools
import math

import numpy as np
import pytest

from cppo_lab.analysis.statistics.problems import clustered_mean, evaluation_variance

RIGHT, SAMPLES = np.array([0, 3, 4, 1, 2, 4, 0]), 4
BENCHMARK_OF = np.array([0, 0, 0, 0, 1, 1, 1])


def test_against_plain_loops() -> None:
    """Miller's formula for the clustered error, answer by answer; per benchmark, then their mean."""
    clustered, answers = 0.0, 0.0
    for benchmark in (0, 1):
        counts = [int(c) for c, b in zip(RIGHT, BENCHMARK_OF, strict=True) if b == benchmark]
        graded = [[1.0] * c + [0.0] * (SAMPLES - c) for c in counts]
        n = len(counts)
        mean = sum(map(sum, graded)) / (n * SAMPLES)
        pairs = sum((a - mean) * (b - mean) for one in graded for a in one for b in one)
        clustered += pairs / (n * SAMPLES) ** 2 * n / (n - 1) / 4
        for one in graded:
            own = sum(one) / SAMPLES
            answers += sum((a - own) ** 2 for a in one) / (SAMPLES - 1) / SAMPLES / n**2 / 4
    found = evaluation_variance(RIGHT, SAMPLES, BENCHMARK_OF)
    assert found.problems == pytest.approx(clustered)
    assert found.answers == pytest.approx(answers)
    whole = clustered_mean(RIGHT / SAMPLES, BENCHMARK_OF)
    assert whole.value == pytest.approx((8 / 16 + 6 / 12) / 2)
    assert whole.error == pytest.approx(math.sqrt(clustered))


def test_both_variances_are_unbiased() -> None:
    """Every outcome of two problems drawn from three, two answers each, weighted by its chance."""
    chances, samples = (0.2, 0.5, 0.9), 2
    mean_answers = mean_problems = second = first = 0.0
    for problems in itertools.product(chances, repeat=2):
        for counts in itertools.product(range(samples + 1), repeat=2):
            weight = 1 / 9
            for p, c in zip(problems, counts, strict=True):
                weight *= math.comb(samples, c) * p**c * (1 - p) ** (samples - c)
            found = evaluation_variance(np.array(counts), samples, np.zeros(2, dtype=int))
            assert found.answers is not None and found.problems is not None
            score = sum(counts) / 4
            mean_answers += weight * found.answers
            mean_problems += weight * found.problems
            first, second = first + weight * score, second + weight * score**2
    assert mean_problems == pytest.approx(second - first**2)
    assert mean_answers == pytest.approx(sum(p * (1 - p) for p in chances) / 3 / samples / 2)


def test_rho_of_a_beta_distribution() -> None:
    """rho = 1 / (a + b + 1)."""
    rng = np.random.default_rng(0)
    right = rng.binomial(16, rng.beta(0.6, 1.4, 40_000))
    found = evaluation_variance(right, 16, np.zeros(len(right), dtype=int))
    assert found.between == pytest.approx(1 / 3, rel=0.02)
    same = evaluation_variance(rng.binomial(16, 0.3, 40_000), 16, np.zeros(40_000, dtype=int))
    assert same.between == pytest.approx(0, abs=0.003)


def test_what_is_not_known_is_none() -> None:
    one_answer = evaluation_variance(np.array([0, 1, 1]), 1, np.zeros(3, dtype=int))
    assert (one_answer.answers, one_answer.between) == (None, None)
    assert one_answer.problems == pytest.approx(1 / 9)
    one_problem = evaluation_variance(np.array([2, 1, 3]), 4, np.array([0, 1, 1]))
    assert one_problem.problems is None
    assert one_problem.answers is not None
    flat = evaluation_variance(np.array([4, 4]), 4, np.zeros(2, dtype=int))
    assert (flat.answers, flat.problems, flat.between) == (0, 0, None)
    assert clustered_mean(np.array([1.0, 1.0]), np.zeros(2, dtype=int)).error is None
