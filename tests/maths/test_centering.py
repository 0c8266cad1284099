"""Score centering against the paper's formula, in plain Python, and against what a rule says of each token.

The loss at a state, with detached weights w, is -A [ w(y) log pi(y) - sum_v mu(v) w(v) log pi(v) ].
"""

import math
from collections.abc import Callable
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


# A rule, its constants, and its weight w in plain Python: of pi(v), mu(v), A and D.
Weight = Callable[[float, float, float, float], float]
WEIGHTS: dict[str, tuple[str, dict[str, float], Weight]] = {
    "none": ("icepop", {"ratio_low": 0.0, "ratio_high": math.inf}, lambda p, m, a, d: p / m),
    "ppo": (
        *("grpo", {"clip_low": 0.1, "clip_high": 0.2}),
        lambda p, m, a, d: 0.0 if (a > 0 and p / m > 1.2) or (a < 0 and p / m < 0.9) else p / m,
    ),
    "truncated": ("cispo", {"clip_high": 0.1}, lambda p, m, a, d: min(p / m, 1.1)),
    "masked": (
        *("icepop", {"ratio_low": 0.7, "ratio_high": 1.4}),
        lambda p, m, a, d: p / m if 0.7 <= p / m <= 1.4 else 0.0,
    ),
    "probability": ("ipo", {"delta": 0.05, "kl_tau": 0.0}, lambda p, m, a, d: p / m * (abs(p - m) <= 0.05)),
    "divergence": ("dppo", {"delta": 0.2}, lambda p, m, a, d: p / m * (a * (p - m) <= 0 or d <= 0.2)),
    "penalty": (
        "cfpo",
        {"delta": 0.5},
        lambda p, m, a, d: p / m * (1 - math.copysign(1, a) * (p / m - 1) / 0.5),
    ),
}


def softmax(logits: list[float]) -> list[float]:
    whole = sum(map(math.exp, logits))
    return [math.exp(x) / whole for x in logits]


def slope(function: Callable[[list[float]], float], at: list[float]) -> list[float]:
    """Central differences."""
    step, slopes = 1e-5, []
    for i in range(len(at)):
        above, below = ([x + sign * step * (i == j) for j, x in enumerate(at)] for sign in (1, -1))
        slopes.append((function(above) - function(below)) / (2 * step))
    return slopes


@pytest.mark.parametrize("k", [V, 3, 1])
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_gradient_is_that_of_the_papers_loss(name: str, k: int) -> None:
    """K = V is the full form; else the tail is mu's rest, spread as pi's."""
    rule, constants, weight = WEIGHTS[name]
    case = Case(k)
    actual, moved = case.gradient(rule, **constants), 0
    for row, t in case.valid.nonzero().tolist():
        logits, mu = case.logits[row, t].tolist(), case.mu[row, t].exp().tolist()
        y, a, d = int(case.ids[row, t]), float(case.advantages[row, t]), float(case.divergence[row, t])
        pi, head = softmax(logits), case.topk_ids[row, t].tolist()
        weights = [weight(p, m, a, d) for p, m in zip(pi, mu, strict=True)]
        coefficients = [m * w for m, w in zip(mu, weights, strict=True)]
        if k < V:
            pi_rest, mu_rest = (1 - sum(part[v] for v in head) for part in (pi, mu))
            alpha, tail = mu_rest / pi_rest, weight(pi_rest, mu_rest, a, d)
            coefficients = [coefficients[v] if v in head else alpha * tail * pi[v] for v in range(V)]

        def objective(
            x: list[float],
            y: int = y,
            a: float = a,
            own: float = weights[y],
            mean: list[float] = coefficients,
        ) -> float:
            """The weights are constants of the state at which they were taken."""
            logp = [math.log(p) for p in softmax(x)]
            return a * (own * logp[y] - sum(c * lp for c, lp in zip(mean, logp, strict=True)))

        assert actual[row, t].tolist() == pytest.approx(slope(objective, logits), rel=1e-6, abs=1e-9)
        moved += any(abs(c - m) > 1e-3 for c, m in zip(coefficients, pi, strict=True))
    assert moved or name == "none"
    assert not actual[~case.valid].any()


@pytest.mark.parametrize("name", CENTRED)
def test_every_rule_is_asked_for_each_token_as_if_it_had_been_sampled(name: str) -> None:
    """One token of a response is replaced at a time, and the others stay: budgets of prefixes with them."""
    case, rule, constants = Case(), get_rule(name), CONSTANTS[name]
    if name == "ipo":  # its penalty is no score: see the next test
        constants = {**constants, "kl_tau": 0.0}
    pi = case.logits.log_softmax(-1)
    expected = case.gradient(name, centre=False, **constants)
    for row, t in case.valid.nonzero().tolist():
        score = torch.eye(V, dtype=torch.float64) - pi[row, t].exp()
        for v in range(V):
            ids = case.ids.clone()
            ids[row, t] = v
            logp, mu = (part.gather(-1, ids[..., None])[..., 0] for part in (pi, case.mu))
            leaf = logp.clone().requires_grad_()
            fields = {"rollout_entropy": case.entropy}
            output = rule(
                Tokens(leaf, mu, case.advantages, case.valid, case.divergence, **fields), **constants
            )
            (weights,) = torch.autograd.grad(output.objective.sum(), leaf)
            expected[row, t] -= mu[row, t].exp() * weights[row, t] * score[v]
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
