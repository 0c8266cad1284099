"""The rules as functions, and what stands around them: advantages before, a loss from what a rule returns.

Every rule is `fn(tokens: Tokens, *, <constants>) -> RuleOutput`; the constants are plain keyword scalars. `get_rule`
takes its name, from the records in `cppo_lab.rules`. Any rule can have score centering, or weights that correct for the
policy that sampled.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cppo_lab import rules
from cppo_lab.maths.tokens import (
    LARGEST_EXPONENT,
    RuleOutput,
    Tokens,
    compute_dtype,
    finite,
    is_whole,
    one_of,
    positive,
    row_counts,
    row_means,
    same_shape,
    token_mask,
)


def get_rule(name: str) -> Callable[..., RuleOutput]:
    """The built-in rule called `name`. Raises ValueError if there is none; the message lists the valid names."""
    one_of("rule", name, sorted(rules.RULES))
    return rules.RULES[name].apply


# Score centering: each token's weighted score minus its expectation under mu, at the same state.
#
#     objective_t - A_t sum_v mu(v) w_t(v) log pi(v)
#
# Its gradient is A_t [ w_t(y_t) s(y_t) - sum_v mu(v) w_t(v) s(v) ], with s = grad log pi. A_t w_t(v) is the derivative
# of the rule's objective in log pi(y_t), detached, if v had been sampled: with pi(v), mu(v), and everything else of
# position t as it is for y_t, D_t and the budget of its prefix included. So a mask by D alone (TRM) is the same for
# every v, and a mask with a direction (DPPO, CPPO) also asks where v moves. A term of the objective that does not
# vanish at A = 0 (IPO's penalty) is no score, and stays as it is.
#
# mu is known at its Top-K, H. The others count as pi does, scaled to their mass: mu(v) = alpha pi(v), alpha = mu_rest /
# pi_rest, with the masses mu_rest = 1 - mu(H), pi_rest = 1 - pi(H), each at least FLOOR. Since sum_v pi(v) s(v) = 0,
#
#     sum_v mu(v) w(v) s(v) = sum_{v in H} [ mu(v) w(v) - alpha w_rest pi(v) ] s(v)
#
# w_rest is the weight of a token with the probabilities pi_rest and mu_rest: f(1 / alpha) for a weight f(rho). If H
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
        """[B, T, C] -> [C B, T]: to the rule, each cell is a response."""
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
            rule(Tokens(leaf, rollout, signal, valid, divergence, rollout_entropy=entropy)).objective.sum()
            for signal in (advantages, torch.zeros_like(advantages))
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
    mu_logp: Tensor,
    *,
    rollout_is: str | None = None,
    rollout_is_threshold: float = math.inf,
    rollout_rs: str | None = None,
    rollout_rs_threshold: float = math.inf,
) -> RuleOutput:
    """The output of a rule on `tokens`, whose `rollout_logp` is log pi_old, with the objective v M objective.

    `mu_logp` [B, T]: log mu(y_t). `rollout_is` and `rollout_rs` None: v = 1, M = 1.
    """
    valid, old_logp = tokens.valid, tokens.rollout_logp
    log_ratio = torch.where(valid, old_logp - mu_logp.to(old_logp.dtype), 0.0)
    total = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    mean = row_means(log_ratio, valid).expand_as(log_ratio)
    log_weights = {"token": log_ratio, "sequence": total}
    statistics = {"token_k1": log_ratio, "seq_sum_k1": total, "seq_mean_k1": mean}
    weight, rejected = valid.to(old_logp.dtype), torch.zeros_like(valid)
    if rollout_is is not None:
        bounded = log_weights[rollout_is].clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
        weight = weight * bounded.exp().clamp_max(rollout_is_threshold)
    if rollout_rs is not None:
        rejected = valid & (statistics[rollout_rs].abs() > math.log(rollout_rs_threshold))
    stats = {"importance_weight": weight.sum(), "rejected": rejected.count_nonzero().to(old_logp.dtype)}
    objective = output.objective * torch.where(rejected, 0.0, weight)
    return output._replace(objective=objective, stats=output.stats | stats)


# From per-token values [B, T] to a scalar. Loss = -aggregate(objective).
#
# With s_i = sum_t v_it over the valid tokens of response i, n_i its length, N = sum n_i, and B' the number of
# responses that have a token (verl's convention: an empty response is not counted):
#
#     token-mean:                sum_i s_i / N
#     seq-mean-token-sum:        sum_i s_i / B'
#     seq-mean-token-mean:       sum_i (s_i / n_i) / B'
#     seq-mean-token-sum-norm:   sum_i s_i / (horizon B')
#
# If a batch is split into micro-batches, pass the whole batch's N (or B') as `denominator`; the micro-batch values then
# sum to the value of the whole batch. Masked tokens and rejected responses stay in every denominator.

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def aggregate(
    values: Tensor,
    valid: Tensor,
    mode: str,
    *,
    denominator: float | Tensor | None = None,
    horizon: int | None = None,
) -> Tensor:
    """Aggregate `values` over the valid tokens; differentiable in `values`; 0 if there is no token.

    Args:
        values: [B, T].
        valid: [B, T] bool or 0/1.
        mode: one of AGGREGATIONS.
        denominator: tokens (token-mean) or non-empty responses (other modes) of the whole batch; None counts
            those of `valid`.
        horizon: divisor of seq-mean-token-sum-norm; None takes T. Pass the run's maximum response length, so
            that the scale does not depend on how far a batch is padded.

    Returns:
        Scalar tensor.

    Raises:
        ValueError: unknown mode, shapes that differ, denominator or horizon not positive, or a horizon given
            to a mode that has none.
    """
    mask = token_mask(valid)
    same_shape(mask.shape, values=values)
    one_of("mode", mode, AGGREGATIONS)
    if denominator is not None:
        positive("denominator", float(denominator))
    if horizon is not None:
        positive("horizon", horizon)
        if mode != "seq-mean-token-sum-norm":
            raise ValueError(f"horizon={horizon!r} belongs to seq-mean-token-sum-norm, not {mode!r}: drop it")
    lengths, values = row_counts(mask), compute_dtype(values)
    # where, not *: padding may be inf * 0
    sums = (values if is_whole(mask) else torch.where(mask, values, 0.0)).sum(1)
    if mode == "seq-mean-token-mean":
        sums = sums / lengths.clamp_min(1)
    elif mode == "seq-mean-token-sum-norm":
        sums = sums / (max(mask.shape[1], 1) if horizon is None else horizon)
    if denominator is None:
        count = lengths.sum() if mode == "token-mean" else (lengths > 0).sum()
        denominator = count.clamp_min(1)
    return sums.sum() / denominator


# Group-relative advantages of outcome rewards.
#
#     A_i = (r_i - mean(r of group)) / (std(r of group) + eps)
#
# std is the sample standard deviation (n - 1). A group whose rewards are all equal carries no signal: its
# responses get A = 0 and keep = False (`mask_std_0`); nothing is resampled.

EPS = 1e-6


@torch.no_grad()
def group_advantages(rewards: Tensor, groups: Tensor, *, normalize_std: bool = True) -> tuple[Tensor, Tensor]:
    """Advantages [N] and keep flags [N] of N graded responses.

    Args:
        rewards: [N] reward per response.
        groups: [N] integer id of the response's prompt group; any ids, any order.
        normalize_std: divide by the group's standard deviation.

    Returns:
        advantages [N] in the dtype of `rewards` (at least float32), and keep [N] bool: False where the
        group's rewards are all equal, a group of one included.

    Raises:
        ValueError: shapes other than [N], groups that are not integers, rewards that are not finite.
    """
    if rewards.ndim != 1:
        raise ValueError(
            f"rewards has shape {list(rewards.shape)}, expected [N]: pass one reward per response"
        )
    same_shape(rewards.shape, groups=groups)
    if groups.is_floating_point() or groups.dtype == torch.bool:
        raise ValueError(
            f"groups has dtype {groups.dtype}, expected integers: pass one group id per response"
        )
    rewards = compute_dtype(rewards)
    finite(torch.ones_like(rewards, dtype=torch.bool), rewards=rewards)
    _, inverse, counts = groups.unique(return_inverse=True, return_counts=True)
    count = counts.to(rewards.dtype)
    total = torch.zeros_like(count).index_add_(0, inverse, rewards)
    centred = rewards - (total / count)[inverse]
    # Equality of rewards, not std > 0: the rounded mean of equal rewards can leave a tiny spurious deviation.
    highest = torch.zeros_like(count).scatter_reduce_(0, inverse, rewards, "amax", include_self=False)
    lowest = torch.zeros_like(count).scatter_reduce_(0, inverse, rewards, "amin", include_self=False)
    keep = (highest > lowest)[inverse]
    if normalize_std:
        variance = torch.zeros_like(count).index_add_(0, inverse, centred.square()) / (count - 1).clamp_min(1)
        centred = centred / (variance.sqrt() + EPS)[inverse]
    return torch.where(keep, centred, 0.0), keep
