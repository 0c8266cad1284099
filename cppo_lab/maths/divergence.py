"""Divergences D_t between the rollout policy mu and the current policy pi at one state.

    TV(mu, pi) = 1/2 sum_v |mu(v) - pi(v)|,    KL(mu || pi) = sum_v mu(v) log(mu(v) / pi(v)),    0 log 0 = 0

`exact` sums over the vocabulary; `topk` and `binary` over a partition of it, so that by the data-processing
inequality binary <= topk <= exact (with convention "union"). `k2` and `k3` need sampled log-probs only.

Shapes: [...] = any leading dimensions (usually [B, T]), V = vocabulary, K = tokens kept of mu. float32 or
float64 in, same dtype out; narrower inputs are computed in float32. Nothing here carries a gradient.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from cppo_lab.maths.tokens import compute_dtype, one_of, same_shape

MEASURES = ("tv", "kl")
CONVENTIONS = ("union", "replace_kth")
OTHER_FLOOR = 1e-12  # lower bound of the mass of the cell "other", under mu and pi


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
def topk(
    rollout_topk_ids: Tensor,
    rollout_topk_logp: Tensor,
    pi_logits_or_logp: Tensor,
    tokens: Tensor,
    rollout_logp: Tensor,
    *,
    measure: str,
    convention: str = "union",
) -> Tensor:
    """TV or KL(mu || pi) on the partition {mu's K most likely tokens} + {sampled token} + other.

    "union" adds the sampled token as a cell of its own when it is not among the K; "replace_kth" lets it take
    the place of the least likely of the K instead. The mass of "other" is 1 - (the rest), at least 1e-12.

    Args:
        rollout_topk_ids: [..., K] integer ids of mu's K most likely tokens, all different, in any order; a
            negative id is an empty place (fewer than K known, or padding).
        rollout_topk_logp: [..., K] their log-probabilities under mu.
        pi_logits_or_logp: [..., V] logits or log-probabilities of pi; normalised here.
        tokens: [...] sampled token ids; a negative id (padding) gives an arbitrary finite value.
        rollout_logp: [...] log mu(token).
        measure: "tv" or "kl".
        convention: "union" or "replace_kth".

    Returns:
        [...] divergence, >= 0.

    Raises:
        ValueError: unknown measure or convention, or shapes that do not fit together.
    """
    _check_partition(rollout_topk_ids, rollout_topk_logp, tokens, rollout_logp, measure, convention)
    same_shape((*tokens.shape, pi_logits_or_logp.shape[-1]), pi_logits_or_logp=pi_logits_or_logp)
    pi = compute_dtype(pi_logits_or_logp)
    normaliser = pi.logsumexp(-1, keepdim=True)  # only K + 1 of the V log-probabilities are needed
    return topk_from_logp(
        rollout_topk_ids,
        rollout_topk_logp,
        pi.gather(-1, rollout_topk_ids.clamp_min(0)) - normaliser,
        tokens,
        rollout_logp,
        (pi.gather(-1, tokens.unsqueeze(-1).clamp_min(0)) - normaliser).squeeze(-1),
        measure=measure,
        convention=convention,
    )


@torch.no_grad()
def topk_from_logp(
    rollout_topk_ids: Tensor,
    rollout_topk_logp: Tensor,
    pi_topk_logp: Tensor,
    tokens: Tensor,
    rollout_logp: Tensor,
    logp: Tensor,
    *,
    measure: str,
    convention: str = "union",
) -> Tensor:
    """`topk` where pi's log-probabilities at the K ids and at the sampled token are known already.

    Args:
        pi_topk_logp: [..., K] log pi of `rollout_topk_ids`; ignored at an empty place.
        logp: [...] log pi(token).
        (the others as in `topk`)

    Raises:
        ValueError: as `topk`.
    """
    _check_partition(rollout_topk_ids, rollout_topk_logp, tokens, rollout_logp, measure, convention)
    mu_cells, pi_cells, _ = _cells(
        rollout_topk_ids, rollout_topk_logp, pi_topk_logp, tokens, rollout_logp, logp, convention
    )
    return _measure(mu_cells, pi_cells, measure)


@torch.no_grad()
def drift(
    rollout_topk_ids: Tensor,
    rollout_topk_logp: Tensor,
    pi_topk_logp: Tensor,
    tokens: Tensor,
    rollout_logp: Tensor,
    logp: Tensor,
    *,
    measure: str,
    convention: str = "union",
) -> Tensor:
    """First-order change of `topk_from_logp` under a step of the softmax's logits along grad log pi(token), [...].

    On the partition's cells c, with y the sampled token's, the step is dx_c = [c = y] - pi_c, and

        d log pi_c = dx_c - sum_j pi_j dx_j = [c = y] - pi_c - pi_y + sum_j pi_j^2
        TV:   1/2 sum_c sign(pi_c - mu_c) pi_c d log pi_c
        KL:   - sum_c mu_c d log pi_c = (pi_y - mu_y) + sum_c pi_c (mu_c - pi_c)

    "Other" is one cell: the tail moves as one token would. Arguments and errors as `topk_from_logp`.
    """
    _check_partition(rollout_topk_ids, rollout_topk_logp, tokens, rollout_logp, measure, convention)
    mu_cells, pi_cells, sampled = _cells(
        rollout_topk_ids, rollout_topk_logp, pi_topk_logp, tokens, rollout_logp, logp, convention
    )
    mu, pi = mu_cells.exp(), pi_cells.exp()
    step = sampled.to(pi.dtype) - pi
    change = step - (pi * step).sum(-1, keepdim=True)
    return ((pi - mu).sign() * pi / 2 if measure == "tv" else -mu).mul(change).sum(-1)


@torch.no_grad()
def topk_entropy(topk_logp: Tensor) -> Tensor:
    """Entropy of the partition {each of the K most likely tokens} + other, [..., K] -> [...]; at most that of mu.

    `topk_logp` is -inf at an empty place.
    """
    return torch.special.entr(_with_other(compute_dtype(topk_logp)).exp()).sum(-1)


def _cells(
    ids: Tensor,
    topk_logp: Tensor,
    pi_topk_logp: Tensor,
    tokens: Tensor,
    rollout_logp: Tensor,
    logp: Tensor,
    convention: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The partition of `topk`, [..., K + 2]: log mu and log pi of its cells, and which holds the sampled token."""
    same_shape(ids.shape, pi_topk_logp=pi_topk_logp)
    same_shape(tokens.shape, logp=logp)
    pi_cells, pi_sampled = compute_dtype(pi_topk_logp), compute_dtype(logp).unsqueeze(-1)
    empty = ids < 0
    mu_cells = topk_logp.to(pi_cells.dtype).masked_fill(empty, -torch.inf)
    pi_cells = pi_cells.masked_fill(empty, -torch.inf)
    sampled = ids == tokens.unsqueeze(-1).clamp_min(0)
    absent = ~sampled.any(-1, keepdim=True)
    if convention == "replace_kth":
        kth = torch.zeros_like(empty).scatter(
            -1, mu_cells.masked_fill(empty, torch.inf).argmin(-1, keepdim=True), True
        )
        dropped = kth & absent
        mu_cells = mu_cells.masked_fill(dropped, -torch.inf)
        pi_cells = pi_cells.masked_fill(dropped, -torch.inf)
    # An absent token adds a cell; a present one adds an empty cell, which contributes nothing.
    extra_mu = rollout_logp.to(pi_cells.dtype).unsqueeze(-1).where(absent, -torch.inf)
    extra_pi = pi_sampled.to(pi_cells.dtype).where(absent, -torch.inf)
    mu_cells = torch.cat([mu_cells, extra_mu], -1)
    pi_cells = torch.cat([pi_cells, extra_pi], -1)
    sampled = torch.cat([sampled, absent, torch.zeros_like(absent)], -1)
    return _with_other(mu_cells), _with_other(pi_cells), sampled


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
    same_shape(logp.shape, rollout_logp=rollout_logp)
    return 0.5 * _log_ratio(logp, rollout_logp).square()


@torch.no_grad()
def k3(logp: Tensor, rollout_logp: Tensor) -> Tensor:
    """Sample estimate rho - 1 - log(rho) of KL(mu || pi), [...]; unbiased under mu and >= 0."""
    same_shape(logp.shape, rollout_logp=rollout_logp)
    log_ratio = _log_ratio(logp, rollout_logp)
    return (torch.expm1(log_ratio) - log_ratio).clamp_min(0)  # expm1: rho - 1 loses all digits near rho = 1


# Estimates of KL(mu || pi) from the sampled token, by `measure`.
ESTIMATES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"k2": k2, "k3": k3})


def _check_partition(
    rollout_topk_ids: Tensor,
    rollout_topk_logp: Tensor,
    tokens: Tensor,
    rollout_logp: Tensor,
    measure: str,
    convention: str,
) -> None:
    one_of("measure", measure, MEASURES)
    one_of("convention", convention, CONVENTIONS)
    same_shape(rollout_topk_ids.shape, rollout_topk_logp=rollout_topk_logp)
    same_shape(rollout_topk_ids.shape[:-1], tokens=tokens, rollout_logp=rollout_logp)


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
    return compute_dtype(logp) - compute_dtype(rollout_logp)
