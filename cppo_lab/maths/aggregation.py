"""From rewards to advantages, and from per-token values [B, T] to one scalar. Loss = -aggregate(objective).

With s_i = sum_t v_it over the valid tokens of response i, n_i its length, N = sum n_i, and B' the number of
responses that have a token (verl's convention: an empty response is not counted):

    token-mean:                sum_i s_i / N
    seq-mean-token-sum:        sum_i s_i / B'
    seq-mean-token-mean:       sum_i (s_i / n_i) / B'
    seq-mean-token-sum-norm:   sum_i s_i / (horizon B')

If a batch is split into micro-batches, pass the whole batch's N (or B') as `denominator`; the micro-batch values then
sum to the value of the whole batch. Masked tokens and rejected responses stay in every denominator.
"""

import torch
from torch import Tensor

from cppo_lab.maths.tokens import (
    compute_dtype,
    finite,
    non_negative,
    one_of,
    positive,
    row_counts,
    same_shape,
    token_mask,
)

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


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
        mode: one of MODES.
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
    one_of("mode", mode, MODES)
    if denominator is not None:
        positive("denominator", float(denominator))
    if horizon is not None:
        positive("horizon", horizon)
        if mode != "seq-mean-token-sum-norm":
            raise ValueError(f"horizon={horizon!r} belongs to seq-mean-token-sum-norm, not {mode!r}: drop it")
    lengths = row_counts(mask)
    sums = torch.where(mask, compute_dtype(values), 0.0).sum(1)  # where, not *: padding may be inf * 0
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


@torch.no_grad()
def group_advantages(
    rewards: Tensor, groups: Tensor, *, normalize_std: bool = True, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Advantages [N] and keep flags [N] of N graded responses.

    Args:
        rewards: [N] reward per response.
        groups: [N] integer id of the response's prompt group; any ids, any order.
        normalize_std: divide by the group's standard deviation.
        eps: added to the standard deviation.

    Returns:
        advantages [N] in the dtype of `rewards` (at least float32), and keep [N] bool: False where the
        group's rewards are all equal, a group of one included.

    Raises:
        ValueError: shapes other than [N], groups that are not integers, rewards that are not finite, eps < 0.
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
    non_negative("eps", eps)
    rewards = compute_dtype(rewards)
    finite(torch.ones_like(rewards, dtype=torch.bool), rewards=rewards)
    index, inverse = groups.unique(return_inverse=True)
    count = torch.zeros(len(index), device=rewards.device, dtype=rewards.dtype).index_add_(
        0, inverse, torch.ones_like(rewards)
    )
    total = torch.zeros_like(count).index_add_(0, inverse, rewards)
    centred = rewards - (total / count)[inverse]
    # Equality of rewards, not std > 0: the rounded mean of equal rewards can leave a tiny spurious deviation.
    highest = torch.zeros_like(count).scatter_reduce_(0, inverse, rewards, "amax", include_self=False)
    lowest = torch.zeros_like(count).scatter_reduce_(0, inverse, rewards, "amin", include_self=False)
    keep = (highest > lowest)[inverse]
    if normalize_std:
        variance = torch.zeros_like(count).index_add_(0, inverse, centred.square()) / (count - 1).clamp_min(1)
        centred = centred / (variance.sqrt() + eps)[inverse]
    return torch.where(keep, centred, 0.0), keep
