"""CPPO's masks against a loop, and masks of 16,384-token responses in float32 and bfloat16 against float64.

Half of the long responses are random; in the other half every second token lies 1e-8 to 3e-5 from CPPO's prefix
threshold, where random data has almost none. A disagreement counts as rounding where the token lies within MARGIN of a
threshold. CPPO's threshold moves with delta_b W, and W reaches 15,000: delta_b = 0.02 as a float32 number is 4.5e-10
off, which is 7e-6 at the last token. That much is the input's rounding, not the sum's, and is added to MARGIN.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cppo_lab.maths.tokens import summarise
from cppo_lab.maths.weights import effective_delta_b, position_weights, prefix_excess, prefix_weight
from tests.maths.maths_batches import TokenBatch, apply, random_batch
from tests.oracles.authors import authors_loss

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=150)


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


@pytest.mark.parametrize("name", ["cppo", "cppo_soft"])
def test_an_unlimited_budget_leaves_no_nan(name: str) -> None:
    constants = {"delta": 0.15, "delta_b": math.inf, "w_min": 0.8, "delta_b_mode": "adaptive"}
    result = apply(name, *random_batch(0), **constants)
    summary = summarise(result.stats)
    assert "delta_b_mean" not in summary and all(map(math.isfinite, summary.values()))
    assert bool(torch.isfinite(result.objective).all())


LENGTH, ROWS = 16384, 8
MARGIN = 1e-6
DELTA, W_MIN, DELTA_B = 0.15, 0.8, 0.02
CPPO = {"delta": DELTA, "delta_b": DELTA_B, "w_min": W_MIN}


def weights_of(valid: Tensor, w_min: float) -> Tensor:
    return position_weights(valid, w_min, dtype=torch.float64)


def critical_divergence(rate: float, weights: Tensor, generator: torch.Generator) -> Tensor:
    """[B, T] float64: every second token within 3e-5 of the prefix threshold of `rate`, the rest below the rate."""
    shape = weights.shape
    offset = 10 ** (-8 + 3.5 * torch.rand(shape, generator=generator, dtype=torch.float64))
    offset *= torch.where(torch.rand(shape, generator=generator) < 0.5, 1.0, -1.0)
    divergence = rate * torch.rand(shape, generator=generator, dtype=torch.float64)
    excess = torch.zeros(shape[0], dtype=torch.float64)
    for t in range(shape[1]):
        if t % 2:
            limit = (DELTA - excess).clamp_max(DELTA)
            divergence[:, t] = ((limit + offset[:, t]) / weights[:, t]).clamp_min(0)
        excess += weights[:, t] * (divergence[:, t] - rate)
    return divergence


@cache
def long_batch(rate: float, w_min: float) -> TokenBatch:
    """ROWS responses of LENGTH tokens, float64; the second half critical for that rate and weight. To read only."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, LENGTH)
    valid = torch.ones(shape, dtype=torch.bool)
    logp = -3 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.1
    rollout_logp = logp - 0.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    advantages = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64).expand(shape).clone()
    divergence = -0.02 * torch.rand(shape, generator=generator, dtype=torch.float64).clamp_min(1e-9).log()
    half = ROWS // 2
    divergence[half:] = critical_divergence(rate, weights_of(valid, w_min)[half:], generator)
    return TokenBatch(logp, rollout_logp, advantages, valid, divergence)


def cast(batch: TokenBatch, dtype: torch.dtype) -> TokenBatch:
    return TokenBatch(*(tensor if tensor.dtype == torch.bool else tensor.to(dtype) for tensor in batch))


def prefix_distance(batch: TokenBatch, w_min: float, mode: str) -> tuple[Tensor, Tensor]:
    """[B, T] distance of w D to the nearer of CPPO's thresholds; what delta_b's rounding to float32 moves it by."""
    weights, weighted = weights_of(batch.valid, w_min), weights_of(batch.valid, w_min) * batch.divergence
    rate = effective_delta_b(batch.divergence, batch.valid, DELTA_B, mode)
    narrow = effective_delta_b(batch.divergence.float(), batch.valid, DELTA_B, mode).double()
    limit = DELTA - prefix_excess(weights, batch.divergence, batch.valid, rate)
    moved = (narrow - rate).abs()[:, None] * prefix_weight(weights)
    return torch.minimum((weighted - limit).abs(), (weighted - DELTA).abs()), moved


def nearest(values: Tensor, *thresholds: float) -> tuple[Tensor, Tensor]:
    distances = torch.stack([(values - threshold).abs() for threshold in thresholds]).amin(0)
    return distances, torch.zeros_like(distances)


def mean_of(values: Tensor) -> Tensor:
    return values.mean(1, keepdim=True).expand(values.shape)


# title -> (rule, constants, rate and w_min of the critical half, distance to the nearest threshold)
Distance = Callable[[TokenBatch], tuple[Tensor, Tensor]]
CASES: dict[str, tuple[str, dict[str, Any], tuple[float, float], Distance]] = {
    "cppo, fixed": (
        *("cppo", CPPO | {"delta_b_mode": "fixed"}, (DELTA_B, W_MIN)),
        lambda b: prefix_distance(b, W_MIN, "fixed"),
    ),
    "cppo, adaptive at its ceiling": (
        *("cppo", CPPO | {"delta_b_mode": "adaptive"}, (2 * DELTA_B, W_MIN)),
        lambda b: prefix_distance(b, W_MIN, "adaptive"),
    ),
    "no prefix budget": (
        *("cppo_no_prefix_budget", {"delta": 0.03, "w_min": W_MIN}, (DELTA_B, W_MIN)),
        lambda b: nearest(weights_of(b.valid, W_MIN) * b.divergence, 0.03),
    ),
    "grpo": (
        *("grpo", {"clip_low": 0.2, "clip_high": 0.28}, (DELTA_B, W_MIN)),
        lambda b: nearest((b.logp - b.rollout_logp).exp(), 0.8, 1.28),
    ),
    "gspo": (
        *("gspo", {"clip_low": 3e-4, "clip_high": 4e-4}, (DELTA_B, W_MIN)),
        lambda b: nearest(mean_of(b.logp - b.rollout_logp).exp(), 1 - 3e-4, 1 + 4e-4),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("title", CASES)
def test_masks_of_16k_tokens_differ_by_rounding_only(title: str, dtype: torch.dtype) -> None:
    name, constants, critical, distance = CASES[title]
    wide = long_batch(*critical)
    narrow = cast(wide, dtype)
    if dtype == torch.bfloat16:
        wide = cast(narrow, torch.float64)  # the reference sees the same rounded inputs
    keep = apply(name, *wide, **constants).keep
    differs = apply(name, *narrow, **constants).keep != keep
    # A token whose log-ratio rounds to the other sign changes sides; away from that, the threshold decides.
    sided = (wide.logp - wide.rollout_logp).abs() > MARGIN
    away, moved = distance(wide)
    decided = sided & (away > MARGIN + moved)
    assert int((differs & decided).sum()) == 0
    assert int(decided.sum()) > 0.5 * keep.numel() or name == "gspo"
    if "delta_b_mode" in constants and dtype == torch.float32:
        assert int((~decided).sum()) > 1000, "the critical half must press the threshold"


def test_soft_weights_of_16k_tokens_hold_in_float32() -> None:
    batch, constants = long_batch(DELTA_B, W_MIN), CPPO | {"delta_b_mode": "fixed"}
    wide, narrow = (apply("cppo_soft", *b, **constants).keep for b in (batch, cast(batch, torch.float32)))
    assert float((narrow - wide).abs().max()) < 1e-4
