"""Triton's kernels of `divergence.logp_and_divergence`: its values in one read of the logits, its gradient in a second
read and a write.

It imports them for `fused=True` alone: the product runs without Triton, and no CPU has a use for them but
Triton's interpreter (TRITON_INTERPRET=1 before the first import of Triton), in which the tests run them.

A program takes a row. Over its blocks of symbols it keeps m, the largest x = logits / temperature so far, and

    s = sum_v exp(x_v - m),    h = sum_v exp(x_v - m) (x_v - m)

which a larger m' turns into exp(m - m') s and exp(m - m') (h + (m - m') s). At the end

    log pi(v) = x_v - m - log s,    H(pi) = log s - h / s,    pi(v) = exp(x_v - m) / s.

Offsets of rows and symbols are 64-bit: 20,480 rows of 151,936 symbols are more than 2^31 elements. The vocabulary is a
constant of the compiled kernel, which also keeps Triton's interpreter from making a number of an array, for which
numpy from 2.4 on raises.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_BLOCK = 8192


@triton.jit
def _read(
    logits,
    row_stride,
    symbol_stride,
    ids,
    logp,
    largest,
    total,
    entropy,
    scale,
    VOCABULARY: tl.constexpr,
    IDS: tl.constexpr,
    ID_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row's log pi at its ids, m, s and the entropy."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    m = -float("inf")
    s = 0.0
    h = 0.0
    for start in range(0, VOCABULARY, BLOCK):
        symbol = start + tl.arange(0, BLOCK)
        offset = symbol.to(tl.int64) * symbol_stride
        x = tl.load(logits + offset, mask=symbol < VOCABULARY, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(m, tl.max(x, 0))
        # While all symbols are impossible, the largest is -inf: inf - inf is no number.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        mass = tl.exp(x - base)
        shrink = tl.exp(m - base)
        # An impossible symbol has no mass, and 0 * inf is no number either.
        h = tl.where(s > 0, (h + (m - base) * s) * shrink, 0.0)
        h += tl.sum(tl.where(mass > 0, mass * (x - base), 0.0), 0)
        s = s * shrink + tl.sum(mass, 0)
        m = higher
    tl.store(largest + row, m)
    tl.store(total + row, s)
    tl.store(entropy + row, tl.log(s) - h / s)
    place = tl.arange(0, ID_BLOCK)
    symbol = tl.load(ids + row * IDS + place, mask=place < IDS, other=0)
    # An id beyond the vocabulary gives NaN, which the loss refuses, and no value of the next row.
    x = tl.load(logits + symbol * symbol_stride, mask=symbol < VOCABULARY, other=float("nan"))
    tl.store(logp + row * IDS + place, x.to(tl.float32) * scale - m - tl.log(s), mask=place < IDS)


@triton.jit
def _write_gradient(
    logits,
    row_stride,
    symbol_stride,
    gradient,
    gradient_row_stride,
    gradient_symbol_stride,
    ids,
    factor,
    largest,
    total,
    scale,
    VOCABULARY: tl.constexpr,
    IDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row's sum of factor ([v = id] - pi(v)) over its ids; each logit is read before its place may be written."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    gradient += row * gradient_row_stride
    ids += row * IDS
    factor += row * IDS
    m = tl.load(largest + row)
    share = 0.0
    for place in range(IDS):
        share += tl.load(factor + place) / tl.load(total + row)
    for start in range(0, VOCABULARY, BLOCK):
        symbol = start + tl.arange(0, BLOCK)
        wide = symbol.to(tl.int64)
        x = tl.load(logits + wide * symbol_stride, mask=symbol < VOCABULARY, other=-float("inf"))
        value = -share * tl.exp(x.to(tl.float32) * scale - m)
        for place in range(IDS):
            value += tl.where(wide == tl.load(ids + place), tl.load(factor + place), 0.0)
        value = value.to(gradient.dtype.element_ty)
        tl.store(gradient + wide * gradient_symbol_stride, value, mask=symbol < VOCABULARY)


def read(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log pi at `ids` [N, M], the entropy of pi [N], and m and s [N] for `write_gradient`, in float32.

    Args:
        logits: [N, V] of 16 or 32 bits, with any strides.
        ids: [N, M] int64, contiguous, each within the vocabulary.
    """
    logp, width = torch.empty_like(ids, dtype=torch.float32), ids.shape[1]
    entropy, largest, total = (logp.new_empty(len(ids)) for _ in range(3))
    values = ids, logp, largest, total, entropy, 1 / temperature
    _launch(_read, logits, *values, IDS=width, ID_BLOCK=triton.next_power_of_2(width))
    return logp, entropy, largest, total


def write_gradient(
    logits: Tensor,
    ids: Tensor,
    factor: Tensor,
    gradient: Tensor,
    temperature: float,
    largest: Tensor,
    total: Tensor,
) -> None:
    """Write the sum of `factor` ([v = id] - pi(v)) to `gradient` [N, V], which may be the logits themselves.

    Args:
        ids, factor: [N, M] int64 and float32, contiguous.
        largest, total: m and s of `read`.
    """
    values = ids, factor, largest, total, 1 / temperature
    _launch(_write_gradient, logits, gradient, *gradient.stride(), *values, IDS=ids.shape[1])
    # Autograd does not see a kernel's writes: whatever else needs the values of overwritten logits has to raise.
    torch.autograd.graph.increment_version(gradient)


def _launch(kernel: Any, logits: Tensor, *values: Any, **constants: int) -> None:
    """Run `kernel` on every row."""
    rows, vocabulary = logits.shape
    block = min(LARGEST_BLOCK, triton.next_power_of_2(vocabulary))
    with torch.cuda.device_of(logits):
        kernel[(rows,)](
            logits, *logits.stride(), *values, VOCABULARY=vocabulary, BLOCK=block, num_warps=8, **constants
        )
