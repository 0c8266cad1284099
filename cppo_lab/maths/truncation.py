"""The objective of rules that keep or drop tokens, and its truncated form. Shapes: [B, T].

    objective_t = keep_t rho_t A_t                                                               the paper's
    objective_t = keep_t stopgrad(min(exp(clip(log rho_t, -L, L)), C)) A_t log pi(y_t)           truncated

C is `ratio_cap`, L is `log_ratio_clamp`; None and math.inf switch either off, and with both off the first form holds.
The gradients in log pi(y_t) are keep rho A and keep min(rho, C) A. They are equal if no token is beyond the limits,
although the values of the two forms differ.

Source of the truncated form: verl's DPPO (`dppo_tv`) and the CPPO authors' loss (verl's pull request 6731), both with
C = L = 20; DPPO, arXiv 2602.04879, section 5.4.
"""

import math

import torch
from torch import Tensor

from cppo_lab.maths.checks import positive, row_counts
from cppo_lab.maths.output import Tokens, importance_objective


def objective_and_stats(
    batch: Tokens, keep: Tensor, ratio_cap: float | None, log_ratio_clamp: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The objective [B, T]; and, if there is a limit, the statistic `clipped`: the kept tokens with A != 0 beyond it.

    Raises:
        ValueError: ratio_cap < 1, log_ratio_clamp <= 0, or as in `output.importance_objective`.
    """
    cap, clamp = (math.inf if limit is None else limit for limit in (ratio_cap, log_ratio_clamp))
    if not cap >= 1:
        raise ValueError(f"ratio_cap={ratio_cap!r} must be at least 1: pass math.inf to switch it off")
    positive("log_ratio_clamp", clamp, allow_inf=True)
    if math.isinf(cap) and math.isinf(clamp):
        return importance_objective(batch, keep), {}
    log_ratio = batch.log_ratio.detach()
    # The cap as a limit of the log-ratio, so that no exponential overflows.
    limited = log_ratio.clamp(-clamp, min(clamp, math.log(cap)))
    ratio = torch.where(keep > 0, limited, 0.0).exp()
    if batch.overflows and not bool(ratio.isfinite().all()):
        raise ValueError(
            f"the probability ratio of a kept token overflows: lower log_ratio_clamp={log_ratio_clamp!r} or set "
            "ratio_cap"
        )
    beyond = (limited != log_ratio) & batch.active & (keep > 0)
    stats = {"clipped": row_counts(beyond).sum().to(keep.dtype)}
    return keep * ratio * batch.advantages * batch.logp, stats
