"""Every bound on 2,000 feasible pairs of policies of processes small enough to enumerate.

The constants themselves are in test_golden.py, the identity in tests/cores/test_exact.py.
"""

import math
from random import Random
from typing import NamedTuple

import pytest

from cppo_lab.maths import bounds
from tests.oracles import enumeration as process


@pytest.mark.parametrize("horizon", [10, 200])
@pytest.mark.parametrize("scaled", [1e-12, 1e-6, 0.01, 0.499, 0.501, 3, 4.9, 10])
def test_product_bound_does_not_cancel(horizon: int, scaled: float) -> None:
    """On both sides of the switch between the series and the closed form, at horizon * largest = 0.5."""
    stay = math.log1p(-scaled / horizon) if scaled < horizon else -math.inf
    expected = math.fsum(-math.expm1(k * stay) for k in range(1, horizon))
    assert bounds.product_bound(horizon, 0.25, scaled / horizon) == pytest.approx(expected, rel=1e-12)


INSTANCES = 2000
ROUNDING = 1 + 1e-9


class Pair(NamedTuple):
    """The limits of a feasible pair of policies, and what enumeration says about it."""

    length: int
    delta: float
    delta_b: float
    w_min: float
    eta: float
    xi: float
    u: list[float]
    largest: list[float]
    residual: float  # abs(Delta)


def feasible_pair(seed: int) -> Pair:
    """w_t D_t <= delta everywhere, S_t <= delta_b W_t + eta before the last token; a third each: eta 0, some, delta.

    Every other reward is the worst one for the pair, every other pair moves as far as it may.
    """
    random = Random(seed)
    vocabulary, length = random.choice([2, 3]), random.choice([1, 2, 2, 3, 3, 4, 4])
    delta = random.uniform(0.02, 0.5)
    delta_b, w_min = delta * random.uniform(0.05, 1), random.choice([1.0, random.uniform(0.2, 1)])
    eta = [0.0, delta * random.random(), delta][seed % 3]
    xi = random.choice([0.5, 1.0, 3.0])
    mu = process.random_policy(vocabulary, length, random)
    pi = process.feasible_policy(
        mu,
        length,
        delta=delta,
        delta_b=delta_b,
        w_min=w_min,
        eta=eta,
        greed=random.choice([0.0, 1.0]),
        random=random,
    )
    reward = process.worst_reward(mu, pi, vocabulary, length)
    if random.random() < 0.5:
        reward = {sequence: random.uniform(-1, 1) for sequence in reward}
    reward = {sequence: xi * value for sequence, value in reward.items()}
    u, largest = process.mean_tv(mu, pi, length), process.largest_tv(mu, pi, length)
    return Pair(
        length, delta, delta_b, w_min, eta, xi, u, largest, abs(sum(process.residual(mu, pi, reward, length)))
    )


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [feasible_pair(seed) for seed in range(INSTANCES)]


def theorem(pair: Pair) -> float:
    """Theorem 1's constant, with the slack of Proposition 6 where the pair has any."""
    constant = bounds.weighted_constant(pair.length, pair.delta, pair.delta_b, pair.w_min, pair.xi)
    largest = bounds.largest_divergence(pair.delta, pair.w_min)
    return constant + bounds.slack_term(pair.length, largest, pair.eta, pair.xi)


def measured(pair: Pair) -> float:
    """The bound of Proposition 4."""
    return bounds.residual_bound(pair.u, pair.largest, pair.xi)


def share_above(values: list[tuple[float, float]], level: float) -> float:
    """Share of (value, bound) with value > level * bound."""
    return sum(value > level * bound for value, bound in values) / len(values)


def test_proposition_4_and_its_product_form(pairs: list[Pair]) -> None:
    for pair in pairs:
        product = bounds.product_residual_bound(pair.u, pair.largest, pair.xi)
        assert pair.residual <= product * ROUNDING + 1e-15
        assert product <= measured(pair) * ROUNDING + 1e-15
    longer = [(pair.residual, measured(pair)) for pair in pairs if pair.length > 1]
    assert share_above(longer, 0.2) > 0.2
    assert share_above(longer, 0.9) > 0.01


@pytest.mark.parametrize("slack", [False, True], ids=["theorem 1", "proposition 6"])
def test_theorem_1_and_its_slack_version(pairs: list[Pair], slack: bool) -> None:
    chosen = [pair for pair in pairs if pair.length > 1 and (pair.eta > 0) == slack]
    assert len(chosen) > INSTANCES / 4
    reached = [(pair.residual, theorem(pair)) for pair in chosen]
    assert all(value <= bound * ROUNDING for value, bound in reached)
    assert all(measured(pair) <= theorem(pair) * ROUNDING for pair in chosen)
    assert share_above(reached, 0.2) > 0.05
    assert max(value / bound for value, bound in reached) > 0.8


def test_product_bound_and_terminal_constant(pairs: list[Pair]) -> None:
    """Without position weights: the product form holds, and so does the constant of the terminal budget."""
    chosen = [pair for pair in pairs if pair.w_min == 1 and pair.eta == 0 and pair.length > 1]
    assert len(chosen) > 200
    reached = []
    for pair in chosen:
        product = bounds.product_bound(pair.length, pair.delta_b, pair.delta, pair.xi)
        terminal = bounds.terminal_constant(pair.length, pair.delta_b, pair.delta, pair.xi)
        reached.append((pair.residual, product))
        assert pair.residual <= min(product, terminal) * ROUNDING
    assert share_above(reached, 0.2) > 0.05


def test_dppo_constant(pairs: list[Pair]) -> None:
    """D_t <= max l alone gives C_uniform with that delta."""
    for pair in pairs:
        bound = bounds.dppo_constant(pair.length, max(pair.largest), pair.xi)
        assert pair.residual <= bound * ROUNDING + 1e-15
