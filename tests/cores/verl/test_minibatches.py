"""Who is trained where: whole groups in their own minibatches, shares equal in rows and close in tokens."""

from collections.abc import Sequence
from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from cppo_lab.cores.verl.trainer import Arrangement, arrange, by_rank


def present(minibatch: Sequence[Sequence[int | None]]) -> list[int]:
    return sorted(row for rank in minibatch for row in rank if row is not None)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_any_batch(data: st.DataObject, random: Random) -> None:
    """Of some prompts, some of whose responses are missing or without signal, in any order."""
    minibatches, size, responses = (data.draw(st.integers(1, most)) for most in (4, 4, 6))
    ranks = data.draw(st.sampled_from([1, 2, 3, 4]))
    rows = -(-size * responses // ranks) * ranks
    signal = [random.random() < 0.6 for _ in range(minibatches * size)]
    groups = [group for group in range(len(signal)) for _ in range(random.randint(0, responses))]
    random.shuffle(groups)
    lengths = [random.randint(1, 10_000) for _ in groups]

    def arranged(order: Sequence[int]) -> Arrangement:
        columns = (
            [groups[i] for i in order],
            [lengths[i] for i in order],
            [signal[groups[i]] for i in order],
        )
        return arrange(*columns, groups_per_minibatch=size, ranks=ranks, rows=rows)

    arrangement = arranged(range(len(groups)))
    trained = [row for minibatch in arrangement for row in present(minibatch)]
    assert sorted(trained) == [row for row, group in enumerate(groups) if signal[group]]
    # Whole groups, in the minibatch of their prompts, in the order of the data; none of padding alone.
    numbers = [{groups[row] // size for row in present(minibatch)} for minibatch in arrangement]
    assert all(len(number) == 1 for number in numbers)
    assert [min(number) for number in numbers] == sorted({min(number) for number in numbers})
    for minibatch in arrangement:
        assert [len(share) for share in minibatch] == [rows // ranks] * ranks  # what verl needs
        # As long as every rank has a place left, no two differ by more tokens than the longest response has.
        tokens = [sum(lengths[row] for row in share if row is not None) for share in minibatch]
        if all(None in share for share in minibatch):
            assert max(tokens) - min(tokens) <= max(lengths[row] for row in present(minibatch))
    # The order of arrival does not change a minibatch.
    order = random.sample(range(len(groups)), len(groups))
    again = [sorted(order[row] for row in present(minibatch)) for minibatch in arranged(order)]
    assert again == [present(minibatch) for minibatch in arrangement]
    # verl's dispatch gives each rank an equal part of the rows in a row; its worker cuts that into minibatches.
    flat = [-1 if row is None else row for row in by_rank(arrangement)]
    if not flat:
        assert arrangement == []
        return
    for rank, part in enumerate(TensorDict({"row": torch.tensor(flat)}, batch_size=len(flat)).chunk(ranks)):
        dealt = tu.make_iterator(
            part, rows // ranks, epochs=1, seed=42 + rank, dataloader_kwargs={"shuffle": False}
        )
        expected = [[-1 if row is None else row for row in minibatch[rank]] for minibatch in arrangement]
        assert [minibatch["row"].tolist() for minibatch in dealt] == expected


def test_verls_dispatch_of_a_batch_of_keys_is_that_equal_part() -> None:
    """The trainer hands over keys, not tensors."""
    batch = KVBatchMeta(keys=[f"k{i}" for i in range(8)], tags=[{} for _ in range(8)], partition_id="train")
    assert [part.keys for part in batch.chunk(2)] == [["k0", "k1", "k2", "k3"], ["k4", "k5", "k6", "k7"]]
