"""The prefix-budget rate delta_b of each response.

fixed:     delta_b as given.
adaptive:  delta_b_eff = clamp(scale * quantile(D over the response's tokens), delta_b, cap * delta_b)

The quantile is that of the unweighted divergence with linear interpolation between order statistics (position
q (n - 1), as numpy's default). An empty response gets delta_b. The paper has q = 0.9, scale 1 and cap 2; the authors'
released configuration has a cap of 5 (docs/paper_settings.md).
"""

import math

import torch
from torch import Tensor

from cppo_lab.maths.checks import (
    compute_dtype,
    non_negative,
    one_of,
    positive,
    row_counts,
    same_shape,
    token_mask,
)

MODES = ("fixed", "adaptive")
# The paper's values; `spec.rule.PAPER` repeats them for code that does not import torch.
QUANTILE = 0.9
SCALE = 1.0
CAP = 2.0


@torch.no_grad()
def effective_delta_b(
    divergence: Tensor,
    valid: Tensor,
    delta_b: float,
    mode: str = "fixed",
    cap: float = CAP,
    quantile: float = QUANTILE,
    scale: float = SCALE,
) -> Tensor:
    """Budget rate [B] per response, in the dtype of `divergence` (at least float32); no gradient.

    Args:
        divergence: [B, T] unweighted D.
        valid: [B, T] bool or 0/1.
        delta_b: the rate ("fixed") or its floor ("adaptive"); math.inf means no budget.
        mode: "fixed" or "adaptive".
        cap: ceiling of the adaptive rate, as a multiple of `delta_b`; math.inf means none.
        quantile: of the response's divergences, in [0, 1] ("adaptive").
        scale: factor of that quantile ("adaptive").

    Raises:
        ValueError: delta_b <= 0, unknown mode, cap < 1, quantile outside [0, 1], scale < 0, or shapes that differ.
    """
    mask = token_mask(valid)
    same_shape(mask.shape, divergence=divergence)
    positive("delta_b", delta_b, allow_inf=True)
    one_of("delta_b mode", mode, MODES)
    if not cap >= 1:
        raise ValueError(f"cap={cap!r} must be at least 1: the ceiling cap * delta_b lies above delta_b")
    if not 0 <= quantile <= 1:
        raise ValueError(f"quantile={quantile!r} must lie in [0, 1]: 0.9 is the 90th percentile")
    non_negative("scale", scale)
    divergence = compute_dtype(divergence)
    floor = divergence.new_full((mask.shape[0],), delta_b)
    if mode == "fixed" or mask.shape[1] == 0:
        return floor
    measured = scale * masked_quantile(divergence, mask, quantile)
    return torch.where(row_counts(mask) > 0, measured.clamp(delta_b, cap * delta_b), floor)


def masked_quantile(values: Tensor, valid: Tensor, q: float) -> Tensor:
    """Quantile q of each row's valid values with linear interpolation, [B, T] -> [B]; 0 for an empty row."""
    # topk instead of a sort: no row needs more of its largest values than a full one, and a sort takes 3 times as long.
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
