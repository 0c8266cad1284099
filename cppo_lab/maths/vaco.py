"""VACO's directional filter on the divergence of a whole response. Shapes: [B, T], T_i the length of response i.

    D_i = 1/T_i sum_t abs(rho_t - 1)
    M_t = 0  if  D_i > delta  and  A_t log(rho_t) > 0,  else 1
    objective_t = M_t rho_t A_t

D_i estimates twice the mean total variation between pi and mu over the response. Beyond delta a response keeps the
tokens whose gradient moves pi back towards mu. A tie keeps the token. It is TRM-Avg with DPPO's directional test.

Source: VACO, arXiv 2603.01365, as implemented for language models in open-instruct (`grpo_utils.py`,
`rho_mask_tv_divergence`, pull request 1681). PAPER: open-instruct has no default for delta, and we have not looked up
the paper's value for language models; 0.2 is our choice. open-instruct bounds log rho to [-10, 10] and caps the weight
at 2; here rho is not limited. The rule needs no divergence; one that is passed only enters the statistics.
"""

from torch import Tensor

from cppo_lab.maths.checks import positive, row_counts
from cppo_lab.maths.output import RuleOutput, common_stats, importance_objective, tokens


def vaco(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
) -> RuleOutput:
    """Mask the tokens that move a response further from mu if its mean abs(rho - 1) exceeds delta; math.inf masks
    nothing.

    Raises:
        ValueError: delta <= 0, or as in `output.tokens`.
    """
    positive("delta", delta, allow_inf=True)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    distance = batch.log_ratio.detach().expm1().abs().sum(1) / row_counts(batch.valid).clamp_min(1)
    masked = batch.moves_away & (distance > delta)[:, None]
    keep = (batch.valid & ~masked).to(batch.logp.dtype)
    return RuleOutput(
        importance_objective(batch, keep), keep, common_stats(batch, keep), {"mean distance": masked}
    )
