"""verl's TrainingWorker with its own FSDP2 engine on CPU ranks. Import before any of verl's engines."""

import os
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, set_platform

_DEVICE = types.ModuleType("cpu_device")
_DEVICE.__dict__.update(
    is_available=lambda: False,
    synchronize=lambda: None,
    empty_cache=lambda: None,
    get_device_name=lambda: "CPU",
    **dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), lambda: 0
    ),
    mem_get_info=lambda: (0, 0),
)


class Cpu(PlatformBase):
    """What verl asks of a device, on a CPU."""

    device_name, vendor_name, device_module = "cpu", "cpu", _DEVICE
    is_available = lambda self: True  # noqa: E731
    is_platform_available = lambda self, use_smi_check=False: False  # noqa: E731
    current_device = lambda self: torch.device("cpu")  # noqa: E731
    device_count = lambda self: 1  # noqa: E731
    set_device = synchronize = manual_seed = manual_seed_all = lambda self, *given: None
    set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = set_device
    get_device_capability = lambda self, index=0: (None, None)  # noqa: E731
    communication_backend_name = lambda self: "gloo"  # noqa: E731
    visible_devices_envvar = lambda self: "CUDA_VISIBLE_DEVICES"  # noqa: E731
    nvtx_range = lambda self, message: nullcontext()  # noqa: E731
    ray_resource_name = lambda self: "GPU"  # noqa: E731
    ray_noset_envvars = lambda self: []  # noqa: E731
    is_ipc_supported = lambda self: False  # noqa: E731


set_platform(Cpu())


def join(rank: int, ranks: int, store: Path) -> None:
    """Makes this process rank `rank` of a gloo group that meets at the file `store`, and gives it verl's engine."""
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    register = EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")
    register(FSDPEngineWithLMHead)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), WG_BACKEND="ray")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29400")  # read by verl's Worker; nothing connects
    torch.distributed.init_process_group(
        "cpu:gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )


def make_worker(path: Path, *, micro_batch: int, remove_padding: bool = False, **optim: Any) -> Any:
    """A TrainingWorker on the model saved at `path`, all in float32; without loss."""
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
        use_torch_compile=False,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=micro_batch,
        infer_micro_batch_size_per_gpu=micro_batch,
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    model = HFModelConfig(
        path=str(path),
        load_tokenizer=False,
        use_remove_padding=remove_padding,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
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


def weights(worker: Any) -> dict[str, torch.Tensor]:
    """The whole parameters, gathered over the ranks."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in worker.engine.module.state_dict().items()
    }
