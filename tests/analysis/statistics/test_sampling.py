"""The sampling error of Avg@k against simulated problems."""

import math

import numpy as np
import pytest

from cppo_lab.analysis.scoring import score_sweep
from cppo_lab.analysis.statistics.sampling import (
    answers_variance,
    problems_variance,
    run_sampling_error,
    sampling_error,
)
from tests.analysis.made_sweeps import MadeRun, expect, make_data

PROBLEMS, SAMPLES = 30, 16


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (3.0, 2.0), (0.1, 0.4)])
def test_formulas_with_problems_of_unequal_difficulty(alpha: float, beta: float) -> None:
    """Chances from a Beta distribution: mean a / (a + b), and rho = 1 / (a + b + 1)."""
    rng, share, between = np.random.default_rng(1), alpha / (alpha + beta), 1 / (alpha + beta + 1)
    chances = rng.beta(alpha, beta, (4000, PROBLEMS))
    scores = rng.binomial(SAMPLES, chances[:, None, :], (4000, 20, PROBLEMS)).mean(axis=-1) / SAMPLES
    others = problems_variance(share, PROBLEMS, SAMPLES, between)
    same = answers_variance(share, PROBLEMS, SAMPLES, between)
    assert scores[:, 0].var() == pytest.approx(others, rel=0.1)
    assert scores.var(axis=1, ddof=1).mean() == pytest.approx(same, rel=0.03)
    # Two runs of the same chances on the same problems: the difficulty cancels, the answers' variances add up.
    assert (scores[:, 0] - scores[:, 1]).var() == pytest.approx(2 * same, rel=0.1)
    assert same < answers_variance(share, PROBLEMS, SAMPLES)
    assert others < problems_variance(share, PROBLEMS, SAMPLES)


def test_of_a_mean_over_benchmarks() -> None:
    found = sampling_error([0.5, 0.5, 0.5], PROBLEMS, SAMPLES)
    assert found.answers == pytest.approx(0.5 / math.sqrt(3 * 480))
    assert found.problems == pytest.approx(0.5 / math.sqrt(3 * 30))
    assert sampling_error([0.0, 1.0], PROBLEMS, SAMPLES).answers == 0


def test_the_number_of_problems_is_that_of_the_run() -> None:
    curve = {10: 0.5, 20: 0.4}
    runs = [
        MadeRun("a", model="aime", scores={"aime24": curve, "aime25": curve}),
        MadeRun("a", model="made", scores={"chain24": curve, "chain25": curve}),
        MadeRun("a", model="other", scores={"x": curve}),
    ]
    data = make_data(runs)
    made = data.runs["mlflow_id"].iloc[1]
    logged = type(data)(
        data.experiment, data.sweep, data.runs, data.metrics, {made: {"data.validation_problems": "4"}}
    )
    board = score_sweep(logged, expect(runs))
    aime, four, unknown = (run_sampling_error(board, run) for run in board.runs)
    assert aime is not None and four is not None
    assert aime.answers == pytest.approx(0.5 / math.sqrt(2 * 480))
    assert four.answers == pytest.approx(0.5 / math.sqrt(2 * 64))
    assert unknown is None
