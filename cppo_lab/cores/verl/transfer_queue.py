"""Adds rows and columns to a training batch in TransferQueue, between verl's rollout and its update."""

import uuid
from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
from verl.utils import tensordict_utils as tu

from cppo_lab.cores.verl.kept_responses import PLACE
from cppo_lab.cores.verl.rollout.settings import TOPK_IDS, TOPK_LOGP


def padding_rows(
    partition: str, key: str, tag: dict[str, Any], count: int, eos: int
) -> list[tuple[str, dict[str, Any]]]:
    """(key, tag) of `count` padding rows, which train nothing, modelled on the row `key`.

    They are verl's own synthetic rows: one response token `eos`, with mask, rewards and log-probabilities 0.
    """
    if not count:
        return []
    source = tq.kv_batch_get(keys=[key], partition_id=partition)[0]
    row, row_tag = construct_minimal_padding_template(source, tag, eos)
    for name in (TOPK_IDS, TOPK_LOGP):  # verl fills only its own columns
        if name in row:
            row[name] = torch.zeros_like(row[name][:1])
    row["uid"] = f"pad{uuid.uuid4().hex}"
    keys = [f"{row['uid']}_{place}_0" for place in range(count)]
    tags = [dict(row_tag) for _ in keys]
    rows = [row | {"session_id": place} for place in range(count)]
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=tu.list_of_dict_to_tensordict(rows), tags=tags)
    return list(zip(keys, tags, strict=True))


def clear(partition: str, keys: Sequence[str]) -> None:
    """Remove rows; unlike TransferQueue, accepts an empty list."""
    if keys:
        tq.kv_clear(keys=list(keys), partition_id=partition)


def write_minibatch_responses(batch: KVBatchMeta, counts: Sequence[int]) -> None:
    """Column `minibatch_responses` [1] float32: the responses, without padding, in each row's minibatch."""
    _put(batch, {"minibatch_responses": torch.tensor(counts, dtype=torch.float32)[:, None]})


def mark_kept(batch: KVBatchMeta, keys: Sequence[str]) -> None:
    """Column `kept_place` [1] int64: the place of each row's key in `keys`, -1 for all others."""
    places = {key: place for place, key in enumerate(keys)}
    _put(batch, {PLACE: torch.tensor([places.get(key, -1) for key in batch.keys])[:, None]})


def write_permutations(batch: KVBatchMeta, seed: int, step: int) -> None:
    """Column `weight_permutation` [R] int32: a fresh order per rollout, kept for all its minibatches.

    It depends on the run's seed and the step only, so that a resumed run draws the same as an uninterrupted one.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    orders = [torch.randperm(tag["response_len"], generator=generator).to(torch.int32) for tag in batch.tags]
    _put(batch, {"weight_permutation": torch.nested.as_nested_tensor(orders, layout=torch.jagged)})


def _put(batch: KVBatchMeta, columns: dict[str, Any]) -> None:
    fields = TensorDict(columns, batch_size=len(batch))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
