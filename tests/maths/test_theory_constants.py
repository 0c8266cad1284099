"""Constants of the bounds against the golden rows and against sums written out."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cppo_lab.maths import bounds
from cppo_lab.maths.weights import position_weights
from cppo_lab.rules import position_weight
from tests.maths.maths_cases import check_all
from tests.maths.maths_golden import ARRAYS, MANIFEST

ROWS = [
    dict(zip(MANIFEST["theory_columns"], row.tolist(), strict=True)) for row in ARRAYS["theory/constants"]
]
SOME = settings(max_examples=100, deadline=None, derandomize=True)
LENGTHS = st.integers(1, 60)
FRACTIONS = st.floats(0.001, 1)


def constants(row: dict) -> dict[str, float]:
    """Every computed column of a golden row."""
    xi, horizon, delta, delta_b = row["xi"], int(row["T"]), row["delta"], row["delta_b"]
    return {
        "C_uniform": bounds.dppo_constant(horizon, delta, xi),
        "C_cppo(lbar=delta)": bounds.cppo_constant(horizon, delta_b, delta, xi),
        "C_impl": bounds.weighted_constant(horizon, delta, delta_b, row["w_min"], xi),
        "C_terminal(lbar=delta)": bounds.terminal_constant(horizon, delta_b, delta, xi),
        "terminal_ratio": bounds.terminal_ratio(horizon),
        "product_bound": bounds.product_bound(horizon, delta_b, delta, xi),
        "slack_term(lbar=delta/w_min, eta=delta)": bounds.slack_term(
            horizon, bounds.largest_divergence(delta, row["w_min"]), delta, xi
        ),
    }


def test_golden_rows() -> None:
    check_all(golden_row, [(row,) for row in ROWS])


def golden_row(row: dict) -> None:
    expected = {name: row[name] for name in constants(row)}
    assert len(row) == len(expected) + 5  # the five arguments
    assert constants(row) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@SOME
@given(horizon=LENGTHS, delta=FRACTIONS, delta_b=FRACTIONS, w_min=FRACTIONS, xi=st.floats(0.1, 10))
def test_constants_are_the_sums_they_stand_for(
    horizon: int, delta: float, delta_b: float, w_min: float, xi: float
) -> None:
    """4 xi sum_t (spent at t) * (what a suffix of T - t tokens can move by)."""
    later = [horizon - t for t in range(1, horizon + 1)]
    close = {"rel": 1e-9, "abs": 1e-15}
    largest = delta / w_min
    assert bounds.dppo_constant(horizon, delta, xi) == pytest.approx(
        4 * xi * sum(delta * k * delta for k in later), **close
    )
    assert bounds.weighted_constant(horizon, delta, delta_b, w_min, xi) == pytest.approx(
        4 * xi * sum(delta_b * k * largest for k in later), **close
    )
    assert bounds.product_bound(horizon, delta_b, delta, xi) == pytest.approx(
        4 * xi * sum(delta_b * (1 - (1 - delta) ** k) for k in later), **close
    )
    # The whole budget of the T - 1 tokens that count, spent on the first one.
    assert bounds.terminal_constant(horizon, delta_b, delta, xi) == pytest.approx(
        4 * xi * (horizon - 1) * delta_b * (horizon - 1) * delta, **close
    )


@SOME
@given(horizon=st.integers(2, 60), delta=FRACTIONS, delta_b=FRACTIONS, w_min=FRACTIONS)
def test_ratios(horizon: int, delta: float, delta_b: float, w_min: float) -> None:
    uniform = bounds.cppo_constant(horizon, delta_b, delta)
    dppo = bounds.dppo_constant(horizon, delta)
    assert uniform / dppo == pytest.approx(bounds.uniform_ratio(delta, delta_b))
    impl = bounds.weighted_constant(horizon, delta, delta_b, w_min)
    assert impl / dppo == pytest.approx(bounds.weighted_ratio(delta, delta_b, w_min))
    terminal = bounds.terminal_constant(horizon, delta_b, delta)
    assert terminal / uniform == pytest.approx(bounds.terminal_ratio(horizon))
    assert bounds.product_bound(horizon, delta_b, delta) <= uniform * (1 + 1e-9)


@pytest.mark.parametrize("horizon", [10, 200])
@pytest.mark.parametrize("scaled", [1e-12, 1e-6, 0.01, 0.499, 0.501, 3, 4.9, 10])
def test_product_bound_does_not_cancel(horizon: int, scaled: float) -> None:
    """On both sides of the switch between the series and the closed form, at horizon * largest = 0.5."""
    stay = math.log1p(-scaled / horizon) if scaled < horizon else -math.inf
    expected = math.fsum(-math.expm1(k * stay) for k in range(1, horizon))
    assert bounds.product_bound(horizon, 0.25, scaled / horizon) == pytest.approx(expected, rel=1e-12)


@SOME
@given(horizon=st.integers(2, 60), w_min=FRACTIONS)
def test_the_linear_schedule_falls(horizon: int, w_min: float) -> None:
    """g_t = (T - t) / w_t, as the module's proof of Theorem 1 has it."""
    weights = [position_weight(t, horizon, w_min) for t in range(1, horizon + 1)]
    values = [(horizon - t) / weight for t, weight in enumerate(weights, 1)]
    for t in range(1, horizon):
        drop = w_min / (weights[t - 1] * weights[t])
        assert drop > 0
        assert values[t - 1] - values[t] == pytest.approx(drop, rel=1e-9, abs=1e-9 * horizon / w_min)


@SOME
@given(horizon=LENGTHS, w_min=FRACTIONS, padding=st.integers(0, 5))
def test_the_weight_without_torch_is_the_rules_weight(horizon: int, w_min: float, padding: int) -> None:
    """`cppo_lab.rules` has the formula for bounds and figures: T the own length, or the padded width."""
    valid, width = torch.ones(1, horizon), horizon + padding
    for span, length in ((None, horizon), (width, width)):
        weights = position_weights(valid, w_min, span, dtype=torch.float64)[0].tolist()
        expected = [position_weight(t, length, w_min) for t in range(1, horizon + 1)]
        assert weights == pytest.approx(expected, rel=1e-12)


CALLS = [
    (lambda: bounds.dppo_constant(0, 0.1), r"horizon=0 must be an integer in 1\.\.1000000000: pass the resp"),
    (lambda: bounds.dppo_constant(2.0, 0.1), r"horizon=2.0 must be an integer"),
    (lambda: bounds.dppo_constant(True, 0.1), r"horizon=True must be an integer"),
    (lambda: bounds.dppo_constant(10**9 + 1, 0.1), r"horizon=1000000001 must"),
    (lambda: bounds.dppo_constant(4, 0.0), r"delta=0.0 must lie in \(0, 1\]: a total variation never"),
    (lambda: bounds.dppo_constant(4, math.nan), r"delta=nan must lie"),
    (lambda: bounds.dppo_constant(4, 0.1, 0), r"xi=0 must lie in \(0, inf\): pass a finite number above 0"),
    (lambda: bounds.cppo_constant(4, 1.5, 0.1), r"delta_b=1.5 must lie in \(0, 1\]"),
    (lambda: bounds.cppo_constant(4, 0.1, math.inf), r"largest=inf must lie in \(0, inf\)"),
    (lambda: bounds.weighted_constant(4, 0.1, 0.1, 0), r"w_min=0 must lie in \(0, 1\]: w_min=1 means no pos"),
    (lambda: bounds.slack_term(4, 0.1, -1), r"eta=-1 must be a finite number >= 0: pass 0 for no slack"),
    (lambda: bounds.terminal_constant(4, -0.1, 0.1), r"delta_b=-0.1 must lie"),
    (lambda: bounds.terminal_ratio(0), r"horizon=0 must"),
    (lambda: bounds.product_bound(4, 0.1, 1.2), r"largest=1.2 must lie in \(0, 1\]"),
    (lambda: bounds.uniform_ratio(2, 0.1), r"delta=2 must lie"),
    (lambda: bounds.weighted_ratio(0.1, 0.1, 2), r"w_min=2 must lie"),
]


@pytest.mark.parametrize(("call", "message"), CALLS, ids=[message[:24] for _, message in CALLS])
def test_a_value_out_of_range_is_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
