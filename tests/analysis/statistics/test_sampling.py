"""The sampling error of Avg@k against simulated problems, and the noise of maps."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.paired import difference
from cppo_lab.analysis.statistics.problems import edge_share
from cppo_lab.analysis.statistics.sampling import (
    map_noise,
    run_sampling_error,
    sampling_error,
)
from cppo_lab.analysis.statistics.values import Score, run_values
from cppo_lab.answers.outcomes import no_outcomes
from tests.analysis.made_sweeps import MadeRun, both, scored

PROBLEMS, SAMPLES = 30, 16


def test_of_a_mean_over_benchmarks() -> None:
    error = sampling_error([0.5, 0.5, 0.5], PROBLEMS, SAMPLES)
    assert error.answers == pytest.approx(0.5 / math.sqrt(3 * 480))
    # A bound for problems of any difficulty, such as chances from a Beta distribution.
    rng = np.random.default_rng(1)
    scores = rng.binomial(SAMPLES, rng.beta(0.5, 1.0, (4000, 1, PROBLEMS)), (4000, 20, PROBLEMS)).mean(
        axis=-1
    )
    bound = sampling_error([1 / 3], PROBLEMS, SAMPLES)
    assert scores.var(axis=1, ddof=1).mean() < (SAMPLES * bound.answers) ** 2


@pytest.mark.parametrize("shares", [(0.0,), (1.0, 1.0), (0.0, 1.0), ()])
def test_a_share_at_the_edge_has_wilsons_limits(shares: tuple[float, ...]) -> None:
    edge = edge_share(shares, [PROBLEMS * SAMPLES] * len(shares))
    if not shares or len(set(shares)) > 1:
        assert edge is None
        return
    answers = PROBLEMS * SAMPLES * len(shares)
    limits = stats.binomtest(int(shares[0]) * answers, answers).proportion_ci(method="wilson")
    assert (edge.low, edge.high) == pytest.approx(tuple(limits), abs=1e-12)
    assert sampling_error(shares, PROBLEMS, SAMPLES).edge == edge


def test_the_number_of_problems_is_that_of_the_run() -> None:
    curve = {10: 0.5, 20: 0.4}
    runs = [
        MadeRun("a", model="aime", scores={"aime24": curve, "aime25": curve}),
        MadeRun("a", model="made", scores=both(curve)),
        MadeRun("a", model="other", scores={"x": curve}),
    ]
    board = scored(runs, params={f"{1:032x}": {"data.validation_problems": "4"}})
    aime, four, unknown = (run_sampling_error(board, run) for run in board.runs)
    assert aime.answers == pytest.approx(0.5 / math.sqrt(2 * 480))
    assert four.answers == pytest.approx(0.5 / math.sqrt(2 * 64))
    assert unknown is None


NAMES = "abcd"


def map_board(seeds: int, pairing: bool | None = None) -> Scoreboard:
    """Four cells with a spread of 1 point; runs of one seed share a start."""
    rng = np.random.default_rng(3)
    starts = rng.normal(0.5, 0.05, seeds)
    runs = [
        MadeRun(name, seed=seed, scores=both({100: start + rng.normal(0, 0.01)}))
        for name in NAMES
        for seed, start in enumerate(starts)
    ]
    return scored(runs, pairing=pairing)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("seeds", [2, 6])
def test_the_noise_of_a_map_is_that_of_its_differences(seeds: int, paired: bool) -> None:
    """The error is the root mean square of those of all pairs; the reach is no shorter than Tukey's."""
    board = map_board(seeds, paired)
    noise, runs = map_noise(board, "chain", NAMES), run_values(board)
    pairs = [difference(runs, "chain", *pair, Score.FINAL) for pair in itertools.combinations(NAMES, 2)]
    assert noise.seeds and len(pairs) == 6
    assert noise.error == pytest.approx(math.sqrt(np.mean([pair.estimate.error**2 for pair in pairs])))
    degrees = (3 if paired else 4) * (seeds - 1)
    assert noise.reach == pytest.approx(noise.error * stats.t.isf(0.025 / 6, degrees))
    assert noise.reach > noise.error * stats.studentized_range.ppf(0.95, 4, degrees) / math.sqrt(2)


def test_seeds_that_no_cells_share_are_not_paired() -> None:
    runs = [
        MadeRun(name, seed=2 * place + more, scores=both({100: 0.5 + 0.02 * more}))
        for place, name in enumerate("ab")
        for more in (0, 1)
    ]
    assert map_noise(scored(runs), "chain", "ab").error == pytest.approx(math.sqrt(2 * 0.02**2 / 2 / 2))
    alike = map_noise(scored([replace(run, scores=both({100: 0.5})) for run in runs]), "chain", "ab")
    assert (alike.error, alike.reach) == (0, 0)


def test_a_map_of_single_runs_has_the_noise_of_its_answers() -> None:
    """Three of four answers to each of six problems; without outcomes nothing shows the noise."""
    board = map_board(1)
    assert map_noise(board, "chain", NAMES) is map_noise(board, "chain", "a") is None
    outcomes = no_outcomes(4, ("chain24", "chain25"), [f"p{i}" for i in range(6)], [0, 0, 0, 1, 1, 1])
    outcomes = outcomes.append(100, np.full(6, 3), np.zeros(6), np.ones(6))
    data = replace(board.data, outcomes={run.mlflow_id: outcomes for run in board.runs})
    noise = map_noise(replace(board, data=data), "chain", NAMES)
    assert not noise.seeds
    assert noise.error == pytest.approx(math.sqrt(2 * (3 / 16) / 3 / 6))
    assert noise.reach == pytest.approx(noise.error * stats.norm.isf(0.025 / 6))
