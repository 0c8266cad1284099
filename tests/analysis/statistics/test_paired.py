"""Differences: paired by seed, unpaired, and over models; against SciPy."""

import numpy as np
import pytest
from scipy import stats

from cppo_lab.analysis.statistics.estimate import NO_SPREAD, ONE_RUN
from cppo_lab.analysis.statistics.paired import difference, difference_of, mean_difference
from cppo_lab.analysis.statistics.values import RunValues, Score

OURS = {0: 0.31, 1: 0.28, 2: 0.36, 3: 0.33}
THEIRS = {0: 0.30, 1: 0.21, 2: 0.27, 3: 0.25}


def runs_of(model: str, variant: str, scores: dict[int | None, float]) -> list[RunValues]:
    return [
        RunValues(model, variant, seed, False, score, None, score, score, None, 1, 1)
        for seed, score in scores.items()
    ]


def test_shared_seeds_are_paired() -> None:
    found = difference_of(OURS, dict(reversed(THEIRS.items())))
    assert found is not None
    value, paired = found
    reference = stats.ttest_rel(list(OURS.values()), list(THEIRS.values()))
    interval = reference.confidence_interval()
    assert paired
    assert (value.low, value.high, value.n) == (pytest.approx(interval.low), pytest.approx(interval.high), 4)
    assert value.p_value() == pytest.approx(reference.pvalue)


def test_what_the_seed_does_to_both_cancels() -> None:
    level = {0: 0.1, 1: 0.3, 2: 0.7}
    found = difference_of({seed: base + 0.05 for seed, base in level.items()}, level)
    assert found is not None
    value, _ = found
    assert value.value == pytest.approx(0.05)
    assert (
        value.unknown == NO_SPREAD
    )  # three times the same difference: no spread, and no interval of width 0


def test_only_the_pairs_count_where_a_seed_is_missing() -> None:
    found = difference_of(OURS, {1: 0.21, 3: 0.25, 9: 0.9})
    assert found is not None
    assert found[1]
    assert found[0].n == 2
    assert found[0].value == pytest.approx((0.07 + 0.08) / 2)


@pytest.mark.parametrize("theirs", [{7: 0.30, 8: 0.21, 9: 0.27}, {0: 0.30, 8: 0.21, 9: 0.27}])
def test_without_two_shared_seeds_it_is_welchs(theirs: dict[int, float]) -> None:
    found = difference_of(OURS, theirs)
    assert found is not None
    value, paired = found
    reference = stats.ttest_ind(list(OURS.values()), list(theirs.values()), equal_var=False)
    assert not paired
    assert (value.value, value.n) == (pytest.approx(np.mean([*OURS.values()]) - 0.26), 3)
    assert value.p_value() == pytest.approx(reference.pvalue)


@pytest.mark.parametrize("seed", [0, None])
def test_one_run_each_is_a_difference_without_interval(seed: int | None) -> None:
    found = difference_of({seed: 0.4}, {seed: 0.3})
    assert found is not None
    assert (found[0].value, found[0].half, found[0].unknown) == (pytest.approx(0.1), None, ONE_RUN)


def test_exchanging_the_sides_turns_the_sign() -> None:
    forth, back = difference_of(OURS, THEIRS), difference_of(THEIRS, OURS)
    assert forth is not None and back is not None
    assert (forth[0].low, forth[0].high) == (
        pytest.approx(-(back[0].high or 0)),
        pytest.approx(-(back[0].low or 0)),
    )


def test_over_models() -> None:
    runs = tuple(
        run
        for model, shift in (("m", 0.0), ("n", 0.1))
        for variant, scores in (("cppo", OURS), ("dppo", THEIRS))
        for run in runs_of(model, variant, {seed: score + shift * seed for seed, score in scores.items()})
    )
    parts = [difference(runs, model, "cppo", "dppo", Score.FINAL) for model in ("m", "n")]
    assert all(part is not None and part.paired and part.ours == 4 for part in parts)
    mean = mean_difference([part for part in parts if part is not None], runs)
    assert mean is not None
    # The shift is the same for both sides: two equal halves, so the error of one divided by sqrt 2.
    one = parts[0].estimate
    assert mean.estimate.value == pytest.approx(one.value)
    assert mean.estimate.error == pytest.approx(one.error / 2**0.5)
    assert mean.estimate.degrees == pytest.approx(6)
    assert mean_difference([], runs) is None
    assert difference(runs, "m", "cppo", "grpo", Score.FINAL) is None
