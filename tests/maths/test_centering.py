"""Score centering against the paper's formula, with what a rule says of each token.

With detached weights w and s = grad log pi, the gradient at a state is A [ w(y) s(y) - sum_v mu(v) w(v) s(v) ].
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.divergence import exact
from cppo_lab.maths.rules import centred, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import RULES
from tests.maths.maths_batches import CONSTANTS, distributions

B, T, V = 3, 4, 5
CENTRED = [name for name, rule in RULES.items() if not rule.centering_fault]


class Case:
    """Logits of pi [B, T, V], log mu, sampled ids, and the fields of the tokens, with the last response shorter."""

    def __init__(self, k: int = V) -> None:
        self.mu, self.logits, self.ids = (
            part.unflatten(0, (B, T)) for part in distributions(k, B * T, V, 1.0)
        )
        self.advantages = torch.tensor([[1.0], [-0.7], [0.4]], dtype=torch.float64).expand(B, T)
        self.valid = torch.tensor([[True] * T, [True] * T, [True, True, False, False]])
        top = self.mu.topk(k)
        self.topk_ids, self.topk_logp = top.indices, top.values
        self.divergence = exact(self.mu, self.logits.log_softmax(-1))
        self.entropy = -(self.mu.exp() * self.mu).sum(-1)

    def tokens(self, logits: Tensor) -> Tokens:
        pi = logits.log_softmax(-1)
        return Tokens(
            pi.gather(-1, self.ids[..., None])[..., 0],
            self.mu.gather(-1, self.ids[..., None])[..., 0],
            self.advantages,
            self.valid,
            self.divergence,
            topk_ids=self.topk_ids,
            topk_logp=self.topk_logp,
            topk_pi_logp=pi.gather(-1, self.topk_ids.clamp_min(0)),  # as the cores read it at an empty place
            rollout_entropy=self.entropy,
        )

    def gradient(self, name: str, centre: bool = True, **constants: Any) -> Tensor:
        """d objective / d logits [B, T, V], centred or not."""
        logits = self.logits.clone().requires_grad_()
        rule, tokens = get_rule(name), self.tokens(logits)
        output = centred(rule, tokens, **constants) if centre else rule(tokens, **constants)
        assert not output.objective[~self.valid].any()
        (gradient,) = torch.autograd.grad(output.objective.sum(), logits)
        return gradient


@pytest.mark.parametrize("k", [V, 3])
@pytest.mark.parametrize("name", CENTRED)
def test_every_rule_is_asked_for_each_token_as_if_it_had_been_sampled(name: str, k: int) -> None:
    """One token of a response is replaced at a time, and the others stay: budgets of prefixes with them. The tokens
    beyond the K have the weight of one that has the mass of all of them.
    """
    case, rule, constants = Case(k), get_rule(name), CONSTANTS[name]
    if name == "ipo":  # its penalty is no score: see the next test
        constants = {**constants, "kl_tau": 0.0}
    log_pi = case.logits.log_softmax(-1)
    expected = case.gradient(name, centre=False, **constants)
    for row, t in case.valid.nonzero().tolist():
        pi, mu = log_pi[row, t].exp(), case.mu[row, t].exp()
        score = torch.eye(V, dtype=torch.float64) - pi
        head = case.topk_ids[row, t].tolist()
        cells = [(pi[v], mu[v], mu[v] * score[v]) for v in head]
        if rest := [v for v in range(V) if v not in head]:
            masses = pi[rest].sum(), mu[rest].sum()
            cells.append((*masses, masses[1] / masses[0] * pi[rest] @ score[rest]))
        for of_pi, of_mu, change in cells:
            logp, mu_logp = (part.gather(-1, case.ids[..., None])[..., 0] for part in (log_pi, case.mu))
            logp[row, t], mu_logp[row, t] = of_pi.log(), of_mu.log()
            leaf, fields = logp.requires_grad_(), {"rollout_entropy": case.entropy}
            tokens = Tokens(leaf, mu_logp, case.advantages, case.valid, case.divergence, **fields)
            (weights,) = torch.autograd.grad(rule(tokens, **constants).objective.sum(), leaf)
            expected[row, t] -= weights[row, t] * change
    torch.testing.assert_close(case.gradient(name, **constants), expected, rtol=1e-10, atol=1e-12)


def test_a_penalty_without_the_advantage_is_not_centred() -> None:
    """It would vanish in the mean. The gradient with it is the one without, plus its own."""
    case = Case()
    gradients = {
        (tau, centre): case.gradient("ipo", centre, delta=0.1, kl_tau=tau)
        for tau in (0.0, 0.2)
        for centre in (0, 1)
    }
    own = gradients[0.2, 0] - gradients[0.0, 0]
    assert float(own.abs().max()) > 1e-3
    torch.testing.assert_close(gradients[0.2, 1] - gradients[0.0, 1], own)


def test_empty_places_of_the_head_and_a_constant_in_the_logits_change_nothing() -> None:
    case, constants = Case(3), {"clip_high": 0.1}
    gradient = case.gradient("cispo", **constants)
    case.logits = case.logits + 7.0
    torch.testing.assert_close(case.gradient("cispo", **constants), gradient, rtol=1e-9, atol=1e-12)
    filler = torch.full((B, T, 2), -1)
    case.topk_ids = torch.cat([case.topk_ids, filler], -1)
    case.topk_logp = torch.cat([case.topk_logp, filler * torch.inf], -1)
    torch.testing.assert_close(case.gradient("cispo", **constants), gradient, rtol=1e-9, atol=1e-12)


def test_a_head_that_holds_everything_and_rare_tokens_stay_finite() -> None:
    case = Case()
    case.logits[0, 0, 1], case.logits[1, 1, 2] = 400.0, -400.0
    case.mu[0, 1] = torch.tensor([0.0, -900.0, -900.0, -900.0, -900.0])
    case.ids[0, 1] = 0
    top = case.mu.topk(V)
    case.topk_ids, case.topk_logp = top.indices, top.values
    for name in CENTRED:
        assert bool(case.gradient(name, **CONSTANTS[name]).isfinite().all()), name


def test_the_statistics_are_the_rules_own() -> None:
    case = Case()
    plain = get_rule("dppo")(case.tokens(case.logits), delta=0.1)
    output = centred(get_rule("dppo"), case.tokens(case.logits), delta=0.1)
    assert torch.equal(output.keep, plain.keep) and output.stats == plain.stats
