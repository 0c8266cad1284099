"""Every rule against the golden vectors: masks, objectives, losses and their gradients."""

import pytest
import torch

from cppo_lab.maths.aggregation import aggregate
from tests.maths.maths_golden import CASES, DTYPES, METHODS, TOLERANCE, golden, keys, output, valid

MASK_KEYS = keys("mask", of=tuple(METHODS))
TOKEN_KEYS = keys("val", "grad", of=tuple(METHODS))
LOSS_KEYS = keys("loss", "dloss", of=tuple(METHODS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", MASK_KEYS)
def test_mask(key: str, dtype: torch.dtype) -> None:
    case, _, method = key.split("/")
    keep = output(case, method, dtype)[0].keep
    expected = golden(key, dtype)
    assert keep.dtype == dtype and not keep.requires_grad
    if method.startswith("cppo_soft"):
        torch.testing.assert_close(keep, expected, rtol=0, atol=TOLERANCE[dtype])
    else:
        assert torch.equal(keep, expected), f"differs at {(keep != expected).nonzero().tolist()}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", TOKEN_KEYS)
def test_objective_and_its_gradient(key: str, dtype: torch.dtype) -> None:
    case, part, method = key.split("/")
    result, logp = output(case, method, dtype)
    actual = result.objective
    assert actual.dtype == dtype and bool((actual[~valid(case)] == 0).all())
    if part == "grad":
        (actual,) = torch.autograd.grad(actual.sum(), logp, retain_graph=True)
    torch.testing.assert_close(actual, golden(key, dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", LOSS_KEYS)
def test_loss_and_its_gradient(key: str, dtype: torch.dtype) -> None:
    case, part, method, mode = key.split("/")
    result, logp = output(case, method, dtype)
    horizon = CASES[case]["horizon"] if mode == "seq-mean-token-sum-norm" else None
    actual = -aggregate(result.objective, golden(f"{case}/in/valid"), mode, horizon=horizon)
    if part == "dloss":
        (actual,) = torch.autograd.grad(actual, logp, retain_graph=True)
    torch.testing.assert_close(actual, golden(key, dtype), rtol=0, atol=TOLERANCE[dtype])
