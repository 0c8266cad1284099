"""DRPO: a quadratic penalty on the probability's shift in place of a mask. Shapes: [B, T].

    objective_t = rho_t A_t - |A_t| mu(y_t) (rho_t - 1)^2 / (2 delta)

Its gradient in log pi(y_t) is g_t rho_t A_t with g_t = 1 - sign(A_t (rho_t - 1)) |pi(y_t) - mu(y_t)| / delta: below 1
where the token moves away, negative beyond delta, above 1 where it moves back. With delta >= 1 no token turns around.

Source: DRPO, arXiv 2606.09821, Eq. (8); UniRL `unirl/algorithms/drpo.py`, which clamps log rho to [-20, 20], while here
a ratio that overflows is an error. The paper's delta is 12.5. The rule needs no divergence; one that is passed only
enters the statistics.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import positive
from cppo_lab.maths.output import RuleOutput, common_stats, importance_objective, tokens


def drpo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
) -> RuleOutput:
    """DRPO; `keep` is g clipped to [0, 1], and 1 where A = 0.

    `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: delta <= 0, a ratio that overflows, or as in `output.tokens`.
    """
    positive("delta", delta)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    surrogate = importance_objective(batch, batch.valid.to(batch.logp.dtype))
    mu = torch.where(batch.valid, rollout_logp.detach().to(batch.logp.dtype), 0.0).clamp_max(0).exp()
    change = torch.expm1(batch.log_ratio)
    shift = mu * change  # pi - mu, which cannot overflow: its square over mu could
    gate = 1 - (batch.advantages.sign() * shift.detach() / delta).clamp(0, 1)
    keep = gate * batch.valid
    objective = surrogate - batch.advantages.abs() * (shift * change) / (2 * delta)
    return RuleOutput(objective, keep, common_stats(batch, keep), {"probability shift": keep < 1})
