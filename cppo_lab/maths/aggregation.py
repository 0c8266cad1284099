"""From per-token values [B, T] to one scalar. Loss = -aggregate(objective).

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

from cppo_lab.maths.checks import compute_dtype, one_of, positive, row_counts, same_shape, token_mask

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
