"""CPPO's masks against a loop, and its limits in responses of 16,384 tokens in float32 against float64."""

import math

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cppo_lab.maths.masks import budget_terms
from cppo_lab.maths.tokens import Tokens, summarise
from tests.maths.maths_batches import apply, random_batch
from tests.oracles.authors import authors_loss

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=60)


@MANY
@given(
    seed=SEEDS,
    delta=st.floats(0.02, 0.3),
    delta_b=st.floats(0.005, 0.2),
    w_min=st.floats(0.05, 1),
    adaptive=st.booleans(),
)
@example(seed=11682, delta=0.125, delta_b=0.125, w_min=0.5, adaptive=False)  # a response of one token
def test_cppo_agrees_with_the_loop(
    seed: int, delta: float, delta_b: float, w_min: float, adaptive: bool
) -> None:
    """The authors', with the paper's cap on the budget and the own length of each response."""
    batch, constants = random_batch(seed), {"delta": delta, "delta_b": delta_b, "w_min": w_min}
    batch = batch._replace(divergence=(batch.logp.exp() - batch.rollout_logp.exp()).abs())
    keep = apply("cppo", *batch, **constants, delta_b_mode="adaptive" if adaptive else "fixed").keep
    for row, length in enumerate(batch.valid.sum(1).tolist()):
        now, then, advantages = (part[row, :length].tolist() for part in batch[:3])
        # The released code gives a response of a single token the weight w_min, where the paper's equation has 1.
        of_row = constants | ({"w_min": 1.0} if length == 1 else {})
        [mask] = authors_loss(
            [now], [then], advantages[:1] or [0.0], width=length, **of_row, cap=2.0, adaptive=adaptive
        ).mask
        assert keep[row].tolist() == mask + [0] * (12 - length)


@MANY
@given(seed=SEEDS, delta=st.floats(0.02, 0.3), w_min=st.floats(0.05, 1), padded=st.booleans())
def test_reversed_weights_are_those_of_the_response_read_backwards(
    seed: int, delta: float, w_min: float, padded: bool
) -> None:
    batch, places = random_batch(seed), torch.arange(12)
    constants = {"delta": delta, "w_min": w_min, "span": 12 if padded else None}
    order = torch.where(batch.valid, batch.valid.sum(1, keepdim=True) - 1 - places, places)
    backwards = (part.gather(1, order) for part in batch)
    expected = apply("cppo_no_prefix_budget", *backwards, **constants).keep.gather(1, order)
    assert torch.equal(apply("cppo_no_prefix_budget_reversed", *batch, **constants).keep, expected)


def test_an_unlimited_budget_leaves_no_nan_in_the_soft_weights() -> None:
    """`cppo` without a budget: the golden vectors."""
    constants = {"delta": 0.15, "delta_b": math.inf, "w_min": 0.8, "delta_b_mode": "adaptive"}
    result = apply("cppo_soft", *random_batch(0), **constants)
    assert "delta_b_mean" not in summarise(result.stats) and bool(result.objective.isfinite().all())


def test_limits_of_16k_tokens_in_float32_are_those_in_float64() -> None:
    """Where the budget is spent on average, so that the prefix stays near its limit. delta_b is a number of float32."""
    rate, draw = 1 / 64, torch.Generator().manual_seed(0)
    narrow = (-rate * torch.rand(8, 16384, generator=draw, dtype=torch.float64).log()).float()
    constants = {"delta": 0.15, "delta_b": rate, "w_min": 0.8, "delta_b_mode": "fixed"}
    terms = []
    for divergence in (narrow, narrow.double()):
        logp, ones = torch.zeros_like(divergence), torch.ones_like(divergence)
        terms.append(budget_terms(Tokens(logp, logp, ones, ones, divergence), constants))
    below = terms[1].limit < 0.15
    assert 0.1 < float(below.double().mean()) < 0.9
    torch.testing.assert_close(terms[0].limit.double(), terms[1].limit, rtol=0, atol=1e-6)
