"""Masks of 16,384-token responses in float32 and bfloat16 against float64. `pytest -s` prints the tables.

Half of the responses are random; in the other half every second token lies 1e-8 to 3e-5 from CPPO's prefix threshold,
where random data has almost none. A disagreement counts as rounding where the token lies within MARGIN of a
threshold. CPPO's threshold moves with delta_b W, and W reaches 15,000: delta_b = 0.02 as a float32 number is 4.5e-10
off, which is 7e-6 at the last token. That much is the input's rounding, not the sum's, and is added to MARGIN.
"""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.weights import effective_delta_b, position_weights, prefix_excess, prefix_weight
from tests.maths.maths_batches import TokenBatch, apply

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
def long_batch(rate: float, w_min: float, seed: int = 0) -> TokenBatch:
    """ROWS responses of LENGTH tokens, float64; the second half critical for that rate and weight. To read only."""
    generator = torch.Generator().manual_seed(seed)
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


def prefix_distance(batch: TokenBatch, w_min: float, mode: str) -> Tensor:
    """[B, T] distance of w D to the nearer of CPPO's thresholds."""
    weights = weights_of(batch.valid, w_min)
    rate = effective_delta_b(batch.divergence, batch.valid, DELTA_B, mode)
    weighted = weights * batch.divergence
    limit = DELTA - prefix_excess(weights, batch.divergence, batch.valid, rate)
    return torch.minimum((weighted - limit).abs(), (weighted - DELTA).abs())


def allowance(batch: TokenBatch, constants: dict) -> Tensor:
    """[B, T]: what delta_b's rounding to float32 moves the prefix threshold; 0 for a rule without a budget."""
    weights = weights_of(batch.valid, constants.get("w_min", 1.0))
    if "delta_b_mode" not in constants:
        return torch.zeros_like(weights)
    settings = batch.valid, DELTA_B, constants["delta_b_mode"]
    rate = effective_delta_b(batch.divergence, *settings)
    narrow = effective_delta_b(batch.divergence.float(), *settings).double()
    return (narrow - rate).abs()[:, None] * prefix_weight(weights)


def nearest(values: Tensor, *thresholds: float) -> Tensor:
    return torch.stack([(values - threshold).abs() for threshold in thresholds]).amin(0)


def ratios(batch: TokenBatch) -> Tensor:
    return (batch.logp - batch.rollout_logp).exp()


def mean_ratio(batch: TokenBatch) -> Tensor:
    return (batch.logp - batch.rollout_logp).mean(1, keepdim=True).exp().expand(batch.valid.shape)


def mean_divergence(batch: TokenBatch) -> Tensor:
    return batch.divergence.mean(1, keepdim=True).expand(batch.valid.shape)


# title -> (rule, constants, rate and w_min of the critical half, distance to the nearest threshold)
CASES: dict[str, tuple[str, dict, tuple[float, float], Callable[[TokenBatch], Tensor]]] = {
    "cppo, fixed": (
        "cppo",
        CPPO | {"delta_b_mode": "fixed"},
        (DELTA_B, W_MIN),
        lambda b: prefix_distance(b, W_MIN, "fixed"),
    ),
    "cppo, adaptive at its ceiling": (
        "cppo",
        CPPO | {"delta_b_mode": "adaptive"},
        (2 * DELTA_B, W_MIN),
        lambda b: prefix_distance(b, W_MIN, "adaptive"),
    ),
    "cppo_no_position_weight": (
        "cppo_no_position_weight",
        {"delta": DELTA, "delta_b": DELTA_B, "delta_b_mode": "fixed"},
        (DELTA_B, 1.0),
        lambda b: prefix_distance(b, 1.0, "fixed"),
    ),
    "cppo_no_prefix_budget": (
        "cppo_no_prefix_budget",
        {"delta": 0.03, "w_min": W_MIN},
        (DELTA_B, W_MIN),
        lambda b: nearest(weights_of(b.valid, W_MIN) * b.divergence, 0.03),
    ),
    "dppo": ("dppo", {"delta": 0.03}, (DELTA_B, W_MIN), lambda b: nearest(b.divergence, 0.03)),
    "trm_avg": (
        "trm_avg",
        {"delta_avg": 0.02},
        (DELTA_B, W_MIN),
        lambda b: nearest(mean_divergence(b), 0.02),
    ),
    "grpo": (
        "grpo",
        {"clip_low": 0.2, "clip_high": 0.28},
        (DELTA_B, W_MIN),
        lambda b: nearest(ratios(b), 0.8, 1.28),
    ),
    "gspo": (
        "gspo",
        {"clip_low": 3e-4, "clip_high": 4e-4},
        (DELTA_B, W_MIN),
        lambda b: nearest(mean_ratio(b), 1 - 3e-4, 1 + 4e-4),
    ),
    "geo_mean": (
        "geo_mean",
        {"log_clip_low": 0.4, "log_clip_high": 0.4},
        (DELTA_B, W_MIN),
        lambda b: nearest(b.logp - b.rollout_logp, -0.4, 0.4),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("title", CASES)
def test_masks_of_16k_tokens_differ_by_rounding_only(
    title: str, dtype: torch.dtype, record_property: Callable[[str, object], None]
) -> None:
    name, constants, critical, distance = CASES[title]
    wide = long_batch(*critical)
    narrow = cast(wide, dtype)
    if dtype == torch.bfloat16:
        wide = cast(narrow, torch.float64)  # the reference sees the same rounded inputs
    keep = apply(name, *wide, **constants).keep
    differs = apply(name, *narrow, **constants).keep != keep
    # A token whose log-ratio rounds to the other sign changes sides; away from that, the threshold decides.
    sided = (wide.logp - wide.rollout_logp).abs() > MARGIN
    decided = sided & (distance(wide) > MARGIN + allowance(wide, constants))
    counts = {
        "tokens": keep.numel(),
        "kept": int(keep.sum()),
        "near a threshold": int((~decided).sum()),
        "disagreements": int(differs.sum()),
        "beyond 1e-6": int((differs & sided & (distance(wide) > MARGIN)).sum()),
        "beyond 1e-6 and delta_b's rounding": int((differs & decided).sum()),
    }
    for key, count in counts.items():
        record_property(key, count)
    print(f"\n{title:32s} {dtype!s:15s} " + ", ".join(f"{key} {count}" for key, count in counts.items()))
    assert counts["beyond 1e-6 and delta_b's rounding"] == 0
    assert int(decided.sum()) > 0.5 * keep.numel() or name in ("trm_avg", "gspo")
    if "delta_b_mode" in constants and dtype == torch.float32:
        assert counts["near a threshold"] > 1000, "the critical half must press the threshold"


def two_sums(weights: Tensor, divergence: Tensor, rate: Tensor) -> Tensor:
    """S_{t-1} - delta_b W_{t-1} from two separate running sums: what `prefix_excess` avoids."""
    return prefix_weight(weights * divergence) - rate[:, None] * prefix_weight(weights)


def test_two_running_sums_lose_much_more_than_one(record_property: Callable[[str, object], None]) -> None:
    rate = 2.0**-6  # the same number in float32, so that only the sums differ
    weights = weights_of(torch.ones(ROWS, LENGTH, dtype=torch.bool), W_MIN)
    divergence = critical_divergence(rate, weights, torch.Generator().manual_seed(1))
    valid = torch.ones_like(divergence, dtype=torch.bool)
    rates = torch.full((ROWS,), rate, dtype=torch.float64)
    exact = prefix_excess(weights, divergence, valid, rates)
    narrow = weights.float(), divergence.float(), rates.float()
    one = prefix_excess(narrow[0], narrow[1], valid, narrow[2]).double()
    two = two_sums(*narrow).double()
    weighted = weights * divergence
    failing = [weighted > DELTA - excess for excess in (exact, one, two)]
    decided = (weighted - (DELTA - exact)).abs() > MARGIN
    errors = [float((excess - exact).abs().max()) for excess in (one, two)]
    wrong = [int(((failing[0] != other) & decided).sum()) for other in failing[1:]]
    for label, error, count in zip(("one sum", "two sums"), errors, wrong, strict=True):
        record_property(f"{label}: largest error", error)
        record_property(f"{label}: wrong tests beyond 1e-6", count)
        print(
            f"\n{label:9s} largest error {error:.2e}, wrong prefix tests beyond 1e-6: {count} of {exact.numel()}",
            end="",
        )
    assert errors[0] < MARGIN
    assert errors[1] > 20 * errors[0]
    assert wrong[0] == 0 and wrong[1] > 0.02 * exact.numel()


def test_soft_weights_of_16k_tokens_hold_in_float32(record_property: Callable[[str, object], None]) -> None:
    batch = long_batch(DELTA_B, W_MIN)
    parameters = CPPO | {"delta_b_mode": "fixed"}
    wide = apply("cppo_soft", *batch, **parameters).keep
    error = float((apply("cppo_soft", *cast(batch, torch.float32), **parameters).keep - wide).abs().max())
    record_property("largest error of a soft weight", error)
    print(f"\nlargest error of a soft weight {error:.2e}")
    assert error < 1e-4
