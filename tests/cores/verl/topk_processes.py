"""Four processes that train two parts of a batch, two each: who asks the queue for what, and what each trains.

The queue alone is stood in for; `register` and its bridge to the queue are verl's.
"""

from typing import Any

import torch
import torch.distributed as dist
import transfer_queue as tq
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils import transferqueue_utils as bridge

from cppo_lab.cores.verl import worker as module
from cppo_lab.cores.verl.rollout.settings import TOPK_IDS, TOPK_LOGP

PROCESSES = 4
DP_RANKS = (0, 1, 0, 1)  # of the processes; Megatron numbers tensor-parallel ones in a row, Ulysses too
LENGTHS = {0: (3, 1, 4), 1: (2, 2, 5)}  # tokens of each response, by data-parallel rank
K = 6


def rows(dp_rank: int, topk: bool = True) -> TensorDict:
    """The part of a batch that this data-parallel rank trains; other numbers for each."""
    draw = torch.Generator().manual_seed(dp_rank)

    def column(*width: int, dtype: torch.dtype) -> torch.Tensor:
        parts = [(9 * torch.randn(n, *width, generator=draw)).to(dtype) for n in LENGTHS[dp_rank]]
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    columns = {"responses": column(dtype=torch.int64)}
    if topk:
        columns |= {TOPK_IDS: column(K, dtype=torch.int32), TOPK_LOGP: column(K, dtype=torch.float16)}
    found: TensorDict = tu.get_tensordict(columns, {"temperature": 0.7})
    return found


class Worker:
    """As `TrustRegionWorker`, without an engine."""

    def __init__(self) -> None:
        self.same_rows = module.same_rows_group(DP_RANKS[dist.get_rank()])

    @module.topk_once
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_actor(self, data: Any) -> dict[str, Any]:
        """What it would train."""
        module.share_topk(data, self.same_rows)
        return {
            name: (value.values(), value.offsets()) if torch.is_tensor(value) else value
            for name in sorted(data.keys())
            if (value := tu.get(data, name)) is not None
        }


class Queue:
    """Remembers which columns were asked for."""

    def __init__(self, dp_rank: int, topk: bool) -> None:
        self.rows, self.asked = rows(dp_rank, topk), list[str]()
        bridge.TQ_INITIALIZED = True
        bridge.kv_batch_meta2batch_meta = module.kv_batch_meta2batch_meta = self.found
        bridge._meta_to_realdata = self.fetched

    def found(self, batch: Any) -> tq.BatchMeta:
        count = len(batch.keys)
        schema: dict[str, Any] = {name: {} for name, value in self.rows.items() if torch.is_tensor(value)}
        return tq.BatchMeta(list(range(count)), ["train"] * count, schema, extra_info=batch.extra_info)

    def fetched(self, meta: Any) -> TensorDict:
        if isinstance(meta, tq.KVBatchMeta):
            meta = self.found(meta)
        self.asked = list(meta.field_names)
        data: TensorDict = tu.get_tensordict({name: self.rows[name] for name in self.asked}, {})
        for name, value in meta.extra_info.items():
            tu.assign_non_tensor_data(data, name, value)
        return data


def work(process: int, folder: str) -> None:
    """One of them: what it asked for and what it trains, with a Top-K and without one."""
    store = f"file://{folder}/topk_store"
    dist.init_process_group("gloo", init_method=store, rank=process, world_size=PROCESSES)
    worker, found = Worker(), {}
    for topk in (True, False):
        queue = Queue(DP_RANKS[process], topk)
        count = len(LENGTHS[DP_RANKS[process]])
        keys = [str(number) for number in range(count)]
        batch = tq.KVBatchMeta(
            keys=keys, tags=[{}] * count, partition_id="train", extra_info={"temperature": 0.7}
        )
        trained = worker.update_actor(batch)
        found[topk] = (queue.asked, trained)
    torch.save(found, f"{folder}/topk-{process}.pt")
    dist.destroy_process_group()
