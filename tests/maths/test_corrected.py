"""The decoupled objective: weights and rejection by pi_old / mu, of any rule, against plain Python."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.rules import corrected, get_rule
from cppo_lab.maths.tokens import RuleOutput, Tokens
from tests.maths.maths_batches import CONSTANTS, TokenBatch, fields, random_batch

WEIGHTS = [None, ("token", 1.2), ("sequence", 1.5)]
BANDS = [None, ("token_k1", 1.3), ("seq_sum_k1", 2.0), ("seq_mean_k1", 1.1)]


Bound = tuple[str, float] | None  # what is bounded, and the bound


def arguments(weigh: Bound, reject: Bound) -> dict[str, str | float]:
    """Of `corrected`."""
    given: dict[str, str | float] = {}
    for name, bound in (("rollout_is", weigh), ("rollout_rs", reject)):
        if bound:
            given |= {name: bound[0], f"{name}_threshold": bound[1]}
    return given


def learned(
    name: str, batch: TokenBatch, origin: Tensor | None = None, old: Tensor | None = None, **settings: Any
) -> tuple[RuleOutput, Tensor]:
    """A rule's output and its gradient in logp, with D_t from `origin`. `old`: log pi_old, in place of log mu, which
    the output is then corrected for, or for the setting `mu`.
    """
    logp, mu = batch.logp.clone().requires_grad_(), settings.pop("mu", batch.rollout_logp)
    rollout_logp = batch.rollout_logp if old is None else old
    tokens = Tokens(logp, rollout_logp, *batch[2:], **fields(name, batch), origin_logp=origin)
    output = get_rule(name)(tokens, **CONSTANTS[name])
    if old is not None:
        output = corrected(output, tokens, mu, **settings)
    return output, torch.autograd.grad(output.objective.sum(), logp)[0]


def plain(weigh: Bound, reject: Bound, x: list[float]) -> list[float]:
    """v M of a response's tokens with these log pi_old / mu."""
    result = []
    for own in x:
        v, kept = 1.0, True
        if weigh:
            v = min(math.exp(own if weigh[0] == "token" else sum(x)), weigh[1])
        if reject:
            z = {"token_k1": own, "seq_sum_k1": sum(x), "seq_mean_k1": sum(x) / len(x)}[reject[0]]
            kept = 1 / reject[1] <= math.exp(-z) <= reject[1]
        result.append(v * kept)
    return result


@pytest.mark.parametrize("weigh, reject", list(product(WEIGHTS, BANDS)))
def test_weights_and_rejection_of_each_token(weigh: Bound, reject: Bound) -> None:
    """Both together are their product; the rule's own decision stays, and so do the prefixes that it counts."""
    batch = random_batch(3, rows=20)
    old = batch.rollout_logp
    mu = old - 0.2 * torch.randn(old.shape, generator=torch.Generator().manual_seed(1), dtype=old.dtype)
    mu[~batch.valid] = -torch.inf  # no number at padding counts
    before, plain_gradient = learned("cppo", batch)
    output, gradient = learned("cppo", batch, None, old, mu=mu, **arguments(weigh, reject))
    expected, weights = torch.zeros_like(old), 0.0
    for row, length in enumerate(batch.valid.sum(1).tolist()):
        x = (old - mu)[row, :length].tolist()
        expected[row, :length] = torch.tensor(plain(weigh, reject, x), dtype=old.dtype)
        weights += sum(plain(weigh, None, x))  # rejected or not
    torch.testing.assert_close(gradient, expected * plain_gradient, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(output.objective, expected * before.objective, rtol=1e-12, atol=1e-14)
    assert torch.equal(output.keep, before.keep)
    rejected = (expected == 0) & batch.valid
    assert bool(rejected.any()) == bool(reject) and int(output.stats["rejected"]) == int(rejected.sum())
    assert float(output.stats["importance_weight"]) == pytest.approx(weights)


@pytest.mark.parametrize("name", ["dppo", "cppo", "cppo_soft", "pdm", "trm_avg"])
def test_all_weights_of_tokens_make_two_policies_of_three(name: str) -> None:
    """A mask by D_t from mu, on pi / pi_old times pi_old / mu: the same tokens and gradient as on pi / mu."""
    batch = random_batch(5, rows=12)
    mu, noise = batch.rollout_logp, torch.Generator().manual_seed(2)
    (two, of_two), (three, of_three) = (
        learned(name, batch, mu, old, rollout_is="token")
        for old in (mu, mu + 0.3 * torch.randn(mu.shape, generator=noise, dtype=mu.dtype))
    )
    assert torch.equal(two.keep, three.keep) and int((two.keep[batch.valid] < 1).sum()) > 0
    torch.testing.assert_close(of_three, of_two, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["m2po", "vaco"])
def test_a_rule_of_ratios_has_the_direction_of_its_ratio(name: str) -> None:
    """Not that of D_t, which it does not test."""
    batch = random_batch(6, rows=12)
    given = [Tokens(*batch, origin_logp=origin) for origin in (None, batch.logp + 1)]
    masks = [get_rule(name)(tokens, **CONSTANTS[name]).keep for tokens in given]
    assert torch.equal(*masks) and bool((masks[0][batch.valid] == 0).any())
    directions = [tokens.moves_away for tokens in given]
    assert (directions[1] == (batch.valid & (batch.advantages < 0))).all()
    assert not torch.equal(*directions)
