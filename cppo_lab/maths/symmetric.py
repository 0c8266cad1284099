"""Token masks that ignore the sign of A: IcePop, IPO and KPop. Shapes: [B, T].

    IcePop:  M_t = [ ratio_low <= rho_t <= ratio_high ]
    IPO:     M_t = [ |pi(y_t) - mu(y_t)| <= delta ]
    KPop:    M_t = [ KL_B(mu, pi) <= delta  and  KL_B(pi, mu) <= delta ]
             KL_B(p, q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))

    objective_t = M_t rho_t A_t   (IPO: - kl_tau (log rho_t)^2, at every token, masked or not, whatever A is)

DPPO and CPPO keep every token that moves back toward mu; these rules drop it like any other token beyond the bound. The
probabilities are those of the sampled token, so no divergence is needed; one that is passed only enters the statistics.
A tie keeps the token. Masked tokens stay in the denominators of `aggregate`.

Source: IcePop, arXiv 2510.18855, in the form of prime-rl's `icepop` loss (with bounds 0.2 and 5) and of verl's
`rollout_corr_helper.py` with bounds "0.5_5.0"; those of rule/icepop.yaml are 0.5 and 5. There rho is a constant
factor of log pi; its gradient, M rho A, is the one here. slime's IcePop (`backends/megatron_utils/loss.py`) is
another loss: PPO's clipped loss, weighted by the ratio of the trainer's old policy to the rollout policy where that
ratio is within the bounds. IPO, prime-rl `trainer/rl/loss.py` (its penalty: Kimi K2.5, arXiv 2602.02276). KPop, the
blog ringtech.notion.site/kpop (AReaL `utils/functional/functional.py`, prime-rl pull request 3283, which adds IPO's
penalty; not here).
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import non_negative, positive, ratio_bounds
from cppo_lab.maths.output import RuleOutput, Tokens, common_stats, importance_objective, tokens

# Probabilities are clipped to [FLOOR, 1 - FLOOR] before KPop's logarithms, as in prime-rl: float32 cannot represent 1 -
# 1e-8.
FLOOR = 1e-6


def icepop(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    ratio_low: float,
    ratio_high: float,
) -> RuleOutput:
    """IcePop: keep iff ratio_low <= rho <= ratio_high. 0 and math.inf leave a side open.

    Raises:
        ValueError: bounds that do not enclose 1, or as in `output.tokens`.
    """
    ratio_bounds(ratio_low, ratio_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    ratio = batch.log_ratio.detach().exp()
    return _kept(batch, (ratio >= ratio_low) & (ratio <= ratio_high), "ratio bounds")


def ipo(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
    kl_tau: float,
) -> RuleOutput:
    """IPO: keep iff |pi - mu| <= delta; minus kl_tau (log rho)^2 at every token, which also pulls masked ones back.

    Raises:
        ValueError: delta <= 0, kl_tau < 0, or as in `output.tokens`.
    """
    positive("delta", delta)
    non_negative("kl_tau", kl_tau)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    shift = (batch.logp.detach().exp() - _rollout(batch, rollout_logp).exp()).abs()
    output = _kept(batch, shift <= delta, "probability shift")
    return output._replace(objective=output.objective - kl_tau * batch.log_ratio.square())


def kpop(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
) -> RuleOutput:
    """KPop: keep iff the binary KL is at most delta in both directions.

    Raises:
        ValueError: delta <= 0, or as in `output.tokens`.
    """
    positive("delta", delta)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    forth = back = torch.zeros_like(batch.logp.detach())
    for pi, mu in zip(_cells(batch.logp.detach()), _cells(_rollout(batch, rollout_logp)), strict=True):
        log_ratio = pi.log() - mu.log()
        forth, back = forth + pi * log_ratio, back - mu * log_ratio
    return _kept(batch, torch.maximum(forth, back) <= delta, "binary KL")


def _kept(batch: Tokens, within: Tensor, test: str) -> RuleOutput:
    keep = (batch.valid & within).to(batch.logp.dtype)
    return RuleOutput(importance_objective(batch, keep), keep, common_stats(batch, keep), {test: ~within})


def _rollout(batch: Tokens, rollout_logp: Tensor) -> Tensor:
    """log mu(y_t) without gradient, 0 at padding."""
    return torch.where(batch.valid, rollout_logp.detach().to(batch.logp.dtype), 0.0)


def _cells(logp: Tensor) -> tuple[Tensor, Tensor]:
    """p and 1 - p of log p [B, T], each at least FLOOR; -expm1 keeps the digits of 1 - p near p = 1."""
    return logp.exp().clamp(FLOOR, 1 - FLOOR), torch.expm1(logp).neg_().clamp(FLOOR, 1 - FLOOR)
