"""Divergences D_t between the rollout policy mu and the current policy pi at a state.

    TV(mu, pi) = 1/2 sum_v |mu(v) - pi(v)|,    KL(mu || pi) = sum_v mu(v) log(mu(v) / pi(v)),    0 log 0 = 0

`exact` sums over the vocabulary; `topk` and `binary` over a partition of it, so that by the data-processing
inequality binary <= topk <= exact (with convention "union"). `k2` and `k3` need sampled log-probs only.

Shapes: [...] = any leading dimensions (usually [B, T]), V = vocabulary, K = tokens kept of mu. float32 or
float64 in, same dtype out; narrower inputs are computed in float32. No divergence carries a gradient.

`logp_and_divergence` computes them straight from logits, with log pi(y), which has a gradient.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cppo_lab.maths.tokens import compute_dtype, one_of, positive, same_shape

MEASURES = ("tv", "kl")
CONVENTIONS = ("union", "replace_kth")
OTHER_FLOOR = 1e-12  # lower bound of the mass of the cell "other", under mu and pi


class Recorded(NamedTuple):
    """What the rollout policy recorded for the sampled tokens."""

    tokens: Tensor  # [...] ids; a negative id (padding) gives arbitrary finite values
    logp: Tensor  # [...] log mu(y) at the sampling temperature
    # [..., K] integer ids of its K most likely tokens, all different, in any order; a negative id is an empty place
    # (fewer than K known, or padding). K = 0: none are known.
    topk_ids: Tensor
    topk_logp: Tensor  # [..., K] log mu of them


@torch.no_grad()
def exact(mu_logp: Tensor, pi_logp: Tensor, measure: str = "tv") -> Tensor:
    """TV or KL(mu || pi) over the whole vocabulary.

    Args:
        mu_logp: [..., V] log-probabilities of mu; -inf where mu is 0.
        pi_logp: [..., V] log-probabilities of pi.
        measure: "tv" or "kl".

    Returns:
        [...] divergence, >= 0.

    Raises:
        ValueError: unknown measure, or shapes that differ.
    """
    one_of("measure", measure, MEASURES)
    same_shape(mu_logp.shape, pi_logp=pi_logp)
    return _measure(compute_dtype(mu_logp), compute_dtype(pi_logp), measure)


@torch.no_grad()
def topk(mu: Recorded, pi_logits_or_logp: Tensor, *, measure: str, convention: str = "union") -> Tensor:
    """TV or KL(mu || pi) on the partition {mu's K most likely tokens} + {sampled token} + other.

    "union" adds the sampled token as a further cell when it is not among the K; "replace_kth" lets it take
    the place of the least likely of the K instead. The mass of "other" is 1 - (the rest), at least 1e-12.

    Args:
        mu: of the sampled tokens.
        pi_logits_or_logp: [..., V] logits or log-probabilities of pi; normalised here.
        measure: "tv" or "kl".
        convention: "union" or "replace_kth".

    Returns:
        [...] divergence, >= 0.

    Raises:
        ValueError: unknown measure or convention, or shapes that do not fit together.
    """
    _check_partition(mu, measure, convention)
    same_shape((*mu.tokens.shape, pi_logits_or_logp.shape[-1]), pi_logits_or_logp=pi_logits_or_logp)
    pi = compute_dtype(pi_logits_or_logp)
    normaliser = pi.logsumexp(-1, keepdim=True)  # only K + 1 of the V log-probabilities are needed
    wanted = torch.cat([mu.topk_ids, mu.tokens.unsqueeze(-1)], -1).clamp_min(0)
    logp = pi.gather(-1, wanted) - normaliser
    return topk_from_logp(mu, logp[..., :-1], logp[..., -1], measure=measure, convention=convention)


@torch.no_grad()
def topk_from_logp(
    mu: Recorded, pi_topk_logp: Tensor, logp: Tensor, *, measure: str, convention: str = "union"
) -> Tensor:
    """`topk` where pi's log-probabilities at the K ids and at the sampled token are known already.

    Args:
        pi_topk_logp: [..., K] log pi of `mu.topk_ids`; ignored at an empty place.
        logp: [...] log pi(token).
        (the others as in `topk`)

    Raises:
        ValueError: as `topk`.
    """
    cells, _ = _cells(mu, pi_topk_logp, logp, measure, convention)
    return _measure(cells[0], cells[1], measure)


@torch.no_grad()
def drift(
    mu: Recorded, pi_topk_logp: Tensor, logp: Tensor, *, measure: str, convention: str = "union"
) -> Tensor:
    """First-order change of `topk_from_logp` under a step of the softmax's logits along grad log pi(token), [...].

    On the partition's cells c, with y the sampled token's, the step is dx_c = [c = y] - pi_c, and

        d log pi_c = dx_c - sum_j pi_j dx_j = [c = y] - pi_c - pi_y + sum_j pi_j^2
        TV:   1/2 sum_c sign(pi_c - mu_c) pi_c d log pi_c
        KL:   - sum_c mu_c d log pi_c = (pi_y - mu_y) + sum_c pi_c (mu_c - pi_c)

    "Other" is one cell: the tail moves as a token would. Arguments and errors as `topk_from_logp`.
    """
    cells, sampled = _cells(mu, pi_topk_logp, logp, measure, convention)
    of_mu, pi = cells.exp()
    absent = ~sampled.any(-1, keepdim=True)
    step = torch.cat([sampled, absent, torch.zeros_like(absent)], -1).to(pi.dtype) - pi
    change = step - (pi * step).sum(-1, keepdim=True)
    return ((pi - of_mu).sign() * pi / 2 if measure == "tv" else -of_mu).mul(change).sum(-1)


@torch.no_grad()
def topk_entropy(topk_logp: Tensor) -> Tensor:
    """Entropy of the partition {each of the K most likely tokens} + other, [..., K] -> [...]; at most that of mu.

    `topk_logp` is -inf at an empty place.
    """
    return torch.special.entr(_with_other(compute_dtype(topk_logp)).exp()).sum(-1)


def _cells(
    mu: Recorded, pi_topk_logp: Tensor, logp: Tensor, measure: str, convention: str
) -> tuple[Tensor, Tensor]:
    """The partition of `topk`, once its arguments are checked: log mu and log pi of its cells [2, ..., K + 2], and
    which of the K is the sampled token [..., K].
    """
    _check_partition(mu, measure, convention)
    same_shape(mu.topk_ids.shape, pi_topk_logp=pi_topk_logp)
    same_shape(mu.tokens.shape, logp=logp)
    dtype = compute_dtype(pi_topk_logp).dtype
    policies = (mu.topk_logp, mu.logp), (pi_topk_logp, logp)
    cells = torch.stack(
        [torch.cat([top.to(dtype), last.to(dtype).unsqueeze(-1)], -1) for top, last in policies]
    )
    empty = mu.topk_ids < 0
    sampled = mu.topk_ids == mu.tokens.unsqueeze(-1).clamp_min(0)
    present = sampled.any(-1, keepdim=True)
    if convention == "replace_kth":
        least = cells[0, ..., :-1].masked_fill(empty, torch.inf).argmin(-1, keepdim=True)
        empty = empty | (torch.zeros_like(empty).scatter(-1, least, True) & ~present)
    # An absent token adds a cell; a present token adds an empty cell, which contributes nothing.
    return _with_other(cells.masked_fill_(torch.cat([empty, present], -1), -torch.inf)), sampled


@torch.no_grad()
def binary(logp: Tensor, rollout_logp: Tensor, measure: str) -> Tensor:
    """TV or KL(mu || pi) on the partition {sampled token, rest}: |mu(y) - pi(y)|, or the Bernoulli KL.

    Args:
        logp: [...] log pi(y).
        rollout_logp: [...] log mu(y).
        measure: "tv" or "kl".

    Raises:
        ValueError: unknown measure, or shapes that differ.
    """
    one_of("measure", measure, MEASURES)
    same_shape(logp.shape, rollout_logp=rollout_logp)
    pi, mu = compute_dtype(logp), compute_dtype(rollout_logp).to(compute_dtype(logp).dtype)
    return _measure(_bernoulli(mu), _bernoulli(pi), measure)


@torch.no_grad()
def k2(logp: Tensor, rollout_logp: Tensor) -> Tensor:
    """Sample estimate 1/2 log(rho)^2 of KL, [...]; for TRM where only sampled log-probs exist."""
    return 0.5 * _log_ratio(logp, rollout_logp).square()


@torch.no_grad()
def k3(logp: Tensor, rollout_logp: Tensor) -> Tensor:
    """Sample estimate rho - 1 - log(rho) of KL(mu || pi), [...]; unbiased under mu and >= 0."""
    log_ratio = _log_ratio(logp, rollout_logp)
    # As in `_measure`: large and finite where rho overflows, so that any threshold rejects it and sums stay defined.
    log_ratio = log_ratio.clamp_max(math.log(torch.finfo(log_ratio.dtype).max) / 2)
    return (torch.expm1(log_ratio) - log_ratio).clamp_min(0)  # expm1: rho - 1 loses all digits near rho = 1


# Estimates of KL(mu || pi) from the sampled token, by `measure`.
ESTIMATES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"k2": k2, "k3": k3})


def _check_partition(mu: Recorded, measure: str, convention: str) -> None:
    one_of("measure", measure, MEASURES)
    one_of("convention", convention, CONVENTIONS)
    same_shape(mu.topk_ids.shape, topk_logp=mu.topk_logp)
    same_shape(mu.topk_ids.shape[:-1], tokens=mu.tokens, logp=mu.logp)
    if convention == "replace_kth" and mu.topk_ids.shape[-1] == 0:
        raise ValueError(
            "topk_ids holds no token (K = 0), and convention='replace_kth' replaces one: pass 'union' or K >= 1"
        )


def _measure(mu_logp: Tensor, pi_logp: Tensor, measure: str) -> Tensor:
    """TV or KL over the last dimension; finite for zeros of mu (0 log 0 = 0) and of pi."""
    mu = mu_logp.exp()
    if measure == "tv":
        return 0.5 * (mu - pi_logp.exp()).abs().sum(-1)
    # A zero of pi under a positive mu would make KL infinite; flooring log pi at the log of the smallest
    # normal number gives a large finite value: any threshold rejects it, and sums stay defined.
    least = math.log(torch.finfo(mu.dtype).tiny)
    log_ratio = mu_logp.clamp_min(least) - pi_logp.clamp_min(least)
    return (mu * log_ratio).sum(-1).clamp_min(0)


def _with_other(cells: Tensor) -> Tensor:
    """[..., C] log-masses of disjoint cells -> [..., C + 1] with the log of the remaining mass."""
    other = (1 - cells.exp().sum(-1, keepdim=True)).clamp_min(OTHER_FLOOR)
    return torch.cat([cells, other.log()], -1)


def _bernoulli(logp: Tensor) -> Tensor:
    """[...] log p -> [..., 2] log of (p, 1 - p), exact for p near 1 (-expm1 instead of 1 - exp)."""
    rest = (-torch.expm1(logp.clamp_max(0))).clamp_min(OTHER_FLOOR)
    return torch.stack([logp, rest.log()], -1)


def _log_ratio(logp: Tensor, rollout_logp: Tensor) -> Tensor:
    same_shape(logp.shape, rollout_logp=rollout_logp)
    return compute_dtype(logp) - compute_dtype(rollout_logp)


# The sampled token's log-probability, and the divergence at its state, straight from pi's logits.
#
#     log pi(v) = x_v - log sum_u exp(x_u),    x = logits / temperature
#     d log pi(y) / d logits_v = ([v = y] - pi(v)) / temperature
#
# A vocabulary of 151936 makes [N, V] the largest tensor of a training step. Here each row is normalised once,
# and the log-probabilities at y and at mu's K most likely tokens are read off together. Rows are taken a chunk
# at a time into a reused buffer: the forward makes no [N, V] tensor, the backward only the gradient itself. With
# `fused`, the kernels of `logits_kernel` do the same without the buffer; this module's code is their reference.
#
# Shapes: N = tokens (flatten [B, T] first), V = vocabulary, K = tokens kept of mu. float64 logits are computed
# in float64, all others in float32, chunk by chunk.


# Default number of elements per chunk: on a CPU the buffer should fit into the cache, an accelerator prefers long
# kernels.
_CPU_ELEMENTS, _OTHER_ELEMENTS = 2**20, 2**26


class FromLogits(NamedTuple):
    """Log pi(y) [N] with gradient; D [N] and the entropy of pi [N] (None unless asked for) without; log pi at mu's
    Top-K [N, K], with gradient if asked for.
    """

    logp: Tensor
    divergence: Tensor
    entropy: Tensor | None
    topk_logp: Tensor


def logp_and_divergence(
    logits: Tensor,
    mu: Recorded,
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
        mu: of N tokens; without a Top-K (K = 0) the divergence is `binary`.
        measure: "tv" or "kl".
        convention: "union" or "replace_kth".
        temperature: divides the logits; pass the temperature of mu's sampling.
        entropy: also return the entropy of pi.
        chunk: rows at a time; None chooses by device. It affects results only by rounding.
        overwrite_logits: the backward writes the gradient over the logits instead of allocating [N, V]. Nothing may
        read the logits afterwards; autograd raises if it would have to.
        fused: by Triton's kernels, on a GPU or in Triton's interpreter; `chunk` then has no use.
        topk_gradient: log pi at mu's Top-K is differentiable, too.

    Raises:
        ValueError: shapes that do not fit together, unknown measure or convention, temperature <= 0, chunk < 1, float64
            logits for the kernels, or logits to overwrite that are a leaf.
    """
    one_of("measure", measure, MEASURES)
    one_of("convention", convention, CONVENTIONS)
    if logits.ndim != 2 or not logits.is_floating_point():
        raise ValueError(
            f"logits has shape {list(logits.shape)} and dtype {logits.dtype}, expected floating [N, V]: "
            "flatten the tokens of all responses"
        )
    same_shape(logits.shape[:1], tokens=mu.tokens)
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
    k = mu.topk_ids.shape[-1]
    same_shape(mu.tokens.shape, logp=mu.logp)
    same_shape((len(logits), k), topk_ids=mu.topk_ids, topk_logp=mu.topk_logp)
    wanted = torch.cat([mu.tokens[:, None], mu.topk_ids], 1).clamp_min(0).long()
    logp, topk_logp, entropies = _LogProbs.apply(
        logits, wanted, temperature, entropy, chunk, overwrite_logits, fused, topk_gradient
    )
    if k:
        divergence = topk_from_logp(mu, topk_logp, logp, measure=measure, convention=convention)
    else:
        divergence = binary(logp, mu.logp, measure)
    return FromLogits(logp, divergence, entropies, topk_logp)


class _LogProbs(torch.autograd.Function):
    """log pi at the ids `wanted` [N, 1 + K]: the first [N] (differentiable), the others [N, K] (so if `topk`); the
    entropy (or None).
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        wanted: Tensor,
        temperature: float,
        entropy: bool,
        chunk: int | None,
        overwrite: bool,
        fused: bool,
        topk: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        ctx.constants = temperature, chunk, overwrite
        normaliser: list[Tensor] = []
        entropies: Tensor | None
        if fused:
            from cppo_lab.maths import logits_kernel

            found, entropies, *normaliser = logits_kernel.read(logits, wanted, temperature)
        else:
            found = logits.new_empty(wanted.shape, dtype=_dtype(logits))
            entropies = logits.new_empty(len(logits), dtype=_dtype(logits)) if entropy else None
            for rows, scaled, buffer in _chunks(logits, temperature, chunk):
                torch.log_softmax(scaled, -1, out=buffer)
                found[rows] = buffer.gather(-1, wanted[rows])
                if entropies is not None:  # entr(p) = -p log p, and 0 for p = 0
                    entropies[rows] = torch.special.entr(buffer.exp_(), out=buffer).sum(-1)
        ctx.save_for_backward(logits, wanted if topk else wanted[:, :1].contiguous(), *normaliser)
        topk_logp = found[:, 1:]
        entropies = entropies if entropy else None
        constant = (entropies,) if topk else (topk_logp, entropies)
        ctx.mark_non_differentiable(*(t for t in constant if t is not None))
        # A copy: a view of `found` would tie the differentiable output to the other.
        return found[:, 0].clone(), topk_logp, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logp: Tensor, grad_topk: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        logits, index, *normaliser = ctx.saved_tensors
        temperature, chunk, overwrite = ctx.constants
        # detach: the gradient must not carry the logits' own graph. Writing to it counts as a change of the
        # logits, so that autograd refuses whatever else needs their values.
        grad = logits.detach() if overwrite else torch.empty_like(logits)
        factor = (grad_logp.to(_dtype(logits)) / temperature)[:, None]
        if index.shape[1] > 1 and grad_topk is not None:
            factor = torch.cat([factor, grad_topk.to(factor.dtype) / temperature], 1)
        if normaliser:
            from cppo_lab.maths import logits_kernel

            logits_kernel.write_gradient(logits, index, factor.contiguous(), grad, temperature, *normaliser)
            return grad, *(None,) * 7
        total = factor.sum(1, keepdim=True)
        for rows, scaled, buffer in _chunks(logits, temperature, chunk):
            torch.softmax(scaled, -1, out=buffer)
            buffer.mul_(-total[rows]).scatter_add_(-1, index[rows], factor[rows])
            grad[rows] = buffer
        return grad, *(None,) * 7


def _chunks(logits: Tensor, temperature: float, chunk: int | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, their logits / temperature in the computing dtype, and a buffer for a result of their shape."""
    logits = logits.detach()
    elements = _CPU_ELEMENTS if logits.is_cpu else _OTHER_ELEMENTS
    rows = chunk or max(1, elements // max(1, logits.shape[1]))
    buffer = logits.new_empty((min(rows, len(logits)), logits.shape[1]), dtype=_dtype(logits))
    direct = logits.dtype == buffer.dtype and temperature == 1
    scaled = None if direct else torch.empty_like(buffer)
    for start in range(0, len(logits), rows):
        part = logits[start : start + rows]
        if scaled is not None:
            wide = scaled[: len(part)].copy_(part)
            part = wide if temperature == 1 else wide.div_(temperature)
        yield slice(start, start + len(part)), part, buffer[: len(part)]


def _dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
