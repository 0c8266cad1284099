"""The off-policy sequence mask of DeepSeek-V3.2 on GRPO's clip. Shapes: [B, T], T_i the length of response i.

    M_t = 0  if  A_t < 0  and  1/T_i sum_t log(mu(y_t) / pi(y_t)) > delta,  else 1
    objective_t = M_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)

Only responses with a negative advantage are dropped, and only those that are less likely under pi than under mu. A tie
keeps the response. A dropped one has objective 0 and stays in the denominators of `aggregate`.

Source: DeepSeek-V3.2, arXiv 2512.02556, Eq. (9); slime `utils/ppo_utils.py` (`compute_opsm_mask`), TRL
`trainer/grpo_trainer.py` (`get_off_policy_mask`). PAPER: delta and the clips are not disclosed. For delta, slime's
default is 1e-4; TRL shows 0.5, and Trinity-RFT found 0.05 to 0.2. The rule needs no divergence; one that is passed only
enters the statistics.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import positive, row_counts
from cppo_lab.maths.output import RuleOutput, common_stats, importance_objective, tokens
from cppo_lab.maths.surrogates import check_clips, clip


def opsm(
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    valid: Tensor,
    divergence: Tensor | None = None,
    *,
    delta: float,
    clip_low: float,
    clip_high: float,
) -> RuleOutput:
    """GRPO's clipped surrogate without off-policy responses of negative advantage; delta = math.inf drops none.

    `keep` is 1 where the response is kept and the unclipped branch is taken; `clipped` counts only tokens of kept
    responses.

    Raises:
        ValueError: delta <= 0, clip_low outside [0, 1], clip_high < 0, or as in `output.tokens`.
    """
    positive("delta", delta, allow_inf=True)
    check_clips(clip_low, clip_high)
    batch = tokens(logp, rollout_logp, advantages, valid, divergence)
    drift = -batch.log_ratio.detach().sum(1) / row_counts(batch.valid).clamp_min(1)
    dropped = (batch.advantages < 0) & (drift > delta)[:, None]
    clipped, bound = clip(batch, clip_low, clip_high)
    clipped = clipped & ~dropped
    keep = (batch.valid & ~clipped & ~dropped).to(batch.logp.dtype)
    objective = torch.where(clipped, bound * batch.advantages, importance_objective(batch, keep))
    stats = common_stats(batch, keep) | {"clipped": row_counts(clipped).sum().to(keep.dtype)}
    return RuleOutput(objective, keep, stats, {"mean log-ratio": dropped, "ratio clip": clipped})
