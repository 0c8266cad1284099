"""Properties on random inputs: divergence bounds, invariances, agreement with the loop reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.aggregation import MODES, aggregate
from cppo_lab.maths.budget import effective_delta_b
from cppo_lab.maths.metrics import merge, summarise
from cppo_lab.maths.rules import RULES, get_rule
from tests.maths.maths_batches import TokenBatch, constants, distributions, random_batch
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


def padded(batch: TokenBatch, extra: int, seed: int) -> TokenBatch:
    """The same tokens with `extra` more columns and large finite rubbish at every padded place."""
    generator = torch.Generator().manual_seed(seed)
    valid = torch.nn.functional.pad(batch.valid, (0, extra))
    fields = {}
    for name in ("logp", "rollout_logp", "advantages", "divergence"):
        rubbish = 1e30 * torch.randn(valid.shape, generator=generator, dtype=torch.float64)
        values = torch.nn.functional.pad(getattr(batch, name), (0, extra))
        fields[name] = torch.where(valid, values, rubbish)
    return TokenBatch(valid=valid, **fields)


@pytest.mark.parametrize("name", RULES)
@FEW
@given(seed=SEEDS, extra=st.integers(0, 5))
def test_padding_does_not_matter(name: str, seed: int, extra: int) -> None:
    batch = random_batch(seed)
    wide = padded(batch, extra, seed)
    parameters = constants(name, batch)
    wide_parameters = constants(name, wide)
    if "permutation" in parameters:
        wide_parameters["permutation"] = torch.nn.functional.pad(
            parameters["permutation"], (0, extra), value=-7
        )
    plain, result = get_rule(name)(*batch, **parameters), get_rule(name)(*wide, **wide_parameters)
    width = batch.valid.shape[1]
    torch.testing.assert_close(result.keep[:, :width], plain.keep, rtol=ROUNDING, atol=0)
    torch.testing.assert_close(result.objective[:, :width], plain.objective, rtol=ROUNDING, atol=0)
    assert not result.keep[:, width:].any() and not result.objective[:, width:].any()
    assert result.stats.keys() == plain.stats.keys()
    for key, value in plain.stats.items():
        torch.testing.assert_close(result.stats[key], value, rtol=1e-12, atol=1e-12)
    for mode in MODES:
        horizon = width if mode == "seq-mean-token-sum-norm" else None
        torch.testing.assert_close(
            aggregate(result.objective, wide.valid, mode, horizon=horizon),
            aggregate(plain.objective, batch.valid, mode, horizon=horizon),
            rtol=1e-12,
            atol=1e-12,
        )


@pytest.mark.parametrize("name", RULES)
@FEW
@given(seed=SEEDS)
def test_responses_are_independent_of_their_order_and_company(name: str, seed: int) -> None:
    batch = random_batch(seed)
    parameters = constants(name, batch)
    order = torch.randperm(len(batch.valid), generator=torch.Generator().manual_seed(seed))
    whole = get_rule(name)(*batch, **parameters)

    def rows(index: torch.Tensor):
        chosen = {k: v[index] if k == "permutation" else v for k, v in parameters.items()}
        return get_rule(name)(*(tensor[index] for tensor in batch), **chosen)

    permuted = rows(order)
    torch.testing.assert_close(permuted.keep, whole.keep[order], rtol=ROUNDING, atol=0)
    torch.testing.assert_close(permuted.objective, whole.objective[order], rtol=ROUNDING, atol=0)
    parts = [rows(order[:2]), rows(order[2:])]
    merged, expected = summarise(merge([part.stats for part in parts])), summarise(whole.stats)
    assert merged == pytest.approx(expected, rel=1e-12, abs=1e-12)


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
    result = get_rule("cppo")(*batch, delta=delta, delta_b=delta_b, w_min=w_min, delta_b_mode=mode)
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
    hard = get_rule("cppo")(*batch, **parameters)
    for gate in ("inverse", "sapo_admissible"):
        soft = get_rule("cppo_soft")(*batch, **parameters, gate=gate)
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
