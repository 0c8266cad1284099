"""Every rule against the golden vectors: masks, objectives, losses and their gradients.

One test for each golden case and part; a failure lists every array that differs.
"""

from itertools import product

import pytest
import torch

from cppo_lab.testing.golden import SOFT
from tests.maths.maths_cases import check_all
from tests.maths.maths_golden import DTYPES, OURS, TOLERANCE, VECTORS, by_case, golden, keys, ours

MASKS = by_case(keys("mask"))
TOKENS = by_case(keys("val", "grad"))
LOSSES = by_case(keys("loss", "dloss"))


@pytest.mark.parametrize("case", MASKS)
def test_mask(case: str) -> None:
    def compare(key: str, dtype: torch.dtype) -> None:
        keep, expected = ours(key, dtype), golden(key, dtype)
        assert keep.dtype == dtype and not keep.requires_grad
        if key.split("/")[2] in SOFT:
            torch.testing.assert_close(keep, expected, rtol=0, atol=TOLERANCE[dtype])
        else:
            assert torch.equal(keep, expected), f"differs at {(keep != expected).nonzero().tolist()}"

    check_all(compare, product(MASKS[case], DTYPES))


@pytest.mark.parametrize("case", TOKENS)
def test_objective_and_its_gradient(case: str) -> None:
    def compare(key: str, dtype: torch.dtype) -> None:
        found = OURS[dtype].output(case, key.split("/")[2])
        assert found is not None and found[0].objective.dtype == dtype
        actual = ours(key, dtype)
        assert bool((actual[~VECTORS.valid(case)] == 0).all())
        torch.testing.assert_close(actual, golden(key, dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    check_all(compare, product(TOKENS[case], DTYPES))


@pytest.mark.parametrize("case", LOSSES)
def test_loss_and_its_gradient(case: str) -> None:
    def compare(key: str, dtype: torch.dtype) -> None:
        torch.testing.assert_close(ours(key, dtype), golden(key, dtype), rtol=0, atol=TOLERANCE[dtype])

    check_all(compare, product(LOSSES[case], DTYPES))
