"""Group-relative advantages of outcome rewards.

    A_i = (r_i - mean(r of group)) / (std(r of group) + eps)

std is the sample standard deviation (n - 1). A group whose rewards are all equal carries no signal: its
responses get A = 0 and keep = False (`mask_std_0`); nothing is resampled.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import compute_dtype, finite, non_negative, same_shape


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
