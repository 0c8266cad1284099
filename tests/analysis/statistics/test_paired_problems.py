"""Differences paired by problem, against plain loops."""

import math

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.estimate import Estimate, mean_estimate
from cppo_lab.analysis.statistics.paired import difference_of
from cppo_lab.analysis.statistics.problems import problem_difference

FLAT = np.zeros(12, dtype=int)


def made(runs: int, shift: float, seed: int) -> np.ndarray:
    return np.clip(np.random.default_rng(seed).normal(0.5 + shift, 0.2, (runs, 12)), 0, 1)


def over_seeds(ours: np.ndarray, theirs: np.ndarray, paired: bool) -> Estimate:
    start = 0 if paired else 100
    found = difference_of(
        dict(enumerate(ours.mean(axis=1))), dict(enumerate(theirs.mean(axis=1), start=start))
    )
    assert found is not None and found[1] == paired
    return found[0]


def test_of_single_runs_it_is_the_paired_t_test() -> None:
    ours, theirs = made(1, 0.1, 1), made(1, 0.0, 2)
    seeds = over_seeds(ours, theirs, paired=True)
    found = problem_difference(ours, theirs, FLAT, seeds, paired=True)
    test = stats.ttest_rel(ours[0], theirs[0])
    assert found.problems.p_value() == pytest.approx(test.pvalue)
    assert found.both.low is None and found.both.unknown
    assert found.correlation == pytest.approx(stats.pearsonr(ours[0], theirs[0])[0])


@pytest.mark.parametrize("paired", [True, False])
def test_seeds_and_problems_against_the_two_way_table(paired: bool) -> None:
    """Mean squares of rows, columns and rest by plain loops; components of a crossed design without replication."""
    ours, theirs = made(4, 0.1, 3), made(4, 0.0, 4)
    tables = [ours - theirs] if paired else [ours, -theirs]
    rest = 0.0
    for table in tables:
        square = 0.0
        for s in range(4):
            for i in range(12):
                square += (table[s, i] - table[s].mean() - table[:, i].mean() + table.mean()) ** 2
        rest += square / (3 * 11) / (4 * 12)
    seeds = over_seeds(ours, theirs, paired)
    d = ours.mean(axis=0) - theirs.mean(axis=0)
    problems = sum((x - d.mean()) ** 2 for x in d) / 11 / 12
    assert seeds.error is not None
    total = max(seeds.error**2 + problems - rest, seeds.error**2, problems)
    found = problem_difference(ours, theirs, FLAT, seeds, paired)
    assert found.both.error == pytest.approx(math.sqrt(total))
    assert found.both.value == pytest.approx(seeds.value)


def test_what_all_seeds_share_is_not_counted_twice() -> None:
    """Without seed effects the two parts hold the same interaction: what is left is the error over problems alone."""
    rng = np.random.default_rng(5)
    ours, theirs = rng.normal(0, 1, (40, 400)), np.zeros((40, 400))
    seeds = mean_estimate([float(x) for x in ours.mean(axis=1)])
    assert seeds is not None
    found = problem_difference(ours, theirs, np.zeros(400, dtype=int), seeds, paired=True)
    assert found.both.error == pytest.approx(1 / math.sqrt(40 * 400), rel=0.25)
    assert found.correlation is None
