"""The record that every rule takes: what it refuses, packed and padded responses, what padding holds."""

import math

import pytest
import torch
from torch import Tensor

from cppo_lab.maths.tokens import Tokens
from tests.maths.maths_batches import random_batch, random_permutation

NAN, INF = math.nan, math.inf
BATCH = random_batch(0)
LARGEST = torch.finfo(torch.float32).max


def with_value(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed[0, 2] = value
    return changed


GAP = BATCH.valid.clone()
GAP[0, 3] = False
NOT_FINITE = "is NaN or infinite"
VALUES = [  # one at a valid place
    ("logp", NAN, rf"logp {NOT_FINITE} at 1 valid places, first at \[0, 2\] \(nan\)"),
    ("rollout_logp", -INF, rf"rollout_logp {NOT_FINITE} .* \(-inf\)"),
    ("advantages", INF, f"advantages {NOT_FINITE}"),
    ("divergence", NAN, f"divergence {NOT_FINITE}"),
    # A comparison with NaN would keep the token in silence (PDM, a D_t from another origin), or drop it (ESTR).
    ("drift", NAN, f"drift {NOT_FINITE}"),
    ("rollout_entropy", NAN, f"rollout_entropy {NOT_FINITE}"),
    ("origin_logp", -INF, f"origin_logp {NOT_FINITE}"),
    ("divergence", -0.5, "divergence has negative values, the least -0.5"),
]
REFUSED = [
    *(({name: with_value(BATCH.logp.abs(), value)}, said) for name, value, said in VALUES),
    (
        {
            "logp": with_value(BATCH.logp.float(), 3e38),
            "rollout_logp": with_value(BATCH.rollout_logp.float(), -3e38),
        },
        r"log_ratio is NaN or infinite at 1 valid places, first at \[0, 2\]",
    ),
    ({"advantages": BATCH.advantages[:, :1]}, r"advantages has shape \[5, 1\], expected \[5, 12\]"),
    ({"valid": BATCH.valid[0]}, r"valid has shape \[12\], expected \[B, T\]"),
    ({"valid": GAP}, r"valid .*right-pad"),
    ({"valid": BATCH.valid * 0.5}, r"valid holds values other than 0 and 1"),
]


@pytest.mark.parametrize("change, message", REFUSED)
def test_tensor_is_refused(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokens(**BATCH._asdict() | change)


def test_finite_values_whose_sum_overflows_are_accepted() -> None:
    batch = random_batch(0, dtype=torch.float32)
    batch.advantages[:] = LARGEST
    assert (Tokens(*batch).advantages[batch.valid] == LARGEST).all()


@pytest.mark.parametrize("value", [NAN, INF, -1.0])
def test_values_at_padding_are_ignored(value: float) -> None:
    given = {
        name: tensor.masked_fill(~BATCH.valid, value)
        for name, tensor in BATCH._asdict().items()
        if name != "valid"
    }
    logp = given["logp"].requires_grad_()
    checked = Tokens(**given, valid=BATCH.valid)
    tensors = [tensor for tensor in vars(checked).values() if isinstance(tensor, Tensor)]
    assert len(tensors) == 7 and not any(tensor[~BATCH.valid].any() for tensor in tensors)
    (gradient,) = torch.autograd.grad(checked.log_ratio.sum(), logp)
    assert torch.equal(gradient, BATCH.valid.double())


@pytest.mark.parametrize("lengths", [[0], [3, 0, 13, 1], [0, 0, 70, 2, 1, 8]])
def test_packed_tokens_are_the_padded_ones(lengths: list[int]) -> None:
    """Their gradient: the conformance tests of rules."""
    batch = random_batch(1, rows=len(lengths), width=max(lengths))
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    values = batch._replace(valid=valid)._asdict() | {
        "topk_ids": torch.randint(9, (*valid.shape, 2)),
        "permutation": random_permutation(valid, 0),
    }
    padded = Tokens(**values)
    flat = {name: tensor[valid] for name, tensor in values.items() if name != "valid"}
    packed = Tokens.packed(torch.tensor([0, *lengths]).cumsum(0).int(), **flat)
    for name, value in vars(padded).items():
        same = getattr(packed, name)
        if isinstance(value, Tensor):
            assert torch.equal(same[valid], value[valid]) and same.dtype == value.dtype, name
        else:
            assert same == value, name


def test_no_packed_response_makes_no_row() -> None:
    nothing = torch.zeros(0)
    tokens = Tokens.packed(
        torch.zeros(1, dtype=torch.int32), logp=nothing, rollout_logp=nothing, advantages=nothing
    )
    assert tokens.logp.shape == tokens.valid.shape == (0, 0)


ONES = torch.ones(4)
REFUSED_PACKED = [
    (torch.tensor([0, 3]), {}, r"logp has shape \[4\], expected \[3\]"),
    (torch.tensor([1, 4]), {}, r"cu_lengths runs from 1 to 4"),
    (torch.tensor([0, 5, 4]), {}, r"least step -1"),
    (torch.tensor([0.0, 4.0]), {}, r"dtype torch.float32, expected integers"),
    (torch.zeros(0, dtype=torch.int32), {}, r"shape \[0\]"),
    (torch.tensor([0, 4]), {"logp": ONES.log() / 0}, r"logp is NaN or infinite at 4 valid places"),
]


@pytest.mark.parametrize("cu_lengths, change, message", REFUSED_PACKED)
def test_packed_lengths_are_refused(cu_lengths: Tensor, change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokens.packed(cu_lengths, **{"logp": ONES, "rollout_logp": ONES, "advantages": ONES} | change)
