"""Sharded logits give the divergences of whole ones: two gloo processes against one.

The sequence cut over Ulysses ranks on verl's FSDP engine; the vocabulary over tensor-parallel ranks, and sequences over
context-parallel ranks, on its Megatron engine. verl's own functions cut and gather; Megatron is stood in for.

And four processes fetch mu's Top-K once for each two that train the same rows.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("verl")

import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from verl.utils import ulysses
from verl.workers.config import McoreActorConfig

from cppo_lab.cores.verl.logits import logp_and_entropy
from cppo_lab.cores.verl.loss import TrustRegionLossConfig, trust_region_loss
from cppo_lab.cores.verl.rollout.settings import TOPK_IDS, TOPK_LOGP
from cppo_lab.errors import UserError
from tests.cores.verl import topk_processes
from tests.cores.verl.megatron_packing import stand_in
from tests.cores.verl.test_logits import K, V, recorded, topk

pytestmark = pytest.mark.verl
RANKS = 2
MEASURES = ("tv", "kl")


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
    found = {
        key: ulysses.gather_outputs_and_unpad(
            value.squeeze(0), gather_dim=0, unpad_dim=0, padding_size=RANKS - total % RANKS
        )
        for key, value in outputs.items()
    }
    (found["log_probs"] * weight(total)).sum().backward()
    ulysses.set_ulysses_sequence_parallel_group(None)
    # verl multiplies the gradient by the ranks, over which FSDP then averages.
    gradient = logits.grad / RANKS
    dist.all_reduce(gradient)
    return {key: value.detach() for key, value in found.items()} | {"gradient": gradient}


def on_megatron(measure: str, data_format: str, tensor_parallel: bool) -> dict[str, Tensor]:
    """The vocabulary cut over both ranks, or, without `tensor_parallel`, every sequence."""
    alone = [dist.new_group([rank]) for rank in range(RANKS)][dist.get_rank()]
    groups = (dist.group.WORLD, alone) if tensor_parallel else (alone, dist.group.WORLD)
    packing = stand_in(*groups)
    data, leaf = recorded()
    logits = torch.nested.nested_tensor_from_jagged(leaf.detach(), data["input_ids"].offsets())
    thd = data_format == "thd"
    placed, params, _ = (packing.preprocess_thd_engine if thd else packing.preprocess_bshd_engine)(logits)
    if tensor_parallel:
        placed = placed.chunk(RANKS, -1)[dist.get_rank()]
    loss = TrustRegionLossConfig(
        rule="dppo", constants={"delta": 0.1}, estimator="topk", k=K, convention="union", measure=measure
    )
    outputs = trust_region_loss(mcore_actor(loss), data=data, student_logits=placed, data_format=data_format)
    assert all(value.shape == placed.shape[:2] for value in outputs.values())
    if thd:
        gathered = {
            key: packing.postprocess_thd_engine(value, params, data["input_ids"], len(data["input_ids"]))
            for key, value in outputs.items()
        }
    else:
        gathered = {key: packing.postprocess_bshd_engine(value, params) for key, value in outputs.items()}
    return {key: value.values() for key, value in gathered.items()}


def refused() -> str:
    """What is said to logits with eight rows more than verl's packing has: as with padding for FP8."""
    stand_in(dist.group.WORLD, [dist.new_group([rank]) for rank in range(RANKS)][dist.get_rank()])
    data, _ = recorded()
    packed = int((data["input_ids"].offsets().diff() + 1).div(2, rounding_mode="floor").sum()) * 2
    placed = torch.zeros(1, packed + 8, V // RANKS)
    loss = TrustRegionLossConfig(rule="dppo", constants={"delta": 0.1})
    try:
        trust_region_loss(mcore_actor(loss), data=data, student_logits=placed)
    except UserError as error:
        return str(error)
    return ""


def mcore_actor(loss: TrustRegionLossConfig) -> Any:
    return McoreActorConfig(rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=loss)


def over_the_vocabulary(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The bare function, on logits with a huge offset and one token without mass."""
    logits, ids = cut_logits(dtype)
    width = V // RANKS
    part = logits[:, dist.get_rank() * width : (dist.get_rank() + 1) * width]
    return logp_and_entropy(part, ids, dist.group.WORLD)


def cut_logits(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 3 * torch.randn(40, V, generator=generator)
    logits[:20] += 300
    logits[5, 7] = -torch.inf
    ids = torch.randint(V, (40, 4), generator=generator)
    ids[0, 0] = -1
    return logits.to(dtype), ids


CASES = {
    "ulysses": over_the_sequence,
    "tensor_thd": lambda measure: on_megatron(measure, "thd", True),
    "tensor_bshd": lambda measure: on_megatron(measure, "bshd", True),
    "context_thd": lambda measure: on_megatron(measure, "thd", False),
    "context_bshd": lambda measure: on_megatron(measure, "bshd", False),
}


def work(rank: int, folder: str) -> None:
    """One of two processes: every case, into a file."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    found: dict[Any, Any] = {
        (case, measure): run(measure) for case, run in CASES.items() for measure in MEASURES
    }
    found["refused"] = refused()
    found |= {dtype: over_the_vocabulary(dtype) for dtype in (torch.float32, torch.bfloat16)}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def group(_: int, folder: str) -> None:
    """A process that loads verl once, and forks the others: neither torch nor gloo has begun."""
    mp.start_processes(work, (folder,), nprocs=RANKS, start_method="fork")
    mp.start_processes(topk_processes.work, (folder,), nprocs=topk_processes.PROCESSES, start_method="fork")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes have written what they found."""
    made = tmp_path_factory.mktemp("ranks")
    mp.spawn(group, (str(made),))
    return made


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[Any, Any]]:
    """What each of the two processes found."""
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("case", CASES)
def test_equal_to_whole_logits(results: list[dict[Any, Any]], case: str, measure: str) -> None:
    expected = whole(measure)
    for rank in range(RANKS):
        found = results[rank][case, measure]
        assert {"divergence", "policy_entropy"} <= set(found)
        assert ("log_probs" in found) == (case == "ulysses")
        for key, value in found.items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
    assert float(expected["divergence"].max()) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_and_entropy_of_a_cut_vocabulary(
    results: list[dict[Any, Any]], dtype: torch.dtype
) -> None:
    logits, ids = cut_logits(dtype)
    exact = logits.double().log_softmax(-1)
    entropy = torch.special.entr(exact.exp()).sum(-1)
    for rank in range(RANKS):
        logp, spread = results[rank][dtype]
        known = ids >= 0
        torch.testing.assert_close(
            logp[known].double(), exact.gather(1, ids.clamp_min(0))[known], rtol=1e-6, atol=2e-5
        )
        torch.testing.assert_close(spread.double(), entropy, rtol=1e-5, atol=1e-5)
        assert bool(logp.isfinite().all())


def test_logits_that_verl_packs_in_another_way(results: list[dict[Any, Any]]) -> None:
    """Padding that the loss does not know of is refused, not misread."""
    for rank in range(RANKS):
        assert results[rank]["refused"].startswith(
            "logits have 40 rows, verl's packing gives 32: switch off FP8"
        )


def test_topk_is_fetched_once_by_those_who_train_the_same_rows(folder: Path) -> None:
    topk = {TOPK_IDS, TOPK_LOGP}
    for process, dp_rank in enumerate(topk_processes.DP_RANKS):
        asked, trained = torch.load(folder / f"topk-{process}.pt")[True]
        leads = topk_processes.DP_RANKS.index(dp_rank) == process
        assert set(asked) == {"responses"} | (topk if leads else set())
        expected = topk_processes.rows(dp_rank)
        for name in ("responses", TOPK_IDS, TOPK_LOGP):
            values, offsets = trained[name]
            assert values.dtype == expected[name].dtype
            assert torch.equal(values, expected[name].values())
            assert torch.equal(offsets, expected[name].offsets())
        assert trained["temperature"] == 0.7


def test_a_batch_without_topk_is_trained_as_it_is(folder: Path) -> None:
    for process, dp_rank in enumerate(topk_processes.DP_RANKS):
        asked, trained = torch.load(folder / f"topk-{process}.pt")[False]
        assert asked == ["responses"]
        assert set(trained) == {"responses", "temperature"}
        assert torch.equal(trained["responses"][0], topk_processes.rows(dp_rank)["responses"].values())
