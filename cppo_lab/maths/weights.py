"""Position weights w_t and the prefix sum they enter. Shapes: [B, T], right-padded; zero at padding.

    w_t = 1 - (1 - w_min) / (T - 1) * (t - 1),   t = 1..T;   w_1 = 1 when T = 1

w falls linearly from 1 at the first token to w_min at the last: an early token moves every later state, so
its divergence counts in full. T is the response's own length unless `span` fixes it.
"""

import torch
from torch import Tensor

from cppo_lab.maths.checks import compute_dtype, row_counts, same_shape, token_mask, valid_w_min


def position_weights(
    valid: Tensor,
    w_min: float,
    span: int | None = None,
    *,
    reverse: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Linear position weights [B, T] in `dtype`, zero at padding.

    Args:
        valid: [B, T] bool or 0/1.
        w_min: weight of the last token, in (0, 1]; 1 switches the weighting off.
        span: T of the equation for every response; None takes the response's own length.
        reverse: give each response its weights in reverse order, the lightest first: w'_t = w_{len+1-t}.
        dtype: of the result.

    Raises:
        ValueError: w_min outside (0, 1], or a span shorter than the tensor (weights would fall below w_min).
    """
    mask = token_mask(valid)
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
    return torch.addcmul(torch.ones_like(slope), slope, index).to(dtype).masked_fill_(~mask, 0.0)


def shuffled_weights(weights: Tensor, valid: Tensor, permutation: Tensor) -> Tensor:
    """Each response's own weights in another order: w'[b, t] = w[b, permutation[b, t]].

    Keeps the multiset of weights and destroys their link to position. Draw `permutation` once per rollout and
    keep it across the rollout's minibatches.

    Args:
        weights: [B, T].
        valid: [B, T] bool or 0/1.
        permutation: [B, T] integers; in row b the first len_b entries permute 0..len_b - 1, the rest is
            ignored.

    Raises:
        ValueError: wrong shapes, or a row that is not a permutation of the response's own positions.
    """
    mask = token_mask(valid)
    same_shape(mask.shape, weights=weights, permutation=permutation)
    own = torch.arange(mask.shape[1], device=mask.device).expand_as(permutation)
    index = torch.where(mask, permutation, own)
    bad = (index.sort(1).values != own).any(1)
    if bool(bad.any()):
        raise ValueError(
            f"permutation of response {int(bad.nonzero()[0])} is not one of its own positions 0..length-1: "
            "draw it with torch.randperm(length)"
        )
    return weights.gather(1, index).masked_fill_(~mask, 0.0)


def prefix_excess(weights: Tensor, divergence: Tensor, valid: Tensor, delta_b: Tensor) -> Tensor:
    """The amount by which the prefix before t exceeds its budget: sum_{j<t} w_j (D_j - delta_b), [B, T].

    Equals S_{t-1} - delta_b W_{t-1}, so that c_t = min(delta, delta - excess_t). May have either sign.
    Computed as one running sum of the differences; the difference of two sums would have about 60 times the rounding
    error at 16k tokens.

    Args:
        weights: [B, T] w.
        divergence: [B, T] D over every token, kept or masked.
        valid: [B, T] bool or 0/1.
        delta_b: [B] budget rate per response; inf means no budget (excess 0).
    """
    mask = valid.bool()
    same_shape(mask.shape, weights=weights, divergence=divergence)
    same_shape(mask.shape[:1], delta_b=delta_b)
    unlimited = torch.isinf(delta_b)[:, None]
    rate = torch.where(unlimited, 0.0, delta_b[:, None])
    terms = (compute_dtype(divergence) - rate).mul_(weights)
    return _exclusive_sum(terms.masked_fill_(~mask | unlimited, 0.0))


def prefix_weight(weights: Tensor) -> Tensor:
    """W_{t-1} = sum_{j<t} w_j, [B, T] -> [B, T]."""
    return _exclusive_sum(weights)


def _exclusive_sum(terms: Tensor) -> Tensor:
    """Running sum along T without the token itself: 0, x_1, x_1 + x_2, ..."""
    # Shifted instead of sum - terms, because the subtraction would round the empty prefix away from 0.
    result = torch.zeros_like(terms)
    torch.cumsum(terms[:, :-1], 1, out=result[:, 1:])
    return result
