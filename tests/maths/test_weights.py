"""Position weights, the quantile and the prefix-budget rate. The golden vectors have more of their values."""

import math
from itertools import product

import pytest
import torch

from cppo_lab.maths import weights as budget
from cppo_lab.maths.weights import effective_delta_b, position_weights
from cppo_lab.rules import position_weight
from cppo_lab.spec.run import PAPER
from tests.maths.maths_batches import random_batch
from tests.oracles.authors import quantile


@pytest.mark.parametrize("length, w_min, padding", list(product((1, 2, 7, 60), (0.01, 0.8, 1.0), (0, 5))))
def test_the_weights_are_those_of_the_formula_without_torch(length: int, w_min: float, padding: int) -> None:
    """`cppo_lab.rules` has it for bounds and figures: T the own length, or the padded width."""
    valid, width = torch.ones(1, length), length + padding
    for span, horizon in ((None, length), (width, width)):
        weights = position_weights(valid, w_min, span, dtype=torch.float64)[0].tolist()
        assert weights == pytest.approx([position_weight(t, horizon, w_min) for t in range(1, length + 1)])


@pytest.mark.parametrize("cap, scale", list(product([1.0, 2.0, 5.0, math.inf], [0.0, 0.5, 1.0, 3.0])))
def test_the_adaptive_budget(cap: float, scale: float) -> None:
    """The quantile is of each row's own values, whatever their number."""
    batch = random_batch(6, rows=40)
    for q in (0.0, 0.5, 0.9, 0.99, 1.0):
        rates = effective_delta_b(batch.divergence, batch.valid, 0.02, "adaptive", cap, q, scale)
        for row, length in enumerate(batch.valid.sum(1).tolist()):
            values = batch.divergence[row, :length].tolist()
            wanted = min(max(scale * quantile(values, q), 0.02), cap * 0.02) if values else 0.02
            assert float(rates[row]) == pytest.approx(wanted, rel=1e-12)


def test_the_papers_constants_are_the_same_in_both_places() -> None:
    constants = (PAPER["delta_b_cap"], PAPER["delta_b_quantile"], PAPER["delta_b_scale"])
    assert constants == (budget.CAP, budget.QUANTILE, budget.SCALE)
