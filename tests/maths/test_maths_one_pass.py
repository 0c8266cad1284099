"""What replaced slower passes: the quantile without a full sort, and one finiteness check for all tensors."""

from itertools import product

import pytest
import torch

from cppo_lab.maths.tokens import Tokens, row_counts
from cppo_lab.maths.weights import masked_quantile
from tests.maths.maths_batches import random_batch
from tests.maths.maths_cases import check_all

WIDTHS = (1, 2, 9, 10, 11, 101)
LARGEST = torch.finfo(torch.float32).max


def test_the_quantile_is_that_of_each_rows_own_values() -> None:
    check_all(quantile_is_that_of_each_rows_own_values, product([0.0, 0.1, 0.5, 0.9, 0.99, 1.0], WIDTHS))


def quantile_is_that_of_each_rows_own_values(q: float, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    values = torch.randn(width + 1, width, generator=generator, dtype=torch.float64).round(decimals=1)  # ties
    valid = torch.arange(width) < torch.arange(width + 1)[:, None]  # every length from 0 to the width
    actual = masked_quantile(values, valid, q)
    expected = [row[:length].quantile(q) if length else torch.zeros(()) for length, row in enumerate(values)]
    torch.testing.assert_close(actual, torch.stack([e.double() for e in expected]), rtol=0, atol=1e-12)


def test_row_counts_count() -> None:
    mask = random_batch(0).valid
    assert row_counts(mask).tolist() == mask.sum(1).tolist()


def test_finite_values_whose_sum_overflows_are_accepted() -> None:
    batch = random_batch(0, dtype=torch.float32)
    batch.advantages[:] = LARGEST
    assert bool((Tokens(*batch).advantages[batch.valid] == LARGEST).all())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_values_at_padding_are_ignored(value: float) -> None:
    batch = random_batch(0)
    changed = {f: getattr(batch, f).masked_fill(~batch.valid, value) for f in batch._fields if f != "valid"}
    logp = changed.pop("logp").requires_grad_()
    checked = Tokens(logp, **changed, valid=batch.valid)
    tensors = [tensor for tensor in vars(checked).values() if isinstance(tensor, torch.Tensor)]
    assert len(tensors) == 7 and not any(tensor[~batch.valid].any() for tensor in tensors)
    (gradient,) = torch.autograd.grad(checked.log_ratio.sum(), logp)
    assert torch.equal(gradient, batch.valid.double())
