"""Properties on random inputs: divergence bounds, invariances, agreement with the loop reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.aggregation import MODES, aggregate
from cppo_lab.maths.weights import effective_delta_b
from tests.maths.maths_batches import apply, distributions, random_batch
from tests.oracles import loops

SEEDS = st.integers(0, 2**32 - 1)
ROUNDING = 1e-14  # vectorised exp and row sums may round by where a row lies in memory
FEW = settings(max_examples=40, deadline=None, derandomize=True)
MANY = settings(max_examples=150, deadline=None, derandomize=True)


@pytest.mark.parametrize("measure", divergences.MEASURES)
@MANY
@given(seed=SEEDS, vocabulary=st.integers(2, 30), k=st.integers(1, 30), sharpness=st.floats(0.1, 6))
def test_binary_topk_exact_are_ordered(
    measure: str, seed: int, vocabulary: int, k: int, sharpness: float
) -> None:
    mu, pi, tokens = distributions(seed, 8, vocabulary, sharpness)
    sampled, current = (d.gather(-1, tokens[:, None])[:, 0] for d in (mu, pi))
    previous = divergences.binary(current, sampled, measure)
    slack = 1e-9  # the floor of "other"
    assert bool((previous >= 0).all())
    for size in (min(k, vocabulary), vocabulary):
        top = mu.topk(size)
        value = divergences.topk(top.indices, top.values, pi, tokens, sampled, measure=measure)
        assert bool((previous <= value + slack).all())
        previous = value
    assert bool((previous <= divergences.exact(mu, pi, measure) + slack).all())


@pytest.mark.parametrize("measure", divergences.MEASURES)
@FEW
@given(seed=SEEDS, sharpness=st.floats(0.1, 30))
def test_divergences_in_float32_are_finite_and_close(measure: str, seed: int, sharpness: float) -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        mu, pi, tokens = distributions(seed, 16, 12, sharpness, dtype)
        sampled, current = (d.gather(-1, tokens[:, None])[:, 0] for d in (mu, pi))
        top = mu.topk(4)
        results.append(
            torch.stack(
                [
                    divergences.exact(mu, pi, measure).double(),
                    divergences.topk(top.indices, top.values, pi, tokens, sampled, measure=measure).double(),
                    divergences.binary(current, sampled, measure).double(),
                ]
            )
        )
    assert bool(torch.isfinite(results[0]).all())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-4)


@MANY
@given(
    seed=SEEDS,
    delta=st.floats(0.02, 0.3),
    delta_b=st.floats(0.005, 0.2),
    w_min=st.floats(0.05, 1),
    adaptive=st.booleans(),
)
def test_cppo_agrees_with_the_loop(
    seed: int, delta: float, delta_b: float, w_min: float, adaptive: bool
) -> None:
    batch = random_batch(seed)
    mode = "adaptive" if adaptive else "fixed"
    result = apply("cppo", *batch, delta=delta, delta_b=delta_b, w_min=w_min, delta_b_mode=mode)
    by_token = by_prefix = 0
    for row, length in enumerate(batch.valid.sum(1).tolist()):
        mask, token, prefix = loops.cppo_response(
            (batch.logp - batch.rollout_logp)[row, :length].tolist(),
            batch.advantages[row, :length].tolist(),
            batch.divergence[row, :length].tolist(),
            delta=delta,
            delta_b=delta_b,
            w_min=w_min,
            adaptive=adaptive,
        )
        assert result.keep[row, :length].tolist() == mask
        by_token, by_prefix = by_token + token, by_prefix + prefix
    assert int(result.stats["masked_by_token"]) == by_token
    assert int(result.stats["masked_by_prefix"]) == by_prefix
    assert int(result.stats["masked"]) == by_token + by_prefix


@MANY
@given(seed=SEEDS, delta=st.floats(0.02, 0.3), w_min=st.floats(0.05, 1), padded=st.booleans())
def test_reversed_weights_agree_with_the_loop(seed: int, delta: float, w_min: float, padded: bool) -> None:
    batch = random_batch(seed)
    span = batch.valid.shape[1] if padded else None
    result = apply("cppo_no_prefix_budget_reversed", *batch, delta=delta, w_min=w_min, span=span)
    for row, length in enumerate(batch.valid.sum(1).tolist()):
        mask = loops.reversed_weights_response(
            (batch.logp - batch.rollout_logp)[row, :length].tolist(),
            batch.advantages[row, :length].tolist(),
            batch.divergence[row, :length].tolist(),
            delta=delta,
            w_min=w_min,
            span=span,
        )
        assert result.keep[row, :length].tolist() == mask
        assert not result.keep[row, length:].any()


@MANY
@given(seed=SEEDS, delta_b=st.floats(0.01, 0.3))
def test_the_adaptive_budget_is_a_clamped_percentile(seed: int, delta_b: float) -> None:
    batch = random_batch(seed)
    actual = effective_delta_b(batch.divergence, batch.valid, delta_b, "adaptive")
    for row, length in enumerate(batch.valid.sum(1).tolist()):
        values = batch.divergence[row, :length].tolist()
        expected = min(max(loops.percentile_90(values), delta_b), 2 * delta_b) if values else delta_b
        assert float(actual[row]) == pytest.approx(expected, rel=1e-12)


@FEW
@given(seed=SEEDS)
def test_soft_weights_agree_with_the_hard_mask(seed: int) -> None:
    batch = random_batch(seed)
    parameters = {"delta": 0.1, "delta_b": 0.02, "w_min": 0.8, "delta_b_mode": "adaptive"}
    hard = apply("cppo", *batch, **parameters)
    for gate in ("inverse", "sapo_admissible"):
        soft = apply("cppo_soft", *batch, **parameters, gate=gate)
        assert torch.equal(soft.keep == 1, hard.keep == 1) or gate == "sapo_admissible"
        assert bool((soft.keep >= hard.keep).all() and (soft.keep <= batch.valid).all())
        assert bool((soft.keep[batch.valid] > 0).all())


@pytest.mark.parametrize("mode", MODES)
@FEW
@given(seed=SEEDS, cut=st.integers(1, 4))
def test_micro_batches_add_up(mode: str, seed: int, cut: int) -> None:
    batch = random_batch(seed)
    lengths = batch.valid.sum(1)
    denominator = lengths.sum() if mode == "token-mean" else (lengths > 0).sum()
    whole = aggregate(batch.logp, batch.valid, mode)
    parts = [
        aggregate(batch.logp[rows], batch.valid[rows], mode, denominator=denominator)
        for rows in (slice(0, cut), slice(cut, None))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
