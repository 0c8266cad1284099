"""Who is trained where: whole groups in their own minibatches, shares equal in rows and close in tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from cppo_lab.cores.verl.trainer import Arrangement, arrange, by_rank

pytestmark = pytest.mark.verl


@pytest.mark.parametrize(
    ("groups", "lengths", "keep", "ranks", "expected"),
    [
        # Two minibatches of two groups of two, one rank: the longest first.
        ("00112233", [5, 6, 7, 8, 4, 3, 2, 1], "11111111", 1, [[[3, 2, 1, 0]], [[4, 5, 6, 7]]]),
        # A group is left out: its minibatch is filled up, the other one is not touched.
        ("00112233", [5, 6, 7, 8, 4, 3, 2, 1], "11001111", 1, [[[1, 0, None, None]], [[4, 5, 6, 7]]]),
        # A minibatch with nothing left is no update.
        ("00112233", [1] * 8, "00001111", 1, [[[4, 5, 6, 7]]]),
        ("00112233", [1] * 8, "00000000", 1, []),
        # Two ranks: 8 | 7 + 5 would leave no place, so 8 + 5 | 7 + 6.
        ("00112233", [5, 6, 7, 8, 4, 3, 2, 1], "11111111", 2, [[[3, 0], [2, 1]], [[4, 7], [5, 6]]]),
        # One response for two ranks: the other trains nothing.
        ("00112233", [1] * 8, "10000000", 2, [[[0, None], [None, None]]]),
        # Responses that failed are missing.
        ("0123", [1, 2, 3, 4], "1111", 2, [[[1, None], [0, None]], [[3, None], [2, None]]]),
        # The order of the responses decides nothing but names.
        ("33221100", [1, 2, 3, 4, 8, 7, 6, 5], "11111111", 2, [[[4, 7], [5, 6]], [[3, 0], [2, 1]]]),
    ],
)  # fmt: skip
def test_table(
    groups: str, lengths: list[int], keep: str, ranks: int, expected: list[list[list[int | None]]]
) -> None:
    found = arrange(
        [int(g) for g in groups],
        lengths,
        [k == "1" for k in keep],
        groups_per_minibatch=2,
        ranks=ranks,
        rows=4,
    )
    assert found == expected


@dataclass(frozen=True)
class Batch:
    """Arguments of `arrange`."""

    groups: list[int]
    lengths: list[int]
    keep: list[bool]
    per_minibatch: int
    ranks: int
    rows: int

    def arranged(self) -> Arrangement:
        return arrange(
            self.groups, self.lengths, self.keep,
            groups_per_minibatch=self.per_minibatch, ranks=self.ranks, rows=self.rows,
        )  # fmt: skip

    def in_order(self, order: Sequence[int]) -> "Batch":
        columns = ([column[i] for i in order] for column in (self.groups, self.lengths))
        return Batch(*columns, [self.keep[i] for i in order], self.per_minibatch, self.ranks, self.rows)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A batch of some prompts, some of whose responses are missing or without signal, in any order."""
    minibatches, per_minibatch = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    responses, ranks = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 3, 4]))
    rows = -(-per_minibatch * responses // ranks) * ranks
    prompts = minibatches * per_minibatch
    keeps = draw(st.lists(st.booleans(), min_size=prompts, max_size=prompts))
    groups = draw(
        st.permutations([g for g in range(prompts) for _ in range(draw(st.integers(0, responses)))])
    )
    lengths = draw(st.lists(st.integers(1, 10_000), min_size=len(groups), max_size=len(groups)))
    return Batch(list(groups), lengths, [keeps[g] for g in groups], per_minibatch, ranks, rows)


def present(minibatch: Sequence[Sequence[int | None]]) -> list[int]:
    return [row for rank in minibatch for row in rank if row is not None]


@settings(max_examples=300, deadline=None)
@given(batches())
def test_properties(batch: Batch) -> None:
    found = batch.arranged()
    # Every kept response exactly once, no other.
    everyone = sorted(row for minibatch in found for row in present(minibatch))
    assert everyone == [i for i, kept in enumerate(batch.keep) if kept]
    # Whole groups, in the minibatch of their prompts, in the order of the data; none of padding alone.
    numbers = [
        {batch.groups[row] // batch.per_minibatch for row in present(minibatch)} for minibatch in found
    ]
    assert all(len(number) == 1 for number in numbers)
    assert [min(number) for number in numbers] == sorted({min(number) for number in numbers})
    for minibatch in found:
        # What verl needs: equal rows on every rank, of every minibatch.
        assert [len(share) for share in minibatch] == [batch.rows // batch.ranks] * batch.ranks
        # Close in tokens: as long as every rank has a place left, no two differ by more than the longest response.
        tokens = [sum(batch.lengths[row] for row in share if row is not None) for share in minibatch]
        if all(None in share for share in minibatch):
            assert max(tokens) - min(tokens) <= max(batch.lengths[row] for row in present(minibatch))
    assert batch.arranged() == found


@settings(max_examples=100, deadline=None)
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_change_a_minibatch(batch: Batch, random: Random) -> None:
    order = list(range(len(batch.groups)))
    random.shuffle(order)
    shuffled = [
        sorted(order[row] for row in present(minibatch)) for minibatch in batch.in_order(order).arranged()
    ]
    assert shuffled == [sorted(present(minibatch)) for minibatch in batch.arranged()]


@settings(max_examples=100, deadline=None)
@given(batches())
def test_verl_deals_out_the_arranged_minibatches(batch: Batch) -> None:
    """Its dispatch gives each rank an equal part of the rows in a row; its worker cuts that into minibatches."""
    arrangement = batch.arranged()
    flat = [-1 if row is None else row for row in by_rank(arrangement)]
    if not flat:
        assert arrangement == []
        return
    data = TensorDict({"row": torch.tensor(flat)}, batch_size=len(flat))
    for rank, part in enumerate(data.chunk(batch.ranks)):
        assert part.batch_size[0] == len(flat) // batch.ranks
        dealt = tu.make_iterator(
            part, batch.rows // batch.ranks, epochs=1, seed=42 + rank, dataloader_kwargs={"shuffle": False}
        )
        expected = [[-1 if row is None else row for row in minibatch[rank]] for minibatch in arrangement]
        assert [minibatch["row"].tolist() for minibatch in dealt] == expected


def test_verls_dispatch_of_a_batch_of_keys_is_that_equal_part() -> None:
    """The trainer hands over keys, not tensors."""
    from transfer_queue import KVBatchMeta

    batch = KVBatchMeta(keys=[f"k{i}" for i in range(8)], tags=[{} for _ in range(8)], partition_id="train")
    assert [part.keys for part in batch.chunk(2)] == [["k0", "k1", "k2", "k3"], ["k4", "k5", "k6", "k7"]]


def test_token_balance_of_a_real_size() -> None:
    """A minibatch of 32 prompts x 8 responses on 8 ranks: within 1 % of each other."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(100, 8192, (256,), generator=draw).tolist()
    [minibatch] = arrange(
        [i // 8 for i in range(256)], lengths, [True] * 256, groups_per_minibatch=32, ranks=8, rows=256
    )
    tokens = [sum(lengths[row] for row in share if row is not None) for share in minibatch]
    assert max(tokens) < 1.01 * min(tokens)


def test_errors() -> None:
    with pytest.raises(ValueError, match="4 responses cannot be shared equally by 3 ranks"):
        arrange([0], [1], [True], groups_per_minibatch=1, ranks=3, rows=4)
    with pytest.raises(ValueError, match="a minibatch has 5 responses, but 2 x 2 rows"):
        arrange([0] * 5, [1] * 5, [True] * 5, groups_per_minibatch=1, ranks=2, rows=4)
    with pytest.raises(ValueError, match="zip"):
        arrange([0, 0], [1, 1], [True], groups_per_minibatch=1, ranks=1, rows=4)
