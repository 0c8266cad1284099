"""The rules as functions: name -> function, from the records in `cppo_lab.rules`; and any of them with score centering.

Every rule is `fn(tokens: Tokens, *, <constants>) -> RuleOutput`; the constants are plain keyword scalars.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from cppo_lab import rules
from cppo_lab.maths.tokens import RuleOutput, Tokens

__all__ = ["RULES", "RuleOutput", "centred", "get_rule"]

RULES: dict[str, Callable[..., RuleOutput]] = {name: rule.load for name, rule in rules.RULES.items()}


def get_rule(name: str, path: str | None = None) -> Callable[..., RuleOutput]:
    """The rule called `name`; `path` is the import path of a rule of another package, see `cppo_lab.rules`.

    Raises:
        ValueError: no such rule; the message lists the valid names.
        UserError: a rule of another package that cannot be loaded.
    """
    if path is None and name not in RULES:
        raise ValueError(f"rule={name!r} is unknown: choose one of {sorted(RULES)}")
    return cast(Callable[..., RuleOutput], rules.rule_of(name, path).load)


# Score centering: each token's weighted score minus its expectation under mu, at the same state.
#
#     objective_t - A_t sum_v mu(v) w_t(v) log pi(v)
#
# Its gradient is A_t [ w_t(y_t) s(y_t) - sum_v mu(v) w_t(v) s(v) ], with s = grad log pi. A_t w_t(v) is the derivative
# of the rule's objective in log pi(y_t), detached, if v had been sampled: with pi(v), mu(v), and everything else of
# position t as it is for y_t, D_t and the budget of its prefix included. So a mask by D alone (TRM) is the same for
# every v, and one with a direction (DPPO, CPPO) also asks where v moves. A term of the objective that does not vanish
# at A = 0 (IPO's penalty) is no score, and stays as it is.
#
# mu is known at its Top-K, H. The others count as pi does, scaled to their mass: mu(v) = alpha pi(v), alpha = mu_rest /
# pi_rest, with the masses mu_rest = 1 - mu(H), pi_rest = 1 - pi(H), each at least FLOOR. Since sum_v pi(v) s(v) = 0,
#
#     sum_v mu(v) w(v) s(v) = sum_{v in H} [ mu(v) w(v) - alpha w_rest pi(v) ] s(v)
#
# w_rest is the weight of one token with the probabilities pi_rest and mu_rest: f(1 / alpha) for a weight f(rho). If H
# holds the whole vocabulary, the sum is exact.
#
# Source: arXiv 2609.20807; FLOOR as in its appendix A.3. vime `utils/score_centering.py` has it for weights f(rho),
# prime-rl `trainer/rl/loss.py` for IPO's over the tokens that its sampler could draw.
#
# Shapes: K tokens in H, C = K + 1 cells.


FLOOR = 1e-6


def centred(rule: Callable[..., RuleOutput], tokens: Tokens, **constants: float | str) -> RuleOutput:
    """The output of a rule whose record is `centred`, with the centred objective. Needs the three Top-K fields."""
    rule = partial(rule, **constants)
    output = rule(tokens)
    assert tokens.topk_ids is not None and tokens.topk_logp is not None and tokens.topk_pi_logp is not None
    head = (tokens.topk_ids >= 0) & tokens.topk_logp.isfinite() & tokens.valid[..., None]
    dtype = output.objective.dtype
    mu_logp, pi_logp = (
        torch.where(head, part.to(dtype), 0.0) for part in (tokens.topk_logp, tokens.topk_pi_logp)
    )
    with torch.no_grad():
        mu, pi = (torch.where(head, part.exp(), 0.0) for part in (mu_logp, pi_logp))
        mu_rest, pi_rest = ((1 - part.sum(-1, keepdim=True)).clamp_min(FLOOR) for part in (mu, pi))
        cells = torch.cat([pi_logp, pi_rest.log()], -1), torch.cat([mu_logp, mu_rest.log()], -1)
        weight = _weights(rule, tokens, *cells)
        coefficient = mu * weight[..., :-1] - mu_rest / pi_rest * weight[..., -1:] * pi
    return output._replace(objective=output.objective - (coefficient * pi_logp).sum(-1))


def _weights(
    rule: Callable[[Tokens], RuleOutput], tokens: Tokens, logp: Tensor, rollout_logp: Tensor
) -> Tensor:
    """A_t w_t(c) [B, T, C], without gradient, of cells with log pi `logp` and log mu `rollout_logp` [B, T, C]."""
    cells = logp.shape[-1]

    def folded(values: Tensor) -> Tensor:
        """[B, T, C] -> [C B, T]: to the rule, each cell is a response of its own."""
        return values.movedim(-1, 0).flatten(0, 1)

    def repeated(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.repeat(cells, 1)

    advantages, valid = tokens.advantages.repeat(cells, 1), tokens.valid.repeat(cells, 1)
    divergence, entropy = repeated(tokens.divergence), repeated(tokens.rollout_entropy)
    # A ratio beyond this, whose square would overflow, belongs to a token that mu all but never samples.
    rollout = folded(torch.maximum(rollout_logp, logp - math.log(torch.finfo(logp.dtype).max) / 3))
    with torch.enable_grad():
        leaf = folded(logp).requires_grad_()
        scored, unscored = (
            rule(Tokens(leaf, rollout, worth, valid, divergence, rollout_entropy=entropy)).objective.sum()
            for worth in (advantages, torch.zeros_like(advantages))
        )
        (weights,) = torch.autograd.grad(scored - unscored, leaf)
    return weights.unflatten(0, (cells, -1)).movedim(0, -1)
