"""Gradients in log pi(y_t). On policy a surrogate has value about 0: gradients are tested by themselves."""

from itertools import product

import pytest
import torch

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.advantages import group_advantages
from cppo_lab.maths.aggregation import MODES, aggregate
from cppo_lab.maths.rules import RULES, get_rule
from tests.maths.maths_batches import constants, random_batch
from tests.maths.maths_cases import check_all

DETACHED_COEFFICIENT = ("cispo", "minpro")  # their gradient is not the derivative of their value
TOKEN_FORM = ("gspo", "geo_mean")  # nor is it here: the response's value, the token's own gradient
DIFFERENTIATED = [name for name in RULES if name not in DETACHED_COEFFICIENT + TOKEN_FORM]


def gradient(name: str, batch, **changes: torch.Tensor) -> torch.Tensor:
    """d sum(objective) / d logp, [B, T]."""
    batch = batch._replace(**changes)
    logp = batch.logp.clone().requires_grad_()
    result = get_rule(name)(logp, *batch[1:], **constants(name, batch))
    (grad,) = torch.autograd.grad(result.objective.sum(), logp)
    return grad


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradcheck_off_policy(name: str) -> None:
    batch = random_batch(1)
    parameters = constants(name, batch)
    logp = batch.logp.clone().requires_grad_()

    def objective(logp: torch.Tensor) -> torch.Tensor:
        return get_rule(name)(logp, *batch[1:], **parameters).objective

    keep = get_rule(name)(*batch, **parameters).keep
    assert 0 < float(keep.sum()) < float(batch.valid.sum()), "the point must have kept and dropped tokens"
    assert torch.autograd.gradcheck(objective, logp, eps=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradient_is_keep_times_ratio_times_advantage(name: str) -> None:
    batch = random_batch(2)
    keep = get_rule(name)(*batch, **constants(name, batch)).keep
    expected = keep * (batch.logp - batch.rollout_logp).exp() * batch.advantages
    torch.testing.assert_close(gradient(name, batch), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", DETACHED_COEFFICIENT)
def test_gradient_is_the_clipped_coefficient_times_advantage(name: str) -> None:
    batch = random_batch(3)
    ratio = (batch.logp - batch.rollout_logp).exp()
    expected = torch.zeros_like(ratio)
    for b, t in batch.valid.nonzero().tolist():
        prefix = float(ratio[b, :t].min()) if name == "minpro" and t else 1.0
        low = 0.5 if name == "minpro" else 0.0
        expected[b, t] = min(max(float(ratio[b, t]) * prefix, low), 1.5) * float(batch.advantages[b, t])
    torch.testing.assert_close(gradient(name, batch), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_on_policy_gradient_is_the_advantage(name: str) -> None:
    batch = random_batch(4)
    same = {"rollout_logp": batch.logp.clone(), "divergence": torch.zeros_like(batch.divergence)}
    expected = batch.advantages * batch.valid
    assert float(expected.abs().sum()) > 0
    torch.testing.assert_close(gradient(name, batch, **same), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_tokens_without_advantage_and_padding_have_no_gradient(name: str) -> None:
    dtypes = [torch.float64, torch.float32, torch.bfloat16]
    check_all(tokens_without_advantage_and_padding_have_no_gradient, product([name], dtypes))


def tokens_without_advantage_and_padding_have_no_gradient(name: str, dtype: torch.dtype) -> None:
    batch = random_batch(5, dtype=dtype)
    grad = gradient(name, batch)
    result = get_rule(name)(*batch, **constants(name, batch))
    assert grad.dtype == dtype
    assert result.objective.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert bool((grad[(batch.advantages == 0) | ~batch.valid] == 0).all())
    assert bool((result.objective[~batch.valid] == 0).all() and (result.keep[~batch.valid] == 0).all())


@pytest.mark.parametrize("name", RULES)
def test_only_logp_carries_a_gradient(name: str) -> None:
    batch = random_batch(6)
    inputs = {
        f: getattr(batch, f).clone().requires_grad_() for f in ("rollout_logp", "advantages", "divergence")
    }
    logp = batch.logp.clone().requires_grad_()
    result = get_rule(name)(logp, **inputs, valid=batch.valid, **constants(name, batch))
    others = torch.autograd.grad(result.objective.sum(), list(inputs.values()), allow_unused=True)
    assert all(grad is None for grad in others)
    assert not result.keep.requires_grad
    assert not any(value.requires_grad for value in result.stats.values())


@pytest.mark.parametrize("name", ["dppo", "cppo", "cppo_no_prefix_budget", "grpo", "gspo", "geo_mean"])
def test_a_dropped_token_may_overflow(name: str) -> None:
    batch = random_batch(7, dtype=torch.float32)
    batch.advantages[:] = 1.0
    batch.rollout_logp[0, 1] = -200.0  # rho = exp(200) is infinite in float32
    batch.divergence[0, 1] = 1.0
    result = get_rule(name)(*batch, **constants(name, batch))
    assert result.keep[0, 1] == 0
    assert bool(torch.isfinite(result.objective).all() and torch.isfinite(gradient(name, batch)).all())


@pytest.mark.parametrize("mode", MODES)
def test_aggregate_gradcheck(mode: str) -> None:
    batch = random_batch(8)
    values = batch.logp.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: aggregate(v, batch.valid, mode), values)


def test_divergences_and_advantages_carry_no_gradient() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    logp = logits.log_softmax(-1)
    tokens = torch.tensor([0, 1, 2])
    sampled = logp.gather(-1, tokens[:, None])[:, 0]
    top = logp.topk(2)
    results = [
        divergences.exact(logp, logp, "kl"),
        divergences.topk(top.indices, top.values, logits, tokens, sampled, measure="tv"),
        divergences.binary(sampled, sampled, "kl"),
        divergences.k2(sampled, sampled),
        divergences.k3(sampled, sampled),
        group_advantages(logits[:, 0], torch.zeros(3, dtype=torch.int64))[0],
    ]
    assert not any(result.requires_grad for result in results)
