"""CPPO's masks against a loop, and masks of 16,384-token responses in float32 and bfloat16 against float64.

Half of the long responses are random; in the other half every second token lies 1e-8 to 3e-5 from CPPO's prefix
threshold, where random data has almost none. A disagreement counts as rounding where the token lies within MARGIN of a
threshold. CPPO's threshold moves with delta_b W, and W reaches 15,000: delta_b = 0.02 as a float32 number is 4.5e-10
off, which is 7e-6 at the last token. That much is the input's rounding, not the sum's, and is added to MARGIN.
"""

import math
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cppo_lab.maths.tokens import summarise
from cppo_lab.maths.weights import effective_delta_b, exclusive_sum, position_weights, prefix_excess
from tests.maths.maths_batches import TokenBatch, apply, random_batch
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
    """`cppo` without a budget: REDUCTIONS of test_rules.py."""
    constants = {"delta": 0.15, "delta_b": math.inf, "w_min": 0.8, "delta_b_mode": "adaptive"}
    result = apply("cppo_soft", *random_batch(0), **constants)
    assert "delta_b_mean" not in summarise(result.stats) and bool(result.objective.isfinite().all())


LENGTH, ROWS = 16384, 8
MARGIN = 1e-6
DELTA, W_MIN, DELTA_B = 0.15, 0.8, 0.02
CPPO = {"delta": DELTA, "delta_b": DELTA_B, "w_min": W_MIN}
WEIGHTS = position_weights(torch.ones(ROWS, LENGTH), W_MIN, dtype=torch.float64)


def make_critical(divergence: Tensor, rate: float, generator: torch.Generator) -> None:
    """Put every second token of [B, T] within 3e-5 of the prefix threshold of `rate`, and the rest below the rate."""
    shape, weights = divergence.shape, WEIGHTS[0]
    offset = 10 ** (-8 + 3.5 * torch.rand(shape, generator=generator, dtype=torch.float64))
    offset *= torch.where(torch.rand(shape, generator=generator) < 0.5, 1.0, -1.0)
    divergence.uniform_(0, rate, generator=generator)
    excess = torch.zeros(shape[0], dtype=torch.float64)
    for t in range(shape[1]):
        if t % 2:
            limit = (DELTA - excess).clamp_max(DELTA)
            divergence[:, t] = ((limit + offset[:, t]) / weights[t]).clamp_min(0)
        excess += weights[t] * (divergence[:, t] - rate)


@cache
def long_batch(rate: float) -> TokenBatch:
    """ROWS responses of LENGTH tokens, float64; the second half critical for that rate. To read only."""
    generator = torch.Generator().manual_seed(0)
    logp, drift, divergence = torch.rand(3, ROWS, LENGTH, generator=generator, dtype=torch.float64)
    advantages = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64).expand_as(logp)
    divergence = -0.02 * divergence.clamp_min(1e-9).log()
    make_critical(divergence[ROWS // 2 :], rate, generator)
    valid = torch.ones_like(logp, dtype=torch.bool)
    return TokenBatch(-3 * logp - 0.1, -3 * logp - 0.1 + drift - 0.5, advantages, valid, divergence)


def cast(batch: TokenBatch, dtype: torch.dtype) -> TokenBatch:
    return TokenBatch(*(tensor if tensor.dtype == torch.bool else tensor.to(dtype) for tensor in batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode, rate", [("fixed", DELTA_B), ("adaptive", 2 * DELTA_B)])  # at its ceiling
def test_masks_of_16k_tokens_differ_by_rounding_only(mode: str, rate: float, dtype: torch.dtype) -> None:
    """Rules without a prefix sum: the test of narrower numbers in test_rules.py."""
    wide = long_batch(rate)
    narrow = cast(wide, dtype)
    if dtype == torch.bfloat16:
        wide = cast(narrow, torch.float64)  # the reference sees the same rounded inputs
    masks = [apply("cppo", *batch, **CPPO, delta_b_mode=mode).keep for batch in (wide, narrow)]
    # A token whose log-ratio rounds to the other sign changes sides; away from that, the threshold decides.
    sided = (wide.logp - wide.rollout_logp).abs() > MARGIN
    d, valid, weighted = wide.divergence, wide.valid, WEIGHTS * wide.divergence
    exact, rounded = (effective_delta_b(each, valid, DELTA_B, mode) for each in (d, d.float()))
    limit = DELTA - prefix_excess(WEIGHTS, d, valid, exact)
    away = torch.minimum((weighted - limit).abs(), (weighted - DELTA).abs())
    moved = (rounded - exact).abs()[:, None] * exclusive_sum(WEIGHTS)  # by the rate's rounding
    decided = sided & (away > MARGIN + moved)
    assert not ((masks[0] != masks[1]) & decided).any() and int(decided.sum()) > 0.5 * decided.numel()
    if dtype == torch.float32:
        assert int((~decided).sum()) > 1000, "the critical half must press the threshold"


def test_soft_weights_of_16k_tokens_hold_in_float32() -> None:
    batches = [cast(long_batch(DELTA_B), dtype) for dtype in (torch.float64, torch.float32)]
    wide, narrow = (apply("cppo_soft", *batch, **CPPO, delta_b_mode="fixed").keep for batch in batches)
    assert float((narrow - wide).abs().max()) < 1e-4
