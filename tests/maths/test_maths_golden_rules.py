"""Every rule against the golden vectors: masks, objectives, losses and their gradients."""

import pytest
import torch

from cppo_lab.vectors.methods import SOFT
from tests.maths.maths_golden import DTYPES, OURS, TOLERANCE, VECTORS, golden, keys, ours

MASK_KEYS = keys("mask")
TOKEN_KEYS = keys("val", "grad")
LOSS_KEYS = keys("loss", "dloss")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", MASK_KEYS)
def test_mask(key: str, dtype: torch.dtype) -> None:
    keep, expected = ours(key, dtype), golden(key, dtype)
    assert keep.dtype == dtype and not keep.requires_grad
    if key.split("/")[2] in SOFT:
        torch.testing.assert_close(keep, expected, rtol=0, atol=TOLERANCE[dtype])
    else:
        assert torch.equal(keep, expected), f"differs at {(keep != expected).nonzero().tolist()}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", TOKEN_KEYS)
def test_objective_and_its_gradient(key: str, dtype: torch.dtype) -> None:
    case, _, method = key.split("/")
    found = OURS[dtype].output(case, method)
    assert found is not None and found[0].objective.dtype == dtype
    actual = ours(key, dtype)
    assert bool((actual[~VECTORS.valid(case)] == 0).all())
    torch.testing.assert_close(actual, golden(key, dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", LOSS_KEYS)
def test_loss_and_its_gradient(key: str, dtype: torch.dtype) -> None:
    torch.testing.assert_close(ours(key, dtype), golden(key, dtype), rtol=0, atol=TOLERANCE[dtype])
