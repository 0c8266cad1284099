"""Responses without padding make the same record as padded ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cppo_lab.maths.aggregation import MODES, aggregate
from cppo_lab.maths.metrics import summarise
from cppo_lab.maths.rules import RULES, get_rule
from cppo_lab.maths.tokens import Tokens
from cppo_lab.rules import PERMUTATION
from cppo_lab.rules import RULES as RECORDS
from tests.maths.maths_batches import CONSTANTS, constants, random_batch
from tests.maths.maths_cases import check_all

LENGTHS = st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 5, 8, 13, 30, 70]), min_size=1, max_size=9)


def cumulative(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


@settings(max_examples=30, deadline=None, derandomize=True)
@given(lengths=LENGTHS, seed=st.integers(0, 2**32 - 1))
def test_packed_tokens_are_the_padded_ones(lengths: list[int], seed: int) -> None:
    batch = random_batch(seed, rows=len(lengths), width=max(lengths))
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    given = batch._replace(valid=valid)._asdict() | {
        "topk_ids": torch.randint(9, (*valid.shape, 2)),
        "permutation": constants("cppo_no_prefix_budget_shuffled", batch._replace(valid=valid))[
            "permutation"
        ],
    }
    padded = Tokens(**given)
    flat = {name: value[valid] for name, value in given.items() if name != "valid"}
    flat["logp"].requires_grad_()
    packed = Tokens.packed(cumulative(lengths), **flat)
    for name, value in vars(padded).items():
        found = getattr(packed, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[valid], value[valid]) and found.dtype == value.dtype, name
        else:
            assert found == value, name
    (gradient,) = torch.autograd.grad(packed.log_ratio.square().sum(), flat["logp"])
    assert torch.equal(gradient, 2 * padded.log_ratio[valid])


@pytest.mark.parametrize("name", RULES)
def test_a_batch_without_tokens_gives_zeros_and_no_nan(name: str) -> None:
    check_all(batch_without_tokens_gives_zeros_and_no_nan, [(name, []), (name, [0]), (name, [0, 0])])


def batch_without_tokens_gives_zeros_and_no_nan(name: str, lengths: list[int]) -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    values = dict.fromkeys(("logp", "rollout_logp", "advantages", "divergence"), empty)
    if PERMUTATION in RECORDS[name].needs:
        values["permutation"] = empty.long()
    tokens = Tokens.packed(cumulative(lengths), **values)
    output = get_rule(name)(tokens, **CONSTANTS[name])
    assert output.objective.shape == output.keep.shape == (len(lengths), 0)
    assert all(value == 0 for value in summarise(output.stats).values())
    assert all(float(aggregate(output.objective, tokens.valid, mode)) == 0 for mode in MODES)


ONES = torch.ones(4)
REFUSED = [
    (torch.tensor([0, 3]), {}, r"logp has shape \[4\], expected \[3\]"),
    (torch.tensor([1, 4]), {}, r"cu_lengths runs from 1 to 4"),
    (torch.tensor([0, 5, 4]), {}, r"least step -1"),
    (torch.tensor([0.0, 4.0]), {}, r"dtype torch.float32, expected integers"),
    (torch.zeros(0, dtype=torch.int32), {}, r"shape \[0\]"),
    (torch.tensor([0, 4]), {"rollout_logp": ONES[:3]}, r"rollout_logp has shape \[3\], expected \[4\]"),
    (torch.tensor([0, 4]), {"logp": ONES.log() / 0}, r"logp is NaN or infinite at 4 valid places"),
]


@pytest.mark.parametrize(("cu_lengths", "change", "message"), REFUSED, ids=[row[2][:30] for row in REFUSED])
def test_call_is_refused(cu_lengths: torch.Tensor, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tokens.packed(cu_lengths, **{"logp": ONES, "rollout_logp": ONES, "advantages": ONES} | change)
