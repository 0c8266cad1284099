"""The exact core's returns, surrogate, error and bounds against enumeration and Monte Carlo."""

import itertools
from statistics import fmean

import numpy as np
import pytest
import torch

from cppo_lab.cores.exact.process import Array, Process, compare, returns_by_start, sample
from cppo_lab.maths import bounds
from tests.cores.test_mini import check_frequencies
from tests.oracles import enumeration
from tests.oracles.fork_process import Policy, Rules, State

FAMILIES = ("early_fork", "late_fork", "no_fork")


def table(process: Process, seed: int, sharpness: float = 1.0) -> Array:
    """A random policy [1, K, S, V]."""
    logits = sharpness * np.random.default_rng(seed).standard_normal(
        (1, process.stretches, process.states, process.vocabulary)
    )
    mass = np.exp(logits)
    return mass / mass.sum(-1, keepdims=True)


def as_function(process: Process, policy: Array) -> Policy:
    def probabilities(position: int, state: State) -> list[float]:
        stretch = position * process.stretches // process.horizon
        index = (state[0] * process.vocabulary + state[1]) * (process.allowed_slips + 2) + state[2]
        return [float(p) for p in policy[0, stretch, index]]

    return probabilities


@pytest.mark.parametrize(
    "family, vocabulary, horizon, allowed, stretches",
    [*itertools.product(FAMILIES, (3,), (2, 3, 5), (0, 1), (1, 2)), ("early_fork", 8, 2, 1, 2)],
)
def test_against_every_sequence(
    family: str, vocabulary: int, horizon: int, allowed: int, stretches: int
) -> None:
    """J, L', Delta, movement and the bound, by enumeration from every start. Eight symbols lie otherwise in memory."""
    process = Process(family, vocabulary, horizon, allowed, stretches)
    rules = Rules(family, vocabulary, horizon, allowed)
    mu, pi = table(process, 1), table(process, 2)
    found = compare(process, mu, pi, 0.5 * np.abs(mu - pi).sum(-1))
    starts = range(1, vocabulary)
    before, after = (as_function(process, policy) for policy in (mu, pi))
    triples = [(rules.flatten(before, s), rules.flatten(after, s), rules.rewards(s)) for s in starts]
    values = [enumeration.value(p, r, ()) for _, p, r in triples]
    assert returns_by_start(process, pi)[0] == pytest.approx(values, abs=1e-12)
    movement = np.mean([enumeration.mean_tv(m, p, horizon) for m, p, _ in triples], 0)
    largest = np.max([enumeration.largest_tv(m, p, horizon) for m, p, _ in triples], 0)
    rollout_return = fmean(enumeration.value(m, r, ()) for m, _, r in triples)
    surrogate = fmean(enumeration.surrogate(m, p, r) for m, p, r in triples)
    error = np.mean([enumeration.residual(m, p, r, horizon) for m, p, r in triples], 0)
    sums = found.rollout_return[0], found.returns[0], found.surrogate[0].sum()
    assert sums == pytest.approx((rollout_return, fmean(values), surrogate), abs=1e-12)
    by_position = np.stack([found.error[0], found.movement[0], found.largest[0]])
    assert by_position == pytest.approx(np.array([error, movement, largest]), abs=1e-12)
    measured = movement.tolist(), largest.tolist()
    bound = 4 * sum(u * sum(largest[t + 1 :]) for t, u in enumerate(movement))
    assert bounds.residual_bound(*measured) == pytest.approx(bound, rel=1e-12)
    product = 4 * sum(u * (1 - np.prod(1 - largest[t + 1 :])) for t, u in enumerate(movement))
    assert bounds.product_residual_bound(*measured) == pytest.approx(product, rel=1e-12)
    rate = max(fmean(movement[:t]) for t in range(1, horizon))
    theorem = 2 * horizon * (horizon - 1) * rate * max(largest)
    assert bounds.measured_constant(*measured) == pytest.approx(theorem, rel=1e-12)
    assert bounds.measured_constant([0.0] * horizon, [0.0] * horizon) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_follows_the_rules(family: str) -> None:
    """Every sampled response has the states and the reward that the plain rules give its tokens."""
    process, rules = Process(family, 5, 17, 2, 3), Rules(family, 5, 17, 2)
    policy = table(process, 9, 0.5)
    generator = np.random.default_rng(0)
    starts = generator.choice(process.starts, (1, 200))
    places, rewards = sample(process, policy, starts, generator.random((1, 200, 17)))
    for row in range(200):
        tokens = tuple(int(place) % 5 for place in places[0, row])
        states = rules.states_along(int(starts[0, row]) // process.slip_levels, tokens)
        assert rewards[0, row] == rules.reward(states[-1])
        for t, (mode, previous, slips) in enumerate(states[:-1]):
            state = (mode * 5 + previous) * 4 + slips
            assert places[0, row, t] == ((t * 3 // 17) * process.states + state) * 5 + tokens[t]


def test_sampling_has_the_right_frequencies() -> None:
    process = Process("no_fork", 4, 2, 0, 1)
    policy = table(process, 10)
    count = 40_000
    uniforms = np.random.default_rng(1).random((1, count, 2))
    places, _ = sample(process, policy, np.full((1, count), process.starts[0]), uniforms)
    check_frequencies(torch.from_numpy(places[0, :, 0] % 4), policy[0, 0, process.starts[0]].tolist())
