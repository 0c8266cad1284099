"""Argument checks shared by the maths. Every message names the value, what is valid, and the remedy.

Shapes: B = responses, T = padded response length; tokens are right-padded.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from cppo_lab.rules.weights import is_w_min


def positive(name: str, value: float, *, allow_inf: bool = False) -> None:
    """Raise ValueError unless `value` > 0 (and finite, unless `allow_inf`)."""
    if not value > 0 or (math.isinf(value) and not allow_inf):
        extra = " (math.inf switches it off)" if allow_inf else ""
        raise ValueError(f"{name}={value!r} must be a positive number{extra}: pass a value above 0")


def non_negative(name: str, value: float) -> None:
    """Raise ValueError unless `value` is finite and >= 0."""
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name}={value!r} must be a finite number >= 0: pass 0 or more")


def valid_w_min(value: float) -> None:
    """Raise ValueError unless w_min may have this value."""
    if not is_w_min(value):
        raise ValueError(f"w_min={value!r} must lie in (0, 1]: pass 1.0 to switch it off, or a smaller value")


def ratio_bounds(low: float, high: float) -> None:
    """Raise ValueError unless 0 <= low <= 1 <= high; 0 and math.inf leave a side open."""
    if not 0 <= low <= 1:
        raise ValueError(f"ratio_low={low!r} must lie in [0, 1]: pass 0 to leave the lower side open")
    if not high >= 1:
        raise ValueError(
            f"ratio_high={high!r} must be at least 1: pass math.inf to leave the upper side open"
        )


def one_of(name: str, value: str, valid: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of `valid`."""
    choices = list(valid)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown: choose one of {choices}")


def same_shape(shape: tuple[int, ...], **tensors: Tensor) -> None:
    """Raise ValueError unless every tensor has exactly `shape` (no silent broadcasting)."""
    for name, tensor in tensors.items():
        if tensor.shape != shape:
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, expected {list(shape)}: "
                "nothing is broadcast, use [:, None].expand for a value per response"
            )


def token_mask(valid: Tensor) -> Tensor:
    """`valid` [B, T] (bool or 0/1) as bool, checked to be 0/1 and right-padded.

    Raises:
        ValueError: not two-dimensional, other values than 0 and 1, or a gap before a valid token.
    """
    if valid.ndim != 2:
        raise ValueError(f"valid has shape {list(valid.shape)}, expected [B, T]: pass one 0/1 flag per token")
    mask = valid.bool()
    if valid.dtype != torch.bool and not torch.equal(mask.to(valid.dtype), valid):
        raise ValueError("valid holds values other than 0 and 1: pass a bool or 0/1 tensor")
    gap = mask[:, 1:] > mask[:, :-1]
    if gap.numel() and bool(gap.view(torch.uint8).amax()):  # on CPU 40 times faster than any()
        raise ValueError("valid has a valid token after a padded one: right-pad the responses")
    return mask


def finite(mask: Tensor, **tensors: Tensor) -> None:
    """Raise ValueError if a tensor is NaN or infinite where `mask` holds."""
    for name, tensor in tensors.items():
        bad = mask & ~torch.isfinite(tensor)
        if bool(bad.any()):
            where = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{name} is NaN or infinite at {int(bad.sum())} valid places, first at {where} "
                f"({tensor[tuple(where)].item()}): values of valid tokens must be finite"
            )


def row_counts(mask: Tensor) -> Tensor:
    """How many are True in each row, [B, T] bool -> [B] int32."""
    # On CPU the default int64 is 40 times slower.
    return mask.sum(1, dtype=torch.int32)


def compute_dtype(tensor: Tensor) -> Tensor:
    """`tensor` itself in float32 or float64; anything narrower (bfloat16, float16, integers) as float32."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
