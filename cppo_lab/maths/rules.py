"""The rules as functions: name -> function, from the records in `cppo_lab.rules`; and any of them with score centering,
or with weights that correct for the policy that sampled.

Every rule is `fn(tokens: Tokens, *, <constants>) -> RuleOutput`; the constants are plain keyword scalars.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from cppo_lab import rules
from cppo_lab.maths.tokens import LARGEST_EXPONENT, RuleOutput, Tokens, row_counts

__all__ = ["RULES", "RuleOutput", "centred", "corrected", "get_rule"]

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


# The decoupled objective: three policies. A rule acts on pi / pi_old, with pi_old the policy at the start of a batch's
# updates; that mu sampled the tokens, and not pi_old, is corrected by weights without gradient:
#
#     objective_t <- v_t M_t objective_t,     x_t = log pi_old(y_t) - log mu(y_t)
#     v_t = min(exp z, rollout_is_threshold),     z = x_t ("token") or sum_j x_j ("sequence")
#     M_t = [ abs(z) <= log rollout_rs_threshold ],     z = x_t ("token_k1"), sum_j x_j ("seq_sum_k1") or its mean over
#                                                       the response's tokens ("seq_mean_k1")
#
# With a rule that masks by D_t from mu, and all weights of tokens ("token", no threshold in reach), v_t pi / pi_old is
# pi / mu: the loss of two policies. Rejected tokens stay in the denominators and in the prefix, as masked ones do.
#
# Source: verl 0.9.1, `trainer/ppo/rollout_corr_helper.py` (a single upper threshold; that of rejection stands for its
# own inverse on the other side), which takes them out of the response mask, and so out of the number of tokens of a
# sequence, but not of a minibatch. Decoupled PPO: arXiv 2110.00641; for language models AReaL, arXiv 2505.24298.


def corrected(
    output: RuleOutput,
    tokens: Tokens,
    rollout_logp: Tensor,
    *,
    rollout_is: str | None = None,
    rollout_is_threshold: float = math.inf,
    rollout_rs: str | None = None,
    rollout_rs_threshold: float = math.inf,
) -> RuleOutput:
    """The output of a rule on `tokens`, whose `rollout_logp` is log pi_old, with the objective v M objective.

    `rollout_logp` [B, T]: log mu(y_t). `rollout_is` and `rollout_rs` None: v = 1, M = 1.
    """
    valid, logp = tokens.valid, tokens.rollout_logp
    log_ratio = torch.where(valid, logp - rollout_logp.to(logp.dtype), 0.0)
    total = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    mean = total / row_counts(valid).clamp_min(1)[:, None]
    log_weights = {"token": log_ratio, "sequence": total}
    statistics = {"token_k1": log_ratio, "seq_sum_k1": total, "seq_mean_k1": mean}
    weight, rejected = valid.to(logp.dtype), torch.zeros_like(valid)
    if rollout_is is not None:
        bounded = log_weights[rollout_is].clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
        weight = weight * bounded.exp().clamp_max(rollout_is_threshold)
    if rollout_rs is not None:
        rejected = valid & (statistics[rollout_rs].abs() > math.log(rollout_rs_threshold))
    stats = {"importance_weight": weight.sum(), "rejected": row_counts(rejected).sum().to(logp.dtype)}
    objective = output.objective * torch.where(rejected, 0.0, weight)
    return output._replace(objective=objective, stats=output.stats | stats)
