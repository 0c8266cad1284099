"""verl's TrainingWorker with its own FSDP2 engine on CPU ranks. Import before any of verl's engines."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cppo_lab.cores.verl import platform_cpu

platform_cpu.use_cpu()


@cache
def load() -> None:
    """Load verl's engine, once for this process and those forked from it."""
    platform_cpu.register_engine()


def join(rank: int, ranks: int, store: Path) -> None:
    """Makes this process rank `rank` of a gloo group that meets at the file `store`, and gives it verl's engine."""
    load()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), WG_BACKEND="ray")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29400")  # read by verl's Worker; nothing connects
    torch.distributed.init_process_group(
        "cpu:gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )


def make_worker(
    path: Path,
    *,
    micro_batch: int,
    remove_padding: bool = False,
    load_tokenizer: bool = False,
    master_dtype: str = "fp32",
    lora: tuple[int, int] = (0, 0),
    **optim: Any,
) -> Any:
    """A TrainingWorker on the model saved at `path`, all in float32; without loss. `lora`: rank and alpha."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )
    from verl.workers.engine_workers import TrainingWorker

    engine = FSDPEngineConfig(
        strategy="fsdp2",
        model_dtype=master_dtype,
        use_torch_compile=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=micro_batch,
        infer_micro_batch_size_per_gpu=micro_batch,
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    model = HFModelConfig(
        path=str(path),
        load_tokenizer=load_tokenizer,
        use_remove_padding=remove_padding,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
        lora_rank=lora[0],
        lora_alpha=lora[1],
        lora={"merge": True},
    )
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=engine,
            optimizer_config=FSDPOptimizerConfig(**optim),
            checkpoint_config=CheckpointConfig(),
        )
    )
    worker.reset()
    return worker


def sent(worker: Any) -> dict[str, torch.Tensor]:
    """What the rollout engine gets: whole weights under the hub's names."""
    parameters, adapter = worker.engine.get_per_tensor_param(base_sync_done=True)
    assert adapter is None
    return {name: value.detach().clone() for name, value in parameters}


def weights(worker: Any) -> dict[str, torch.Tensor]:
    """The whole parameters, gathered over the ranks."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in worker.engine.module.state_dict().items()
    }
