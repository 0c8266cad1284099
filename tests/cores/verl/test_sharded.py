"""Sharded logits give the divergences of whole ones: two gloo processes against one.

The sequence cut over Ulysses ranks on verl's FSDP engine; the vocabulary over tensor-parallel ranks, and sequences over
context-parallel ranks, on its Megatron engine. verl's own functions cut and gather; Megatron is stood in for.

And four processes fetch mu's Top-K once for each two that train the same rows. The queue is stood in for; `register`
and its bridge to the queue are verl's.
"""

import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest
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
from cppo_lab.errors import UserError
from tests.cores.verl.conftest import on_ranks
from tests.cores.verl.recorded import nested
from tests.cores.verl.test_logits import K, V, recorded, topk
from tests.cores.verl.vllm.megatron_ranks import mcore_actor, packing

RANKS = 2
MEASURES = ("tv", "kl")


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


def refused() -> str:
    """What is said to logits with eight rows more than verl's packing has: as with padding for FP8."""
    stand_in(dist.group.WORLD, alone())
    data, _ = recorded()
    packed = int((data["input_ids"].offsets().diff() + 1).div(2, rounding_mode="floor").sum()) * 2
    with pytest.raises(UserError) as caught:
        trust_region_loss(mcore_actor(), data=data, student_logits=torch.zeros(1, packed + 8, V // RANKS))
    return str(caught.value)


def cut_logits(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits with a huge offset and one token without mass."""
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(40, V, generator=generator)
    logits[:20] += 300
    logits[5, 7] = -torch.inf
    ids = torch.randint(V, (40, 4), generator=generator)
    ids[0, 0] = -1
    return logits.to(dtype), ids


CASES = {"ulysses": over_the_sequence} | {
    f"{cut} {form}": partial(on_megatron, data_format=form, tensor_parallel=cut == "tensor")
    for cut in ("tensor", "context")
    for form in ("thd", "bshd")
}
DTYPES = (torch.float32, torch.bfloat16)


def work(rank: int, ranks: int, folder: Path) -> None:
    """One of two processes: every case, into a file; or of four."""
    if ranks > RANKS:
        fetch(rank, folder)
        return
    seen: dict[Any, Any] = {
        (case, measure): run(measure) for case, run in CASES.items() for measure in MEASURES
    }
    seen["refused"] = refused()
    for dtype in DTYPES:
        logits, ids = cut_logits(dtype)
        seen[dtype] = logp_and_entropy(logits.chunk(RANKS, -1)[rank], ids, dist.group.WORLD)
    torch.save(seen, folder / f"{rank}.pt")


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

    def __init__(self, columns: TensorDict) -> None:
        self.rows, self.asked = columns, list[str]()
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


def fetch(process: int, folder: Path) -> None:
    """What it asked for and what it trains, with a Top-K and without one."""
    worker, seen = Worker(), {}
    for with_topk in (True, False):
        queue = Queue(rows(DP_RANKS[process], with_topk))
        batch = tq.KVBatchMeta(
            keys=list("012"), tags=[{}] * 3, partition_id="train", extra_info={"temperature": 0.7}
        )
        trained = worker.update_actor(batch)
        seen[with_topk] = (queue.asked, trained)
    torch.save(seen, folder / f"topk-{process}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes have written what they saw."""
    made = tmp_path_factory.mktemp("ranks")
    on_ranks(work, made, groups=(RANKS, len(DP_RANKS)))
    return made


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[Any, Any]]:
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("case", CASES)
def test_equal_to_whole_logits(results: list[dict[Any, Any]], case: str, measure: str) -> None:
    expected = whole(measure)
    for result in results:
        outputs = result[case, measure]
        assert {"divergence", "policy_entropy"} <= set(outputs)
        assert ("log_probs" in outputs) == (case == "ulysses")
        for key, value in outputs.items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
    assert float(expected["divergence"].max()) > 0.05


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probabilities_and_entropy_of_a_cut_vocabulary(
    results: list[dict[Any, Any]], dtype: torch.dtype
) -> None:
    logits, ids = cut_logits(dtype)
    exact = logits.double().log_softmax(-1)
    entropy = torch.special.entr(exact.exp()).sum(-1)
    expected = exact.gather(1, ids.clamp_min(0))
    for result in results:
        logp, spread = result[dtype]
        torch.testing.assert_close(logp[ids >= 0].double(), expected[ids >= 0], rtol=1e-6, atol=2e-5)
        torch.testing.assert_close(spread.double(), entropy, rtol=1e-5, atol=1e-5)
        assert bool(logp.isfinite().all())


def test_logits_that_verl_packs_in_another_way(results: list[dict[Any, Any]]) -> None:
    """Padding that the loss does not know of is refused, not misread."""
    said = "logits have 40 rows, verl's packing gives 32: switch off FP8"
    assert all(result["refused"].startswith(said) for result in results)


def test_topk_is_fetched_once_by_those_who_train_the_same_rows(folder: Path) -> None:
    """And a batch without one is trained as it is."""
    for process, dp_rank in enumerate(DP_RANKS):
        seen = torch.load(folder / f"topk-{process}.pt")
        for with_topk, (asked, trained) in seen.items():
            leads = with_topk and DP_RANKS.index(dp_rank) == process
            assert set(asked) == {"responses"} | ({TOPK_IDS, TOPK_LOGP} if leads else set())
            assert trained.pop("temperature") == 0.7
            expected = rows(dp_rank, with_topk)
            parts = {name: (expected[name].values(), expected[name].offsets()) for name in trained}
            assert trained.keys() == {"responses"} | ({TOPK_IDS, TOPK_LOGP} if with_topk else set())
            torch.testing.assert_close(trained, parts, rtol=0, atol=0)
