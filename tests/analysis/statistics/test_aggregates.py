"""Aggregates against rliable (recorded, see `tests/oracles/make_rliable.py`), SciPy and plain loops."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cppo_lab.analysis.statistics.estimate import AGGREGATES, iqm, probability_of_improvement
from tests.oracles.statistics import wins

RLIABLE = json.loads((Path(__file__).parents[2] / "oracles" / "rliable.json").read_text(encoding="utf-8"))


def strata(matrix: list[list[float]]) -> list[np.ndarray]:
    """rliable's `[runs, tasks]` as one array per task."""
    return list(np.array(matrix).T)


@pytest.mark.parametrize("entry", RLIABLE)
def test_against_rliable(entry: dict) -> None:
    ours, theirs = strata(entry["ours"]), strata(entry["theirs"])
    assert list(AGGREGATES) == ["mean", "iqm", "median"]
    found = [float(statistic(ours)) for statistic in AGGREGATES.values()]
    assert found == pytest.approx(entry["aggregates"], abs=1e-12)
    assert probability_of_improvement(ours, theirs).value == pytest.approx(entry["improvement"], abs=1e-12)


@pytest.mark.parametrize("n", range(1, 12))
def test_iqm_is_scipys_trimmed_mean(n: int) -> None:
    values = np.random.default_rng(n).random(n)
    assert float(iqm([values])) == pytest.approx(stats.trim_mean(values, 0.25))


def test_improvement_against_mann_whitney() -> None:
    rng = np.random.default_rng(3)
    ours, theirs = rng.integers(0, 6, 7) / 10, rng.integers(0, 5, 4) / 10
    reference = stats.mannwhitneyu(ours, theirs).statistic / 28
    assert probability_of_improvement([ours], [theirs]).value == pytest.approx(reference)


TASK = st.lists(st.integers(0, 9), min_size=2, max_size=6)


@given(st.lists(st.tuples(TASK, TASK), min_size=1, max_size=4), st.floats(0.01, 100), st.floats(-5, 5))
def test_improvement_properties(
    tasks: list[tuple[list[int], list[int]]], factor: float, shift: float
) -> None:
    ours, theirs = [np.array(a, float) for a, _ in tasks], [np.array(b, float) for _, b in tasks]
    found, back = probability_of_improvement(ours, theirs), probability_of_improvement(theirs, ours)
    assert found.value + back.value == pytest.approx(1)
    assert found.value == pytest.approx(np.mean([wins(a, b) for a, b in tasks]))
    assert found.low is not None and found.high is not None and back.low is not None
    assert 0 <= found.low <= found.value + 1e-9 and found.value - 1e-9 <= found.high <= 1
    assert found.low < found.high
    assert 1 - back.low == pytest.approx(found.high, abs=1e-9)
    # Only the order counts, whatever the scale of each side together, and not the order in which runs are given.
    scaled = [factor * a[::-1] + shift for a in ours], [factor * b + shift for b in theirs]
    if np.unique(np.concatenate(scaled[0] + scaled[1])).size == np.unique(np.concatenate(ours + theirs)).size:
        assert probability_of_improvement(*scaled).value == pytest.approx(found.value)


def test_improvement_of_a_single_run_has_no_interval() -> None:
    found = probability_of_improvement([np.array([0.4])], [np.array([0.1, 0.2])])
    assert (found.value, found.low, found.high) == (1.0, None, None)


MATRIX = st.integers(1, 4).flatmap(
    lambda tasks: st.lists(st.lists(st.floats(0, 1), min_size=tasks, max_size=tasks), min_size=1, max_size=6)
)


@given(MATRIX, st.sampled_from(sorted(AGGREGATES)), st.floats(0.1, 10), st.floats(-1, 1), st.randoms())
def test_aggregates_move_with_the_scores(matrix, name, factor, shift, random) -> None:
    statistic, tasks = AGGREGATES[name], strata(matrix)
    before = float(statistic(tasks))
    assert float(statistic([factor * task + shift for task in tasks])) == pytest.approx(
        factor * before + shift, abs=1e-9
    )
    shuffled = [np.array(random.sample(list(task), len(task))) for task in tasks]
    random.shuffle(shuffled)
    assert float(statistic(shuffled)) == pytest.approx(before, abs=1e-9)
    assert min(map(np.min, tasks)) - 1e-9 <= before <= max(map(np.max, tasks)) + 1e-9


@pytest.mark.parametrize("name", AGGREGATES)
def test_leading_axes_are_resamples(name: str) -> None:
    tasks = [np.random.default_rng(task).random((5, 3)) for task in range(4)]
    rows = [float(AGGREGATES[name]([task[row] for task in tasks])) for row in range(5)]
    assert AGGREGATES[name](tasks).tolist() == pytest.approx(rows)
