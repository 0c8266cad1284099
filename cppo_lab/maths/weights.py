"""Position weights w_t, the prefix sum they enter, and the prefix-budget rate delta_b.

Shapes: [B, T], right-padded; zero at padding. `valid` is not checked: it is that of a record of tokens.

    w_t = 1 - (1 - w_min) / (T - 1) * (t - 1),   t = 1..T;   w_1 = 1 when T = 1

w falls linearly from 1 at the first token to w_min at the last: an early token moves every later state, so
its divergence counts in full. T is the response's own length unless `span` fixes it.
"""

import math

import torch
from torch import Tensor

from cppo_lab.maths.tokens import (
    compute_dtype,
    non_negative,
    one_of,
    positive,
    row_counts,
    same_shape,
    valid_w_min,
)


def position_weights(
    valid: Tensor,
    w_min: float,
    span: int | None = None,
    *,
    reverse: bool = False,
    permutation: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Linear position weights [B, T] in `dtype`, zero at padding.

    Args:
        valid: [B, T] bool or 0/1, right-padded (`Tokens` checks it).
        w_min: weight of the last token, in (0, 1]; 1 switches the weighting off.
        span: T of the equation for every response; None takes the response's own length.
        reverse: give each response its weights in reverse order, the lightest first: w'_t = w_{len+1-t}.
        permutation: [B, T], give each response its weights in this order, see `own_order`: w'_t = w_{permutation[t]}.
            That keeps the multiset of weights and destroys their link to position. Draw it once per rollout and keep
            it across the rollout's minibatches.
        dtype: of the result.

    Raises:
        ValueError: w_min outside (0, 1], a span shorter than the tensor (weights would fall below w_min), or as
            `own_order`.
    """
    mask = valid.bool()
    valid_w_min(w_min)
    if span is not None and span < mask.shape[1]:
        raise ValueError(f"span={span!r} is shorter than T={mask.shape[1]}: pass T or more, or None")
    # PAPER: T is the response's own length; releases that use the padded width correspond to `span`.
    length = row_counts(mask)[:, None]
    if span is not None:
        length = torch.full_like(length, span)
    index = torch.arange(mask.shape[1], device=mask.device, dtype=torch.float64)
    if reverse:
        index = row_counts(mask)[:, None] - 1 - index  # negative at padding, which is zeroed below
    slope = (w_min - 1) / (length - 1).clamp_min(1).to(torch.float64)
    weights = torch.addcmul(torch.ones_like(slope), slope, index).to(dtype)
    if permutation is not None:
        weights = weights.gather(1, own_order(mask, permutation))
    return weights.masked_fill_(~mask, 0.0)


def own_order(mask: Tensor, permutation: Tensor) -> Tensor:
    """[B, T] `permutation` with each place of padding in its own place. `mask`: [B, T] bool, right-padded.

    permutation: [B, T] integers; in row b the first len_b entries permute 0..len_b - 1, the rest is ignored.

    Raises:
        ValueError: wrong shape, or a row that is not a permutation of the response's own positions.
    """
    same_shape(mask.shape, permutation=permutation)
    identity = torch.arange(mask.shape[1], device=mask.device).expand_as(permutation)
    index = torch.where(mask, permutation, identity)
    bad = (index.sort(1).values != identity).any(1)
    if bool(bad.any()):
        raise ValueError(
            f"permutation of response {int(bad.nonzero()[0])} is not one of its own positions 0..length-1: "
            "draw it with torch.randperm(length)"
        )
    return index


def prefix_excess(weights: Tensor, divergence: Tensor, valid: Tensor, delta_b: Tensor) -> Tensor:
    """The amount by which the prefix before t exceeds its budget: sum_{j<t} w_j (D_j - delta_b), [B, T].

    Equals S_{t-1} - delta_b W_{t-1}, so that c_t = min(delta, delta - excess_t). May have either sign.
    Computed as a running sum of the differences; the difference of two sums would have about 60 times the rounding
    error at 16k tokens.

    Args:
        weights: [B, T] w.
        divergence: [B, T] D over every token, kept or masked.
        valid: [B, T] bool or 0/1, right-padded (`Tokens` checks it).
        delta_b: [B] budget rate per response; inf means no budget (excess 0).
    """
    mask = valid.bool()
    same_shape(mask.shape, weights=weights, divergence=divergence)
    same_shape(mask.shape[:1], delta_b=delta_b)
    unlimited = torch.isinf(delta_b)[:, None]
    rate = torch.where(unlimited, 0.0, delta_b[:, None])
    terms = (compute_dtype(divergence) - rate).mul_(weights)
    return exclusive_sum(terms.masked_fill_(~mask | unlimited, 0.0))


def exclusive_sum(terms: Tensor) -> Tensor:
    """Running sum along T without the token itself: 0, x_1, x_1 + x_2, ..."""
    # Shifted instead of sum - terms, because the subtraction would round the empty prefix away from 0.
    result = torch.zeros_like(terms)
    torch.cumsum(terms[:, :-1], 1, out=result[:, 1:])
    return result


# The prefix-budget rate delta_b of each response.
#
# fixed:     delta_b as given.
# adaptive:  delta_b_eff = clamp(scale * quantile(D over the response's tokens), delta_b, cap * delta_b)
#
# The quantile is that of the unweighted divergence with linear interpolation between order statistics (position
# q (n - 1), as numpy's default). An empty response gets delta_b. The paper has q = 0.9, scale 1 and cap 2; the authors'
# released configuration has a cap of 5 (docs/paper_settings.md).

MODES = ("fixed", "adaptive")
# The paper's values; `spec.run.PAPER` repeats them for code that does not import torch.
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
        valid: [B, T] bool or 0/1, right-padded (`Tokens` checks it).
        delta_b: the rate ("fixed") or its floor ("adaptive"); math.inf means no budget.
        mode: "fixed" or "adaptive".
        cap: ceiling of the adaptive rate, as a multiple of `delta_b`; math.inf means none.
        quantile: of the response's divergences, in [0, 1] ("adaptive").
        scale: factor of that quantile ("adaptive").

    Raises:
        ValueError: delta_b <= 0, unknown mode, cap < 1, quantile outside [0, 1], scale < 0, or shapes that differ.
    """
    mask = valid.bool()
    same_shape(mask.shape, divergence=divergence)
    positive("delta_b", delta_b, allow_inf=True)
    one_of("delta_b mode", mode, MODES)
    if not cap >= 1:
        raise ValueError(f"cap={cap!r} must be at least 1: the ceiling cap * delta_b lies above delta_b")
    if not 0 <= quantile <= 1:
        raise ValueError(f"quantile={quantile!r} must lie in [0, 1]: 0.9 is the 90th percentile")
    non_negative("scale", scale)
    divergence = compute_dtype(divergence)
    if mode == "fixed" or mask.shape[1] == 0:
        return divergence.new_full((mask.shape[0],), delta_b)
    # The quantile of each response's divergences with linear interpolation. topk instead of a sort: no row needs more
    # of its largest values than a full row, and a sort takes 3 times as long.
    width = mask.shape[1] - 1
    kept = width - math.floor(quantile * width) + 1
    largest = torch.where(mask, divergence, -torch.inf).topk(kept, 1).values
    count = row_counts(mask)
    last = (count - 1).clamp_min(0)
    position = quantile * last.to(torch.float64)
    below, above = position.floor().long(), position.ceil().long()
    low = largest.gather(1, (last - below)[:, None])[:, 0]
    high = largest.gather(1, (last - above)[:, None])[:, 0]
    measured = scale * torch.where(count > 0, low + (high - low) * (position - below).to(low.dtype), 0.0)
    return measured.clamp(delta_b, cap * delta_b)  # of an empty response: delta_b
