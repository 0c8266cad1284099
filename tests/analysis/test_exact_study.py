"""Errors at equal movement: known ratios are found, whatever the two rules' movements."""

import dataclasses
import math

import numpy as np
import pytest

from cppo_lab.analysis.exact_study import (
    Condition,
    Curves,
    area_difference,
    matched_ratio,
    ratios_by_horizon,
    summarise,
)

SEEDS, STEPS = 30, 40


def curves(seed: int, law: float, middle: float) -> Curves:
    """|Delta| = law * movement^2 with noise of both signs; movement log-normal around `middle`."""
    generator = np.random.default_rng(seed)
    movement = middle * np.exp(0.5 * generator.standard_normal((SEEDS, STEPS)))
    sign = generator.choice([-1, 1], (SEEDS, STEPS))
    error = sign * law * movement**2 * np.exp(0.3 * generator.standard_normal((SEEDS, STEPS)))
    returns = np.cumsum(np.full((SEEDS, STEPS), 0.01), axis=1) + 0.1 * law
    spread = movement[:, :, None] * np.arange(1, 9) / 4.5
    return Curves(tuple(range(SEEDS)), error, movement, returns, 50 * abs(error), 5 * abs(error), spread)


def everyone(*parts: Curves) -> list[np.ndarray]:
    return [np.arange(SEEDS) for _ in parts]


@pytest.mark.parametrize(("law", "middle"), [(1.0, 0.01), (0.5, 0.01), (0.5, 0.02), (2.0, 0.006)])
def test_movement_is_taken_out(law: float, middle: float) -> None:
    """The ratio of the laws comes out, though one rule moves more or less than the other."""
    one, other = curves(0, law, middle), curves(1, 1.0, 0.01)
    assert matched_ratio([one], [other], everyone(one)) == pytest.approx(law, rel=0.06)
    plain = np.abs(one.error).mean() / np.abs(other.error).mean()
    if middle != 0.01:
        assert abs(math.log(plain / law)) > 0.4


def test_a_rule_that_learns_slowly_is_compared_at_its_own_returns() -> None:
    """Errors that fall with the return: the slower rule's are larger at equal movement, and not at an equal return."""

    def learner(seed: int, speed: float) -> Curves:
        base = curves(seed, 1.0, 0.01)
        returns = np.broadcast_to(1 - np.exp(-speed * np.arange(STEPS)), base.error.shape)
        return dataclasses.replace(base, returns=returns, error=base.error * (1 - returns))

    slow, fast = learner(0, 0.05), learner(1, 0.1)
    assert matched_ratio([slow], [fast], everyone(slow)) > 1.4
    assert matched_ratio([slow], [fast], everyone(slow), by_return=True) == pytest.approx(1, abs=0.12)


def test_rules_that_never_move_as_far_cannot_be_compared() -> None:
    one, other = curves(0, 1.0, 1e-6), curves(1, 1.0, 1.0)
    assert math.isnan(matched_ratio([one], [other], everyone(one)))


def test_steps_behind_a_collapse_do_not_count() -> None:
    whole, other = curves(0, 0.5, 0.01), curves(1, 1.0, 0.01)
    broken = Curves(
        whole.seeds,
        *(
            np.where(np.arange(STEPS) < 30, one, np.nan)
            for one in (whole.error, whole.movement, whole.returns, whole.bound, whole.product_bound)
        ),
        whole.by_position,
    )
    assert matched_ratio([broken], [other], everyone(whole)) == pytest.approx(0.5, rel=0.08)
    assert math.isfinite(summarise(broken).area)


def test_the_slope_in_the_horizon() -> None:
    """Ratios T^-0.2 have the slope -0.2, inside their interval; equal laws have none."""
    laws = {16: 1.0, 64: 4**-0.2, 256: 16**-0.2}
    found = {}
    for i, (horizon, law) in enumerate(laws.items()):
        for j, (variant, own) in enumerate((("cppo", law), ("dppo", 1.0))):
            found[Condition("m", variant, horizon, 0.1)] = curves(10 * i + j, own, 0.01)
    ratios, slope = ratios_by_horizon(found, "m", "cppo", "dppo")
    for horizon, law in laws.items():
        assert ratios[horizon].low - 0.03 < law < ratios[horizon].high + 0.03
        assert ratios[horizon].high - ratios[horizon].low < 0.2
    assert slope.low < -0.2 < slope.high < -0.1


def test_means_of_a_condition() -> None:
    one, other = curves(0, 1.0, 0.01), curves(0, 3.0, 0.01)
    found = summarise(one)
    assert found.error == pytest.approx(float(np.abs(one.error).mean()))
    assert (found.bound_ratio, found.product_ratio) == (pytest.approx(50), pytest.approx(5))
    assert found.falls == 0
    assert found.by_position[7] / found.by_position[0] == pytest.approx(8)
    gap = area_difference(other, one)
    assert gap.value == pytest.approx(0.2) and gap.high - gap.low < 1e-9
