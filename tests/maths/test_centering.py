"""Score centering against the paper's formula, with what a rule says of each token.

The loss at a state, with detached weights w, is -A [ w(y) log pi(y) - sum_v mu(v) w(v) log pi(v) ].
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.divergence import exact
from cppo_lab.maths.rules import centred, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import RULES
from tests.maths.maths_batches import CONSTANTS

B, T, V = 3, 4, 5
CENTRED = [name for name, rule in RULES.items() if not rule.centering_fault]


class Case:
    """Logits of pi [B, T, V], log mu, sampled ids, and the fields of the tokens, with the last response shorter."""

    def __init__(self, k: int = V) -> None:
        generator = torch.Generator().manual_seed(k)
        shape = (B, T, V)
        self.logits = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.mu = (
            self.logits + 0.7 * torch.randn(shape, generator=generator, dtype=torch.float64)
        ).log_softmax(-1)
        self.ids = torch.multinomial(self.mu.exp().view(-1, V), 1, generator=generator).view(B, T)
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


@pytest.mark.parametrize("k", [V, 3, 1])
@pytest.mark.parametrize("name", CENTRED)
def test_the_gradient_is_that_of_the_papers_loss(name: str, k: int) -> None:
    """A rule's w is what it gives a token that stands in a sampled one's place, behind the same prefix.

    K = V is the full form; else the tail is one token of mu's rest, spread as pi's.
    """
    case, rule = Case(k), get_rule(name)
    constants = CONSTANTS[name] | (
        {"kl_tau": 0.0} if name == "ipo" else {}
    )  # that is no score: see the next test
    pi = case.logits.log_softmax(-1)
    sampled = [part.gather(-1, case.ids[..., None])[..., 0] for part in (pi, case.mu)]
    plain = case.gradient(name, centre=False, **constants)
    expected = plain.clone()
    for row, t in case.valid.nonzero().tolist():
        p, m = pi[row, t].exp(), case.mu[row, t].exp()
        score, head = torch.eye(V, dtype=torch.float64) - p, case.topk_ids[row, t].tolist()
        cells = [(p[v], m[v], score[v]) for v in head]
        if rest := [v for v in range(V) if v not in head]:
            cells.append((p[rest].sum(), m[rest].sum(), p[rest] @ score[rest] / p[rest].sum()))
        for of_pi, of_mu, direction in cells:
            logp, rollout_logp = (part.clone() for part in sampled)
            logp[row, t], rollout_logp[row, t] = of_pi.log(), of_mu.log()
            given = (logp.requires_grad_(), rollout_logp, case.advantages, case.valid, case.divergence)
            output = rule(Tokens(*given, rollout_entropy=case.entropy), **constants)
            (weights,) = torch.autograd.grad(output.objective.sum(), logp)
            expected[row, t] -= of_mu * weights[row, t] * direction
    torch.testing.assert_close(case.gradient(name, **constants), expected, rtol=1e-10, atol=1e-12)
    whole = name in (
        "trm_max",
        "trm_avg",
        "trm_max_avg",
        "pspo",
        "ipo",
        "kpop",
    )  # every w is the whole ratio, or most
    assert float((expected - plain).abs().max()) > 1e-3 or whole


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


def test_float32_is_close_to_float64() -> None:
    case = Case(3)
    wide = case.gradient("cispo", clip_high=0.1)
    for part in ("logits", "mu", "topk_logp", "advantages", "divergence", "entropy"):
        setattr(case, part, getattr(case, part).float())
    torch.testing.assert_close(case.gradient("cispo", clip_high=0.1).double(), wide, rtol=1e-4, atol=1e-5)


def test_the_statistics_are_the_rules_own() -> None:
    case = Case()
    plain = get_rule("dppo")(case.tokens(case.logits), delta=0.1)
    output = centred(get_rule("dppo"), case.tokens(case.logits), delta=0.1)
    assert torch.equal(output.keep, plain.keep) and output.stats == plain.stats
