"""The corrected score of the best step: against a plain loop, and against the truth in simulated runs."""

import numpy as np
import pytest

from cppo_lab.analysis.statistics.values import held_out_best
from tests.oracles.statistics import held_out


@pytest.mark.parametrize("benchmarks", [2, 3, 5])
def test_against_a_loop(benchmarks: int) -> None:
    scores = np.random.default_rng(benchmarks).integers(0, 8, (40, 12, benchmarks)) / 480
    assert held_out_best(scores).tolist() == pytest.approx([held_out(run.tolist()) for run in scores])


def test_one_benchmark_is_refused() -> None:
    with pytest.raises(ValueError, match="two benchmarks"):
        held_out_best(np.zeros((4, 1)))


def test_a_step_that_is_best_everywhere_keeps_its_score() -> None:
    scores = np.array([[0.1, 0.2, 0.0], [0.5, 0.6, 0.4], [0.3, 0.3, 0.3]])
    assert held_out_best(scores) == pytest.approx(0.5)


def test_the_luck_of_the_pick_is_gone() -> None:
    """Flat runs, whose every step is worth 0.3: the best of 68 noisy evaluations promises two points more."""
    rng = np.random.default_rng(5)
    noisy = rng.binomial(480, 0.3, (2000, 68, 3)) / 480
    best = noisy.mean(axis=-1).max(axis=-1)
    assert best.mean() > 0.325
    assert held_out_best(noisy).mean() == pytest.approx(0.3, abs=4 * 0.021 / (3 * 2000) ** 0.5)
