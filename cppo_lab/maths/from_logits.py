"""The sampled token's log-probability, and the divergence at its state, straight from pi's logits.

    log pi(v) = x_v - log sum_u exp(x_u),    x = logits / temperature
    d log pi(y) / d logits_v = ([v = y] - pi(v)) / temperature

A vocabulary of 151936 makes [N, V] the largest tensor of a training step. Here each row is normalised once,
and the log-probabilities at y and at mu's K most likely tokens are read off together. Rows are taken a chunk
at a time into one reused buffer: the forward makes no [N, V] tensor, the backward only the gradient itself. With
`fused`, the kernels of `logits_kernel` do the same without the buffer; this module's code is their reference.

Shapes: N = tokens (flatten [B, T] first), V = vocabulary, K = tokens kept of mu. float64 logits are computed
in float64, all others in float32, chunk by chunk.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cppo_lab.maths.divergence import CONVENTIONS, MEASURES, binary, topk_from_logp
from cppo_lab.maths.tokens import one_of, positive, same_shape

# Default number of elements per chunk: on a CPU the buffer should fit into the cache, an accelerator prefers long
# kernels.
_CPU_ELEMENTS, _OTHER_ELEMENTS = 2**20, 2**26


class FromLogits(NamedTuple):
    """Log pi(y) [N] with gradient; D [N] and the entropy of pi [N] (None unless asked for) without; log pi at mu's
    Top-K [N, K] (None without), with gradient if asked for.
    """

    logp: Tensor
    divergence: Tensor
    entropy: Tensor | None
    topk_logp: Tensor | None = None


def logp_and_divergence(
    logits: Tensor,
    tokens: Tensor,
    rollout_topk_ids: Tensor | None,
    rollout_topk_logp: Tensor | None,
    rollout_logp: Tensor,
    *,
    measure: str,
    convention: str = "union",
    temperature: float = 1.0,
    entropy: bool = False,
    chunk: int | None = None,
    overwrite_logits: bool = False,
    fused: bool = False,
    topk_gradient: bool = False,
) -> FromLogits:
    """Log pi(token), and TV or KL of mu and pi as `divergence.topk` (with K = V: `divergence.exact`).

    Args:
        logits: [N, V] of pi.
        tokens: [N] sampled token ids; a negative id (padding) gives arbitrary finite values.
        rollout_topk_ids, rollout_topk_logp: [N, K], see `divergence.topk`; both None for the Binary divergence.
        rollout_logp: [N] log mu(token) at the sampling temperature, like `rollout_topk_logp`.
        measure: "tv" or "kl".
        convention: "union" or "replace_kth".
        temperature: divides the logits; pass the one that mu sampled at.
        entropy: also return the entropy of pi.
        chunk: rows at a time; None chooses by device. It affects results only by rounding.
        overwrite_logits: the backward writes the gradient over the logits instead of allocating [N, V]. Nothing may
        read the logits afterwards; autograd raises if it would have to.
        fused: by Triton's kernels, on a GPU or in Triton's interpreter; `chunk` then has no use.
        topk_gradient: log pi at mu's Top-K is differentiable, too.

    Raises:
        ValueError: shapes that do not fit together, unknown measure or convention, only one of the two Top-K
            tensors, temperature <= 0, chunk < 1, float64 logits for the kernels, or logits to overwrite that are a
            leaf.
    """
    one_of("measure", measure, MEASURES)
    one_of("convention", convention, CONVENTIONS)
    if (rollout_topk_ids is None) != (rollout_topk_logp is None):
        raise ValueError("only one of rollout_topk_ids and rollout_topk_logp is None: pass both, or neither")
    _check(logits, tokens, temperature, chunk, overwrite_logits, fused)
    same_shape(tokens.shape, rollout_logp=rollout_logp)
    if rollout_topk_ids is not None and rollout_topk_logp is not None:
        same_shape((len(tokens), rollout_topk_ids.shape[-1]), rollout_topk_ids=rollout_topk_ids)
        same_shape(rollout_topk_ids.shape, rollout_topk_logp=rollout_topk_logp)
    logp, topk_logp, spread = _LogProbs.apply(
        logits, tokens, rollout_topk_ids, temperature, entropy, chunk, overwrite_logits, fused, topk_gradient
    )
    if rollout_topk_ids is None or rollout_topk_logp is None:
        return FromLogits(logp, binary(logp, rollout_logp, measure), spread)
    divergence = topk_from_logp(
        rollout_topk_ids,
        rollout_topk_logp,
        topk_logp,
        tokens,
        rollout_logp,
        logp,
        measure=measure,
        convention=convention,
    )
    return FromLogits(logp, divergence, spread, topk_logp)


def token_logp(
    logits: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    overwrite_logits: bool = False,
    fused: bool = False,
) -> Tensor:
    """Log pi(token) [N], differentiable in the logits. Arguments and errors as `logp_and_divergence`."""
    _check(logits, tokens, temperature, chunk, overwrite_logits, fused)
    return _LogProbs.apply(logits, tokens, None, temperature, False, chunk, overwrite_logits, fused, False)[0]


class _LogProbs(torch.autograd.Function):
    """log pi at `tokens` [N] (differentiable), at `ids` [N, K] (so if `topk`; None without), the entropy (or None)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        tokens: Tensor,
        ids: Tensor | None,
        temperature: float,
        entropy: bool,
        chunk: int | None,
        overwrite: bool,
        fused: bool,
        topk: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.constants = temperature, chunk, overwrite
        wanted = tokens[:, None] if ids is None else torch.cat([tokens[:, None].to(ids.dtype), ids], 1)
        wanted = wanted.clamp_min(0).long()
        normaliser: list[Tensor] = []
        spread: Tensor | None
        if fused:
            from cppo_lab.maths import logits_kernel

            found, spread, *normaliser = logits_kernel.read(logits, wanted, temperature)
        else:
            found = logits.new_empty(wanted.shape, dtype=_dtype(logits))
            spread = logits.new_empty(len(logits), dtype=_dtype(logits)) if entropy else None
            for rows, scaled, buffer in _chunks(logits, temperature, chunk):
                torch.log_softmax(scaled, -1, out=buffer)
                found[rows] = buffer.gather(-1, wanted[rows])
                if spread is not None:  # entr(p) = -p log p, and 0 for p = 0
                    spread[rows] = torch.special.entr(buffer.exp_(), out=buffer).sum(-1)
        ctx.save_for_backward(logits, wanted if topk else wanted[:, :1].contiguous(), *normaliser)
        topk_logp = None if ids is None else found[:, 1:]
        spread = spread if entropy else None
        constant = (spread,) if topk else (topk_logp, spread)
        ctx.mark_non_differentiable(*(t for t in constant if t is not None))
        # A copy: a view of `found` would tie the differentiable output to the other one.
        return found[:, 0].clone(), topk_logp, spread

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logp: Tensor, grad_topk: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        logits, index, *normaliser = ctx.saved_tensors
        temperature, chunk, overwrite = ctx.constants
        if not ctx.needs_input_grad[0]:
            return (None,) * 9
        # detach: the gradient must not carry the logits' own graph. Writing to it counts as a change of the
        # logits, so that autograd refuses whatever else needs their values.
        grad = logits.detach() if overwrite else torch.empty_like(logits)
        factor = (grad_logp.to(_dtype(logits)) / temperature)[:, None]
        if index.shape[1] > 1 and grad_topk is not None:
            factor = torch.cat([factor, grad_topk.to(factor.dtype) / temperature], 1)
        if normaliser:
            from cppo_lab.maths import logits_kernel

            logits_kernel.write_gradient(logits, index, factor.contiguous(), grad, temperature, *normaliser)
            return grad, *(None,) * 8
        total = factor.sum(1, keepdim=True)
        for rows, scaled, buffer in _chunks(logits, temperature, chunk):
            torch.softmax(scaled, -1, out=buffer)
            buffer.mul_(-total[rows]).scatter_add_(-1, index[rows], factor[rows])
            grad[rows] = buffer
        return grad, *(None,) * 8


def _chunks(logits: Tensor, temperature: float, chunk: int | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, their logits / temperature in the computing dtype, and a buffer for a result of their shape."""
    logits = logits.detach()
    rows = chunk or _default_chunk(logits)
    buffer = logits.new_empty((min(rows, len(logits)), logits.shape[1]), dtype=_dtype(logits))
    direct = logits.dtype == buffer.dtype and temperature == 1
    scaled = None if direct else torch.empty_like(buffer)
    for start in range(0, len(logits), rows):
        part = logits[start : start + rows]
        if scaled is not None:
            wide = scaled[: len(part)].copy_(part)
            part = wide if temperature == 1 else wide.div_(temperature)
        yield slice(start, start + len(part)), part, buffer[: len(part)]


def _default_chunk(logits: Tensor) -> int:
    elements = _CPU_ELEMENTS if logits.device.type == "cpu" else _OTHER_ELEMENTS
    return max(1, elements // max(1, logits.shape[1]))


def _dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _check(
    logits: Tensor,
    tokens: Tensor,
    temperature: float,
    chunk: int | None,
    overwrite_logits: bool,
    fused: bool,
) -> None:
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(
            f"logits has shape {list(logits.shape)} and dtype {logits.dtype}, expected floating [N, V]: "
            "flatten the tokens of all responses"
        )
    same_shape(logits.shape[:1], tokens=tokens)
    positive("temperature", temperature)
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk!r} must be at least 1 row: pass None for the default")
    if fused and logits.dtype == torch.float64:
        raise ValueError("fused=True with float64 logits: the kernels compute in float32, pass fused=False")
    if overwrite_logits and logits.requires_grad and logits.is_leaf:
        raise ValueError(
            "overwrite_logits=True with logits that are a leaf: their values and their .grad would be one "
            "tensor, pass the output of a layer or overwrite_logits=False"
        )
