"""The decoupled objective: weights and rejection by pi_old / mu, of any rule, against plain Python."""

import math
from itertools import product

import pytest
import torch

from cppo_lab.maths.rules import corrected, get_rule
from cppo_lab.maths.tokens import RuleOutput, Tokens
from cppo_lab.rules import ENTROPY, RULES
from tests.maths.maths_batches import CONSTANTS, fields, random_batch

WEIGHTS = [None, ("token", 1.2), ("sequence", 1.5)]
BANDS = [None, ("token_k1", 1.3), ("seq_sum_k1", 2.0), ("seq_mean_k1", 1.1)]


def arguments(weigh: tuple[str, float] | None, reject: tuple[str, float] | None) -> dict:
    named = {"rollout_is": weigh, "rollout_rs": reject}
    given = {name: choice for name, choice in named.items() if choice}
    return {
        k: v for name, (how, limit) in given.items() for k, v in ((name, how), (f"{name}_threshold", limit))
    }


def plain(weigh: tuple[str, float] | None, reject: tuple[str, float] | None, x: list[float]) -> list[float]:
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


@pytest.mark.parametrize(("weigh", "reject"), list(product(WEIGHTS, BANDS)))
def test_weights_and_rejection_of_each_token(
    weigh: tuple[str, float] | None, reject: tuple[str, float] | None
) -> None:
    """Both together are their product; the rule's own decision stays, and so do the prefixes that it counts."""
    batch = random_batch(3, rows=20)
    old = batch.rollout_logp
    mu = old - 0.2 * torch.randn(old.shape, generator=torch.Generator().manual_seed(1), dtype=old.dtype)
    mu[~batch.valid] = -torch.inf  # no number at padding counts
    logp = batch.logp.clone().requires_grad_()
    tokens = Tokens(logp, *batch[1:])
    before = get_rule("cppo")(tokens, **CONSTANTS["cppo"])
    output = corrected(before, tokens, mu, **arguments(weigh, reject))
    expected = torch.zeros_like(old)
    for row, length in enumerate(batch.valid.sum(1).tolist()):
        x = (old - mu)[row, :length].tolist()
        expected[row, :length] = torch.tensor(plain(weigh, reject, x), dtype=old.dtype)
    gradients = [
        torch.autograd.grad(each.objective.sum(), logp, retain_graph=True)[0] for each in (before, output)
    ]
    torch.testing.assert_close(gradients[1], expected * gradients[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(output.objective, expected * before.objective, rtol=1e-12, atol=1e-14)
    assert torch.equal(output.keep, before.keep)
    rejected = (expected == 0) & batch.valid
    assert bool(rejected.any()) == bool(reject) and int(output.stats["rejected"]) == int(rejected.sum())
    unrejected = [
        v for row, n in enumerate(batch.valid.sum(1).tolist()) for v in plain(weigh, None, (old - mu)[row, :n].tolist())
    ]  # fmt: skip
    assert float(output.stats["importance_weight"]) == pytest.approx(sum(unrejected))


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if ENTROPY not in rule.needs])
def test_a_mu_that_is_pi_old_leaves_every_rule_to_the_bit(name: str) -> None:
    batch = random_batch(4)
    results = []
    for decoupled in (False, True):
        logp = batch.logp.clone().requires_grad_()
        origin = {"origin_logp": batch.rollout_logp} if decoupled else {}
        tokens = Tokens(logp, *batch[1:], **fields(name, batch), **origin)
        output = get_rule(name)(tokens, **CONSTANTS[name])
        if decoupled:
            settings = arguments(("sequence", 2.0), ("token_k1", 1.001))
            output = corrected(output, tokens, batch.rollout_logp, **settings)
        results.append((output, torch.autograd.grad(output.objective.sum(), logp)[0]))
    (plain_output, plain_gradient), (output, gradient) = results
    assert torch.equal(gradient, plain_gradient) and torch.equal(output.objective, plain_output.objective)
    assert {key: float(output.stats[key]) for key in plain_output.stats} == pytest.approx(
        {key: float(value) for key, value in plain_output.stats.items()}, abs=0
    )


@pytest.mark.parametrize("name", ["dppo", "cppo", "cppo_soft", "pdm", "trm_avg"])
def test_all_weights_of_tokens_make_two_policies_of_three(name: str) -> None:
    """A mask by D_t from mu, on pi / pi_old times pi_old / mu: the same tokens and gradient as on pi / mu."""
    batch = random_batch(5, rows=12)
    shift = 0.3 * torch.randn(
        batch.logp.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    results: list[tuple[RuleOutput, torch.Tensor]] = []
    for old in (batch.rollout_logp, batch.rollout_logp + shift):
        logp = batch.logp.clone().requires_grad_()
        tokens = Tokens(logp, old, *batch[2:], **fields(name, batch), origin_logp=batch.rollout_logp)
        output = get_rule(name)(tokens, **CONSTANTS[name])
        output = corrected(output, tokens, batch.rollout_logp, rollout_is="token")
        results.append((output, torch.autograd.grad(output.objective.sum(), logp)[0]))
    (two, of_two), (three, of_three) = results
    assert torch.equal(two.keep, three.keep) and int((two.keep[batch.valid] < 1).sum()) > 0
    torch.testing.assert_close(of_three, of_two, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["m2po", "vaco"])
def test_a_rule_of_ratios_has_the_direction_of_its_ratio(name: str) -> None:
    """Not that of D_t, which it does not test."""
    batch = random_batch(6, rows=12)
    masks = [
        get_rule(name)(Tokens(*batch, origin_logp=origin), **CONSTANTS[name]).keep
        for origin in (None, batch.logp + 1)
    ]
    assert torch.equal(*masks) and bool((masks[0][batch.valid] == 0).any())
    directions = [Tokens(*batch, origin_logp=origin).moves_away for origin in (None, batch.logp + 1)]
    assert bool((directions[1] == (batch.valid & (batch.advantages < 0))).all())
    assert not torch.equal(*directions)
