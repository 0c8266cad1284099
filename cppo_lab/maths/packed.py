"""The rules on packed responses: no padding, one row of N tokens and the offsets of the responses.

Shapes: packed tensors are [N], N = T_1 + ... + T_B; `cu_lengths` [B + 1] holds 0, T_1, T_1 + T_2, ..., N as flash
attention takes it; values per response are [B]. Response i is `values[cu_lengths[i] : cu_lengths[i + 1]]`.

The maths is implemented once, on [b, t]. Here responses of similar length are grouped into buckets; each bucket is
padded, passed to the padded function, and packed again. A bucket takes responses, longest first, as long as at least
half of its places hold a token. So all buckets together have at most 2 N places, however unequal the lengths are. There
are at most log2(longest) + 2 buckets, since a bucket ends at a response shorter than half its width.

Running sums over the packed row are not used: a response's sum as the difference of two sums over all N tokens would
lose, in float32, the precision that the single running sum of w (D - delta_b) preserves (`weights.prefix_excess`), and
each rule would have to be implemented twice.

Cost: a second copy of every argument (at most 2 N places) during the call, and one call of the rule per bucket. The
host reads `cu_lengths` once per call. Divergences accept [N] directly; so does `relative_logprob_error`, with valid =
1.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cppo_lab.maths import aggregation
from cppo_lab.maths.metrics import merge
from cppo_lab.maths.rules import get_rule
from cppo_lab.maths.tokens import RuleOutput, finite, same_shape, token_mask
from cppo_lab.rules import MINIBATCH, RULES


class Bucket(NamedTuple):
    """A group of responses that are padded together.

    responses: [b] their numbers, longest first.
    valid: [b, t] bool.
    tokens: [n] index in the packed row of each valid place, in row-major order.
    places: [n] index in the flattened [b t] of the same.
    """

    responses: Tensor
    valid: Tensor
    tokens: Tensor
    places: Tensor

    def padded(self, values: Tensor) -> Tensor:
        """Packed [N] -> [b, t], zero at padding; differentiable."""
        own = values.index_select(0, self.tokens)
        return values.new_zeros(self.valid.numel()).index_copy(0, self.places, own).view(self.valid.shape)

    def packed(self, values: Tensor) -> Tensor:
        """[b, t] -> [n], in the order of `tokens`; differentiable."""
        return values.reshape(-1).index_select(0, self.places)


def rule(
    name: str | Callable[..., RuleOutput],
    logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    cu_lengths: Tensor,
    divergence: Tensor | None = None,
    **constants: Any,
) -> RuleOutput:
    """`get_rule(name)` on packed tokens [N]; objective and keep are [N], statistics those of the whole batch.

    Args:
        name: a built-in rule, or the function of any rule that decides response by response. A rule that needs the
        whole minibatch must be given by name, and takes memory for B times the longest response. logp, rollout_logp,
        advantages, divergence: [N]; `expand` turns advantages per response into these. cu_lengths: [B + 1] integers.
        constants: the rule's own; `permutation` is [N] here, each response's entries permuting 0..length - 1.

    Raises:
        ValueError: shapes other than [N], `cu_lengths` that do not fit, or as the rule raises.
    """
    function = get_rule(name) if isinstance(name, str) else name
    if isinstance(name, str) and MINIBATCH in RULES[name].needs:
        lengths = _lengths(cu_lengths, len(logp))
        groups = [_bucket(range(len(lengths)), lengths, cu_lengths)]
    else:
        groups = buckets(cu_lengths, len(logp))
    permutation = constants.pop("permutation", None)
    given = {"logp": logp, "rollout_logp": rollout_logp, "advantages": advantages}
    given |= {} if divergence is None else {"divergence": divergence}
    per_token = given if permutation is None else given | {"permutation": permutation}
    same_shape((len(logp),), **per_token)
    finite(
        torch.ones_like(logp, dtype=torch.bool), **given
    )  # checked here, so that the message has the packed index
    outputs = []
    for bucket in groups:
        padded = {key: bucket.padded(values) for key, values in per_token.items()}
        outputs.append(function(**padded, valid=bucket.valid, **constants))
    stats = merge([output.stats for output in outputs])
    objective = _together(groups, [output.objective for output in outputs])
    keep = _together(groups, [output.keep for output in outputs])
    named = outputs[0].tests if outputs else ()
    tests = {name: _together(groups, [output.tests[name] for output in outputs]) for name in named}
    return RuleOutput(objective, keep, stats, tests)


def aggregate(
    values: Tensor,
    cu_lengths: Tensor,
    mode: str,
    *,
    denominator: float | Tensor | None = None,
    horizon: int | None = None,
) -> Tensor:
    """`aggregation.aggregate` of packed values [N]; horizon None takes the longest response.

    Raises:
        ValueError: as `aggregation.aggregate`, or `cu_lengths` that do not fit.
    """
    groups = buckets(cu_lengths, len(values))
    if denominator is None:
        count = len(values) if mode == "token-mean" else int((cu_lengths.diff() > 0).sum())
        denominator = max(count, 1)
    if horizon is None and mode == "seq-mean-token-sum-norm":
        horizon = max(groups[0].valid.shape[1], 1)  # the first bucket has the longest response
    parts = [
        aggregation.aggregate(
            bucket.padded(values), bucket.valid, mode, denominator=denominator, horizon=horizon
        )
        for bucket in groups
    ]
    return torch.stack(parts).sum()


def per_token(function: Callable[..., Tensor], cu_lengths: Tensor, *values: Tensor) -> Tensor:
    """[N] from a padded function: `function(valid, *padded)` takes and returns [b, t] (weights, prefix sums).

    Raises:
        ValueError: values that are not [N], or `cu_lengths` that do not fit.
    """
    groups = buckets(cu_lengths, len(values[0]) if values else None)
    return _together(groups, _each(function, groups, values))


def per_response(function: Callable[..., Tensor], cu_lengths: Tensor, *values: Tensor) -> Tensor:
    """[B] from a padded function: `function(valid, *padded)` takes [b, t], returns [b] (budgets, means).

    Raises:
        ValueError: values that are not [N], or `cu_lengths` that do not fit.
    """
    groups = buckets(cu_lengths, len(values[0]) if values else None)
    results = torch.cat(_each(function, groups, values))
    return torch.empty_like(results).index_copy(0, torch.cat([g.responses for g in groups]), results)


def expand(values: Tensor, cu_lengths: Tensor) -> Tensor:
    """Repeat a value per response (such as the advantage) for each of its tokens, [B] -> [N]."""
    lengths = _lengths(cu_lengths, None)
    same_shape((len(lengths),), values=values)
    return values.repeat_interleave(torch.tensor(lengths, device=values.device))


def pack(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Padded [B, T] -> packed [N] and int32 `cu_lengths` [B + 1]; differentiable."""
    mask = token_mask(valid)
    same_shape(mask.shape, values=values)
    ends = mask.sum(1).cumsum(0, dtype=torch.int32)
    return values[mask], torch.nn.functional.pad(ends, (1, 0))


def unpack(values: Tensor, cu_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Packed [N] -> [B, T], zero at padding, and valid [B, T]; differentiable.

    For small batches: it takes memory for B times the longest response, whatever N is. The rules above do not use it.
    """
    lengths = _lengths(cu_lengths, len(values))
    whole = _bucket(range(len(lengths)), lengths, cu_lengths.to(values.device))
    return whole.padded(values), whole.valid


def buckets(cu_lengths: Tensor, tokens: int | None = None) -> list[Bucket]:
    """The buckets of a batch, longest responses first; one or more, every response in exactly one.

    Raises:
        ValueError: `cu_lengths` that are not integers [B + 1] rising from 0 to `tokens`.
    """
    lengths = _lengths(cu_lengths, tokens)
    members: list[list[int]] = [[]]
    width = held = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[index]
        if members[-1] and width * (len(members[-1]) + 1) > 2 * (held + length):
            members.append([])
            held = 0
        if not members[-1]:
            width = length
        members[-1].append(index)
        held += length
    return [_bucket(group, lengths, cu_lengths) for group in members]


def _bucket(group: list[int] | range, lengths: list[int], cu_lengths: Tensor) -> Bucket:
    device = cu_lengths.device
    responses = torch.tensor(list(group), dtype=torch.int64, device=device)
    own = cu_lengths.diff()[responses].long()
    place = torch.arange(max((lengths[index] for index in group), default=0), device=device)
    valid = place < own[:, None]
    return Bucket(
        responses,
        valid,
        (cu_lengths[responses].long()[:, None] + place)[valid],
        valid.view(-1).nonzero()[:, 0],
    )


def _each(function: Callable[..., Tensor], groups: list[Bucket], values: tuple[Tensor, ...]) -> list[Tensor]:
    for position, value in enumerate(values):
        same_shape((len(values[0]),), **{f"values[{position}]": value})
    return [function(bucket.valid, *(bucket.padded(value) for value in values)) for bucket in groups]


def _together(groups: list[Bucket], values: list[Tensor]) -> Tensor:
    """Each bucket's [b, t] -> [N] in the packed order."""
    flat = torch.cat([bucket.packed(value) for bucket, value in zip(groups, values, strict=True)])
    return torch.empty_like(flat).index_copy(0, torch.cat([bucket.tokens for bucket in groups]), flat)


def _lengths(cu_lengths: Tensor, tokens: int | None) -> list[int]:
    """Lengths of the responses, on the host."""
    if cu_lengths.ndim != 1 or not len(cu_lengths) or cu_lengths.is_floating_point():
        raise ValueError(
            f"cu_lengths has shape {list(cu_lengths.shape)} and dtype {cu_lengths.dtype}, expected integers "
            "[B + 1]: pass 0 and the running sum of the lengths"
        )
    ends = cu_lengths.tolist()
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    if ends[0] != 0 or min(lengths, default=0) < 0 or (tokens is not None and ends[-1] != tokens):
        raise ValueError(
            f"cu_lengths runs from {ends[0]} to {ends[-1]}, least step {min(lengths, default=0)}; expected steps "
            f">= 0 from 0 to {'N' if tokens is None else tokens}: pass 0 and the running sum of the lengths"
        )
    return lengths
