"""The thresholds of the exact core's study are the ones that its selection chose, by movement alone."""

import math

import pytest

from cppo_lab.sweep.file import load_sweep
from dev.exact_selection import FREE, REFERENCE, SEEDS, Tried, chosen, read
from tests.conftest import user_error


def tried(variant: str, delta: float, *movements: float) -> list[Tried]:
    """One rule on two horizons."""
    return [
        Tried(variant, delta, 2, "early", horizon, movement, 0.0, 0.0, 0.0)
        for horizon, movement in zip((16, 64), movements, strict=True)
    ]


def test_the_sweep_has_what_was_chosen() -> None:
    rows, sweep = read(), load_sweep("exact")
    found = chosen(rows)
    assert {*found, REFERENCE, FREE} == set(sweep.variants)
    for variant, delta in found.items():
        assert sweep.variants[variant]["rule.delta"] == delta
    places = {(row.model, row.horizon) for row in rows}
    (models,), (horizons,) = sweep.models.values(), [sweep.axes_of("exact")["rollout.max_response_length"]]
    assert places == {(model, horizon) for model in models for horizon in horizons}
    for one in sweep.hypotheses.values():
        assert set(SEEDS) <= set(one.selection_seeds)


def test_between_the_two_that_enclose_it() -> None:
    """Movements 0.8 and 1.25 times DPPO's in the mean of logs: halfway between the logs of the thresholds."""
    rows = [
        *tried(REFERENCE, 0.01, 1.0, 2.0),
        *tried(FREE, 1.0, 9.0, 9.0),
        *tried("rule", 0.01, 0.8, 1.6),
        *tried("rule", 0.04, 1.0, 2 * 1.25**2),
    ]
    assert chosen(rows) == {"rule": pytest.approx(math.sqrt(0.01 * 0.04), rel=1e-3)}


def test_the_nearest_is_taken_and_one_too_far_refused() -> None:
    reference = tried(REFERENCE, 0.01, 1.0, 2.0)
    assert chosen([*reference, *tried("rule", 0.03, 1.01, 2.01), *tried("rule", 0.05, 0.5, 1.0)]) == {
        "rule": 0.03
    }
    assert chosen([*reference, *tried("rule", 0.03, 0.96, 1.92)]) == {"rule": 0.03}
    with user_error(r"0\.80 times as far"):
        chosen([*reference, *tried("rule", 0.03, 0.8, 1.6)])
