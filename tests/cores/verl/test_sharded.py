"""Sharded logits give the divergences of whole ones: two gloo processes against one.

The sequence cut over Ulysses ranks on verl's FSDP engine; the vocabulary over tensor-parallel ranks, and sequences over
context-parallel ranks, on its Megatron engine. verl's own functions cut and gather; Megatron is stood in for.

And four processes fetch mu's Top-K once for each two that train the same rows. The queue is stood in for; `register`
and its bridge to the queue are verl's.
"""

import itertools
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils import transferqueue_utils as bridge
from verl.utils import ulysses

from cppo_lab.cores.verl import worker as module
from cppo_lab.cores.verl.logits import logp_and_entropy
from cppo_lab.cores.verl.loss import trust_region_loss
from cppo_lab.cores.verl.rollout import TOPK_IDS, TOPK_LOGP
from tests.conftest import user_error
from tests.cores.verl.conftest import on_ranks
from tests.cores.verl.recorded import nested
from tests.cores.verl.test_logits import K, V, recorded, topk
from tests.cores.verl.vllm.megatron_ranks import mcore_actor, packing

RANKS = 2


def stand_in(tensor_group: Any, context_group: Any) -> Any:
    """verl/models/mcore/util.py, with these tensor- and context-parallel groups."""
    state = types.ModuleType("megatron.core.parallel_state")
    for name, group in (("tensor_model", tensor_group), ("context", context_group)):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        state.__dict__.update({
            f"get_{name}_parallel_group": lambda group=group: group,
            f"get_{name}_parallel_world_size": lambda size=size: size,
            f"get_{name}_parallel_rank": lambda rank=rank: rank,
        })  # fmt: skip
    sequences = types.ModuleType("megatron.core.packed_seq_params")
    sequences.__dict__["PackedSeqParams"] = types.SimpleNamespace  # it only carries what it is given
    core = types.ModuleType("megatron.core")
    core.__dict__.update(parallel_state=state, packed_seq_params=sequences)
    made = (types.ModuleType("megatron"), core, state, sequences)
    sys.modules |= {part.__name__: part for part in made}
    return packing()


def weight(total: int) -> Tensor:
    return torch.randn(total, generator=torch.Generator().manual_seed(9))


def whole(measure: str) -> dict[str, Tensor]:
    """One process: outputs on all packed rows, and the gradient of a weighted sum of the log-probabilities."""
    data, logits = recorded()
    scaled = logits * 1.0
    outputs = trust_region_loss(topk(measure), data=data, student_logits=scaled.unsqueeze(0))
    (outputs["log_probs"][0] * weight(len(logits))).sum().backward()
    return {key: value[0].detach() for key, value in outputs.items()} | {"gradient": logits.grad}


def over_the_sequence(measure: str) -> dict[str, Tensor]:
    """Under Ulysses: this rank's rows of the packed row, gathered as FSDPEngine._gather_and_unpad_packed does."""
    ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    data, logits = recorded()
    total = len(logits)
    assert total % RANKS  # the last rank's part ends in padding
    local = ulysses.slice_input_tensor(logits.unsqueeze(0), dim=1)
    outputs = trust_region_loss(topk(measure), data=data, student_logits=local * 1.0)
    gather = partial(
        ulysses.gather_outputs_and_unpad, gather_dim=0, unpad_dim=0, padding_size=RANKS - total % RANKS
    )
    gathered = {key: gather(value.squeeze(0)) for key, value in outputs.items()}
    (gathered["log_probs"] * weight(total)).sum().backward()
    ulysses.set_ulysses_sequence_parallel_group(None)
    # verl multiplies the gradient by the ranks, over which FSDP then averages.
    gradient = logits.grad / RANKS
    dist.all_reduce(gradient)
    return {key: value.detach() for key, value in gathered.items()} | {"gradient": gradient}


def alone() -> Any:
    return [dist.new_group([rank]) for rank in range(RANKS)][dist.get_rank()]


def on_megatron(measure: str, data_format: str, tensor_parallel: bool) -> dict[str, Tensor]:
    """The vocabulary cut over both ranks, or, without `tensor_parallel`, every sequence."""
    util = stand_in(*((dist.group.WORLD, alone()) if tensor_parallel else (alone(), dist.group.WORLD)))
    data, leaf = recorded()
    logits = torch.nested.nested_tensor_from_jagged(leaf.detach(), data["input_ids"].offsets())
    place, back = (getattr(util, f"{part}process_{data_format}_engine") for part in ("pre", "post"))
    placed, params, _ = place(logits)
    if tensor_parallel:
        placed = placed.chunk(RANKS, -1)[dist.get_rank()]
    outputs = trust_region_loss(
        mcore_actor(measure), data=data, student_logits=placed, data_format=data_format
    )
    assert all(value.shape == placed.shape[:2] for value in outputs.values())
    ids = data["input_ids"]
    more = (ids, len(ids)) if data_format == "thd" else ()
    return {key: back(value, params, *more).values() for key, value in outputs.items()}


def check_that_another_packing_is_refused() -> None:
    """Padding that the loss does not know of is not misread: eight rows more than verl's packing has, as for FP8."""
    stand_in(dist.group.WORLD, alone())
    data, _ = recorded()
    with user_error("logits have 40 rows, verl's packing gives 32: switch off FP8"):
        trust_region_loss(mcore_actor(), data=data, student_logits=torch.zeros(1, 40, V // RANKS))


def check_a_cut_vocabulary(rank: int, dtype: torch.dtype) -> None:
    """Log-probabilities and entropy, of logits with a huge offset and one token without mass."""
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(40, V, generator=generator)
    logits[:20] += 300
    logits[5, 7] = -torch.inf
    logits, ids = logits.to(dtype), torch.randint(V, (40, 4), generator=generator)
    ids[0, 0] = -1
    logp, entropy = logp_and_entropy(logits.chunk(RANKS, -1)[rank], ids, dist.group.WORLD)
    exact = logits.double().log_softmax(-1)
    expected = exact.gather(1, ids.clamp_min(0))[ids >= 0]
    torch.testing.assert_close(logp[ids >= 0].double(), expected, rtol=1e-6, atol=2e-5)
    torch.testing.assert_close(
        entropy.double(), torch.special.entr(exact.exp()).sum(-1), rtol=1e-5, atol=1e-5
    )
    assert bool(logp.isfinite().all())


def work(rank: int, ranks: int, folder: Path) -> None:
    """One of two processes, or of four."""
    if ranks > RANKS:
        check_that_topk_is_fetched_once(rank)
        return
    near = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)
    for measure in ("tv", "kl"):
        expected = whole(measure)
        assert float(expected["divergence"].max()) > 0.05
        near(over_the_sequence(measure), expected)
        of_megatron = {key: expected[key] for key in ("divergence", "policy_entropy")}
        for data_format, tensor_parallel in itertools.product(("thd", "bshd"), (True, False)):
            near(on_megatron(measure, data_format, tensor_parallel), of_megatron)
    check_that_another_packing_is_refused()
    for dtype in (torch.float32, torch.bfloat16):
        check_a_cut_vocabulary(rank, dtype)


def test_all_that_these_processes_assert_holds(tmp_path: Path) -> None:
    on_ranks(work, tmp_path, groups=(RANKS, len(DP_RANKS)))


# -- The Top-K ---------------------------------------------------------------------------------------------------------

DP_RANKS = (0, 1, 0, 1)  # of four processes; Megatron numbers tensor-parallel ones in a row, Ulysses too
LENGTHS = {0: (3, 1, 4), 1: (2, 2, 5)}  # tokens of each response, by data-parallel rank


def rows(dp_rank: int, with_topk: bool = True) -> TensorDict:
    """The part of a batch that this data-parallel rank trains; other numbers for each."""
    draw = torch.Generator().manual_seed(dp_rank)

    def column(*width: int, dtype: torch.dtype) -> Tensor:
        return nested([(9 * torch.randn(n, *width, generator=draw)).to(dtype) for n in LENGTHS[dp_rank]])

    columns = {"responses": column(dtype=torch.int64)}
    if with_topk:
        columns |= {TOPK_IDS: column(K, dtype=torch.int32), TOPK_LOGP: column(K, dtype=torch.float16)}
    return tu.get_tensordict(columns, {"temperature": 0.7})


class Worker:
    """As `TrustRegionWorker`, without an engine."""

    def __init__(self) -> None:
        self.same_rows = module.same_rows_group(DP_RANKS[dist.get_rank()])

    @module.topk_once
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update_actor(self, data: Any) -> None:
        module.share_topk(data, self.same_rows)
        self.trained = data


class Queue:
    """Remembers which columns were asked for."""

    def __init__(self, columns: TensorDict) -> None:
        self.rows = columns
        bridge.TQ_INITIALIZED = True
        bridge.kv_batch_meta2batch_meta = module.kv_batch_meta2batch_meta = self.meta
        bridge._meta_to_realdata = self.fetched

    def meta(self, batch: Any) -> tq.BatchMeta:
        count = len(batch.keys)
        schema: dict[str, Any] = {name: {} for name, value in self.rows.items() if torch.is_tensor(value)}
        return tq.BatchMeta(list(range(count)), ["train"] * count, schema, extra_info=batch.extra_info)

    def fetched(self, meta: Any) -> TensorDict:
        if isinstance(meta, tq.KVBatchMeta):
            meta = self.meta(meta)
        self.asked = list(meta.field_names)
        data: TensorDict = tu.get_tensordict({name: self.rows[name] for name in self.asked}, {})
        for name, value in meta.extra_info.items():
            tu.assign_non_tensor_data(data, name, value)
        return data


def check_that_topk_is_fetched_once(process: int) -> None:
    """By those who train the same rows. And a batch without one is trained as it is."""
    worker, dp_rank = Worker(), DP_RANKS[process]
    for with_topk in (True, False):
        data, columns = rows(dp_rank, with_topk), {TOPK_IDS, TOPK_LOGP} if with_topk else set()
        queue = Queue(data)
        batch = tq.KVBatchMeta(
            keys=list("012"), tags=[{}] * 3, partition_id="train", extra_info={"temperature": 0.7}
        )
        worker.update_actor(batch)
        trained = {name: tu.get(worker.trained, name) for name in sorted(worker.trained.keys())}
        assert trained.pop("temperature") == 0.7 and trained.keys() == {"responses", *columns}
        leads = DP_RANKS.index(dp_rank) == process
        assert set(queue.asked) == {"responses"} | (columns if leads else set())
        for name, column in trained.items():
            assert torch.equal(column.values(), data[name].values())
            assert torch.equal(column.offsets(), data[name].offsets())
