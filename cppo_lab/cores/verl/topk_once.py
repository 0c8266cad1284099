"""Fetches mu's Top-K once for all ranks that train the same rows, instead of once per rank.

verl sends a part of the batch to every data-parallel rank. With sequence, context, tensor or pipeline parallelism such
a rank is a group of processes, each of which fetches all columns of the part from TransferQueue. The Top-K is by far
the largest of them: 2 K numbers per token. Here the first process of a group fetches it and sends it to the others.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from tensordict import TensorDict
from transfer_queue import BatchMeta, KVBatchMeta
from verl.utils.transferqueue_utils import kv_batch_meta2batch_meta

from cppo_lab.cores.verl.rollout.settings import TOPK_IDS, TOPK_LOGP

_COLUMNS = (TOPK_IDS, TOPK_LOGP)
_BYTES = 2**28  # of one message

Update = Callable[[Any, Any], Any]


def same_rows_group(dp_rank: int) -> dist.ProcessGroup | None:
    """The processes with this data-parallel rank, connected by gloo; None if this is the only one.

    A collective over all processes.
    """
    dp_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(dp_ranks, dp_rank)
    members: dict[int, list[int]] = {}
    for process, of_process in enumerate(dp_ranks):
        members.setdefault(of_process, []).append(process)
    # Every process has to create every group, in the same order.
    groups = {
        one: dist.new_group(processes, backend="gloo")
        for one, processes in sorted(members.items())
        if len(processes) > 1
    }
    return groups.get(dp_rank)


def topk_once(update: Update) -> Update:
    """Decorate a method wrapped by verl's `register`: only the first process of `self.same_rows` fetches the Top-K.

    The method itself calls `share_topk` with its data.
    """

    @wraps(update)  # it also copies verl's mark by which the driver finds the method
    def fetch(self: Any, data: Any) -> Any:
        group = self.same_rows
        if group is not None and dist.get_rank(group) and isinstance(data, KVBatchMeta):
            data = without_topk(kv_batch_meta2batch_meta(data))
        return update(self, data)

    return fetch


def without_topk(batch: BatchMeta) -> BatchMeta:
    """The same rows without the two columns."""
    return batch.select_fields([name for name in batch.field_names if name not in _COLUMNS])


def share_topk(data: TensorDict, group: dist.ProcessGroup | None) -> None:
    """Give `data` of every process the Top-K of the first one, if that has any. A collective over `group`.

    The columns are nested, [B, R, K] with a length R for each response, on the CPU.
    """
    if group is None:
        return
    leads = dist.get_rank(group) == 0
    forms: list[Any] = [[_form(name, data[name]) for name in _COLUMNS if name in data] if leads else None]
    dist.broadcast_object_list(forms, group=group, group_src=0)
    for name, shape, dtype, offsets in forms[0]:
        values = data[name].values().contiguous() if leads else torch.empty(shape, dtype=dtype)
        for part in values.view(-1).view(torch.uint8).split(_BYTES):
            dist.broadcast(part, group=group, group_src=0)
        if not leads:
            data[name] = torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets))


def _form(name: str, column: Any) -> tuple[str, torch.Size, torch.dtype, list[int]]:
    return name, column.values().shape, column.dtype, column.offsets().tolist()
