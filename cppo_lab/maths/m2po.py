"""M2PO: a bound on the second moment of a whole minibatch. Shapes: [B, T].

    H = { t of any response: A_t (rho_t - 1) > 0 },   v_t = (log rho_t)^2
    drop the largest v_t of H one by one, until the mean of v over the rest of H is at most m2
    objective_t = M_t rho_t A_t

A token that moves pi back toward mu is always kept. Among tokens with equal v, the last ones of the batch are dropped
first. Unlike for every other rule, a decision depends on all responses of the minibatch, so the rule cannot be applied
to micro-batches separately.

Source: M2PO, arXiv 2510.01161, m2 = 0.04; H as in the authors' code (github.com/Infini-AI-Lab/M2PO,
`verl/trainer/ppo/core_algos.py`). Public implementations bound different means: the authors' code bounds the mean of
min(v, tau^2) over all of H and clips at tau; AReaL `trainer/ppo/actor.py` drops until the mean of the rest is within
the limit, as here, but H has all tokens, whatever A is. Both use one micro-batch. The rule needs no divergence; one
that is passed only enters the statistics.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import positive
from cppo_lab.maths.output import RuleOutput, common_stats, importance_objective, tokens


def m2po(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    m2: float,
) -> RuleOutput:
    """M2PO on a whole minibatch.

    Args:
        m2: largest mean of (log rho)^2 over the kept tokens that move away; math.inf drops none.

    Raises:
        ValueError: m2 <= 0, or as in `output.tokens`.
    """
    positive("m2", m2, allow_inf=True)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    dropped = _outliers(batch.log_ratio.detach().square(), batch.moves_away, m2)
    keep = (batch.valid & ~dropped).to(batch.logp.dtype)
    tests = {"second moment": dropped}
    return RuleOutput(importance_objective(batch, keep), keep, common_stats(batch, keep), tests)


def _outliers(values: Tensor, among: Tensor, limit: float) -> Tensor:
    """[B, T] bool: the fewest of the largest `values` of `among` without which the mean of the rest is <= limit."""
    ascending, order = values[among].double().sort(stable=True)
    # The mean of the n smallest values increases with n, so all n with a mean within the limit come first.
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, device=values.device)
    dropped = torch.zeros_like(order, dtype=torch.bool)
    dropped[order] = means > limit
    return torch.zeros_like(among).masked_scatter(among, dropped)
