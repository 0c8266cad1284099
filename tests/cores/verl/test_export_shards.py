"""Shards of ranks that do not fit together are refused, and those that do are merged."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import Replicate, Shard

from cppo_lab.cores.verl import export_fsdp
from cppo_lab.cores.verl.export_fsdp import LabMerger

pytestmark = pytest.mark.verl


class Part:
    """One rank's part of a weight of the whole `shape`, as a DTensor has it."""

    def __init__(self, local: Tensor, shape: tuple[int, ...], *placements: object) -> None:
        self._local_tensor, self.shape, self.placements = local, torch.Size(shape), placements


@pytest.fixture
def merger(monkeypatch: pytest.MonkeyPatch) -> LabMerger:
    monkeypatch.setattr(export_fsdp, "DTensor", Part)
    return LabMerger.__new__(LabMerger)  # without a configuration, which only writing needs


def merged(
    merger: LabMerger, *ranks: dict[str, Any], names: tuple[str, ...] = ("fsdp",)
) -> dict[str, Tensor]:
    merger._first = ranks[0]
    merger._read = lambda rank: ranks[rank]  # type: ignore[method-assign]
    return merger._load_and_merge_state_dicts(len(ranks), len(ranks), (len(ranks),), names)


def test_parts_are_joined_and_what_every_rank_has_is_taken_once(merger: LabMerger) -> None:
    whole = torch.arange(8.0).reshape(4, 2)
    ranks = [
        {"w": Part(half, (4, 2), Shard(0)), "r": Part(whole, (4, 2), Replicate()), "b": torch.ones(3)}
        for half in whole.split(2)
    ]
    found = merged(merger, *ranks)
    assert torch.equal(found["w"], whole) and torch.equal(found["r"], whole)
    assert torch.equal(found["b"], torch.ones(3))


def test_replicas_are_told_apart_from_parts(merger: LabMerger) -> None:
    whole = torch.arange(8.0).reshape(4, 2)
    ranks = [{"w": Part(half, (4, 2), Replicate(), Shard(0))} for half in whole.split(2)]
    assert torch.equal(merged(merger, *ranks, names=("ddp", "fsdp"))["w"], whole)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"w": torch.ones(2)}, {"v": torch.ones(2)}, "the ranks have saved different weights"),
        ({"w": torch.ones(2)}, {"w": torch.zeros(2)}, "'w' differs between rank 0 and rank 1"),
        (
            {"w": Part(torch.ones(2), (4,), Shard(0))},
            {"w": Part(torch.ones(2), (4,), Replicate())},
            "w is spread over ranks in a way that verl's merger does not know",
        ),
        (
            {"w": Part(torch.ones(2), (4,), Shard(0), Shard(0))},
            {"w": Part(torch.ones(2), (4,), Shard(0), Shard(0))},
            "w is spread over ranks in a way that verl's merger does not know",
        ),
        (
            {"w": Part(torch.ones(2), (5,), Shard(0))},
            {"w": Part(torch.ones(2), (5,), Shard(0))},
            r"w has the shape \(4,\), not \(5,\)",
        ),
    ],
)
def test_ranks_that_do_not_fit_together_are_refused(
    merger: LabMerger, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        merged(merger, first, second)
