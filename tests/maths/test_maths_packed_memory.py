"""Buckets of packed responses: every response once, and memory by the token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from cppo_lab.maths import aggregation, packed
from cppo_lab.maths.rules import RULES
from cppo_lab.rules import PERMUTATION
from cppo_lab.rules import RULES as RECORDS
from tests.maths.maths_batches import CONSTANTS, random_batch


def cumulative(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_buckets_hold_every_response_once_in_at_most_two_places_a_token(lengths: list[int]) -> None:
    found = packed.buckets(cumulative(lengths))
    assert sorted(torch.cat([b.responses for b in found]).tolist()) == list(range(len(lengths)))
    assert torch.equal(torch.cat([b.tokens for b in found]).sort().values, torch.arange(sum(lengths)))
    assert sum(b.valid.numel() for b in found) <= 2 * sum(lengths)
    assert len(found) <= math.log2(max(*lengths, 1)) + 2


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


@pytest.mark.parametrize("name", [name for name in RULES if name != "m2po"])  # it takes all responses at once
def test_one_long_response_beside_many_short_ones_costs_memory_by_the_token(name: str) -> None:
    lengths = [20] * 250 + [16384] + [20] * 250
    n, cu_lengths = sum(lengths), cumulative(lengths)
    tokens = [values[0] for values in random_batch(0, rows=2, width=n)]  # one row of n tokens
    logp, rollout_logp, advantages, _, divergence = tokens
    parameters = dict(CONSTANTS[name])
    if PERMUTATION in RECORDS[name].needs:
        parameters["permutation"] = torch.cat([torch.arange(length) for length in lengths])
    with Largest() as largest:
        logp = logp.clone().requires_grad_()
        output = packed.rule(name, logp, rollout_logp, advantages, cu_lengths, divergence, **parameters)
        for mode in aggregation.MODES:
            loss = packed.aggregate(output.objective, cu_lengths, mode)
            torch.autograd.grad(loss, logp, retain_graph=True)
    assert n <= largest.elements <= 2 * n, "not [501, 16384], which is 312 times the tokens"
