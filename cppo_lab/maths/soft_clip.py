"""SAPO: a sigmoid of the ratio in place of a clip. Shapes: [B, T].

    objective_t = 4 / tau sigmoid(tau (rho_t - 1)) A_t,   tau = tau_positive where A_t > 0, else tau_negative

Its gradient in log pi(y_t) is keep_t rho_t A_t with keep_t = 4 p (1 - p), p = sigmoid(tau (rho_t - 1)): 1 on policy,
falling to 0 on both sides, faster for a larger tau. The paper takes tau_negative > tau_positive, because a negative
advantage raises the logits of all the tokens that were not sampled.

Source: SAPO, arXiv 2511.20347; tau_positive = 1.0, tau_negative = 1.05. On policy the objective is 2 A / tau, not A.
The rule needs no divergence; one that is passed only enters the statistics.
"""

import math

import torch
from torch import Tensor

from cppo_lab.maths.checks import positive
from cppo_lab.maths.output import RuleOutput, common_stats, tokens


def sapo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    tau_positive: float,
    tau_negative: float,
) -> RuleOutput:
    """SAPO's soft clip; `keep` is the weight 4 p (1 - p), and 1 where A = 0.

    `masked` statistics are sums of the removed weight 1 - keep.

    Raises:
        ValueError: a temperature that is not positive, or as in `output.tokens`.
    """
    positive("tau_positive", tau_positive)
    positive("tau_negative", tau_negative)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    tau = torch.full_like(batch.advantages, tau_negative).masked_fill(batch.advantages > 0, tau_positive)
    # The gate saturates long before rho overflows; without the clamp its gradient would be 0 * inf.
    largest = math.log(torch.finfo(batch.logp.dtype).max) / 2
    p = torch.sigmoid(tau * torch.expm1(batch.log_ratio.clamp_max(largest)))
    weight = 4 * p.detach() * (1 - p.detach())
    keep = torch.where(batch.active, weight, 1.0) * batch.valid
    return RuleOutput(
        4 / tau * p * batch.advantages, keep, common_stats(batch, keep), {"soft clip": keep < 1}
    )
