"""The prefix-budget rate delta_b of each response.

fixed:     delta_b as given.
adaptive:  delta_b_eff = clamp(P90(D over the response's tokens), delta_b, cap * delta_b)

P90 is the 90th percentile of the unweighted divergence with linear interpolation between order statistics
(position 0.9 (n - 1), as numpy's default). An empty response gets delta_b.
"""

import math

import torch
from torch import Tensor

from cppo_lab.maths.checks import compute_dtype, one_of, positive, row_counts, same_shape, token_mask

MODES = ("fixed", "adaptive")
QUANTILE = 0.9


@torch.no_grad()
def effective_delta_b(
    divergence: Tensor, valid: Tensor, delta_b: float, mode: str = "fixed", cap: float = 2.0
) -> Tensor:
    """Budget rate [B] per response, in the dtype of `divergence` (at least float32); no gradient.

    Args:
        divergence: [B, T] unweighted D.
        valid: [B, T] bool or 0/1.
        delta_b: the rate ("fixed") or its floor ("adaptive"); math.inf means no budget.
        mode: "fixed" or "adaptive".
        cap: ceiling of the adaptive rate, as a multiple of `delta_b`.

    Raises:
        ValueError: delta_b <= 0, unknown mode, cap < 1, or shapes that differ.
    """
    mask = token_mask(valid)
    same_shape(mask.shape, divergence=divergence)
    positive("delta_b", delta_b, allow_inf=True)
    one_of("delta_b mode", mode, MODES)
    if not cap >= 1:
        raise ValueError(f"cap={cap!r} must be at least 1: the ceiling cap * delta_b lies above delta_b")
    divergence = compute_dtype(divergence)
    floor = divergence.new_full((mask.shape[0],), delta_b)
    if mode == "fixed" or mask.shape[1] == 0:
        return floor
    quantile = masked_quantile(divergence, mask, QUANTILE)
    return torch.where(row_counts(mask) > 0, quantile.clamp(delta_b, cap * delta_b), floor)


def masked_quantile(values: Tensor, valid: Tensor, q: float) -> Tensor:
    """Quantile q of each row's valid values with linear interpolation, [B, T] -> [B]; 0 for an empty row."""
    # Ranks from the top: no row needs more of its largest values than a full one, and a sort takes 3 times
    # as long as finding a tenth of them.
    width = values.shape[1] - 1
    largest = torch.where(valid, values, -torch.inf).topk(width - math.floor(q * width) + 1, 1).values
    count = row_counts(valid)
    last = (count - 1).clamp_min(0)
    position = q * last.to(torch.float64)
    below, above = position.floor().long(), position.ceil().long()
    low = largest.gather(1, (last - below)[:, None])[:, 0]
    high = largest.gather(1, (last - above)[:, None])[:, 0]
    quantile = low + (high - low) * (position - below).to(values.dtype)
    return torch.where(count > 0, quantile, 0.0)
