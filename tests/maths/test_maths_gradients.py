"""Gradients in log pi(y_t). On policy a surrogate has value about 0: gradients are tested by themselves."""

import pytest
import torch

from cppo_lab.maths import divergence as divergences
from cppo_lab.maths.aggregation import MODES, aggregate, group_advantages
from cppo_lab.maths.rules import RULES
from tests.maths.maths_batches import PULL_BACK, apply, constants, random_batch

DETACHED_COEFFICIENT = ("cispo", "minpro")  # their gradient is not the derivative of their value
TOKEN_FORM = ("gspo", "geo_mean")  # nor is it here: the response's value, the token's own gradient
RESPONSE_WEIGHT = (
    "seq_tis",
    "seq_mis",
    "geo_mask",
    "vespo",
)  # a constant weight, as for DETACHED_COEFFICIENT
DIFFERENTIATED = [name for name in RULES if name not in DETACHED_COEFFICIENT + TOKEN_FORM + RESPONSE_WEIGHT]


def gradient(name: str, batch, **changes: torch.Tensor) -> torch.Tensor:
    """d sum(objective) / d logp, [B, T]."""
    batch = batch._replace(**changes)
    logp = batch.logp.clone().requires_grad_()
    result = apply(name, logp, *batch[1:], **constants(name, batch))
    (grad,) = torch.autograd.grad(result.objective.sum(), logp)
    return grad


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradcheck_off_policy(name: str) -> None:
    batch = random_batch(1)
    parameters = constants(name, batch)
    logp = batch.logp.clone().requires_grad_()

    def objective(logp: torch.Tensor) -> torch.Tensor:
        return apply(name, logp, *batch[1:], **parameters).objective

    keep = apply(name, *batch, **parameters).keep
    assert 0 < float(keep.sum()) < float(batch.valid.sum()), "the point must have kept and dropped tokens"
    assert torch.autograd.gradcheck(objective, logp, eps=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in DIFFERENTIATED if name not in PULL_BACK])
def test_gradient_is_keep_times_ratio_times_advantage(name: str) -> None:
    batch = random_batch(2)
    keep = apply(name, *batch, **constants(name, batch)).keep
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


@pytest.mark.parametrize(
    "name",
    [
        *("dppo", "cppo", "cppo_no_prefix_budget", "grpo", "gspo", "geo_mean"),
        *("icepop", "ipo", "kpop", "m2po", "seq_mis", "geo_mask"),
    ],
)
def test_a_dropped_token_may_overflow(name: str) -> None:
    batch = random_batch(7, dtype=torch.float32)
    batch.advantages[:] = 1.0
    batch.rollout_logp[0, 1] = -200.0  # rho = exp(200) is infinite in float32
    batch.divergence[0, 1] = 1.0
    result = apply(name, *batch, **constants(name, batch))
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
