"""verl on CPUs: a platform for its PlatformRegistry and its FSDP engine for device "cpu".

Each Ray "GPU" is a CPU rank: verl counts ranks by Ray's GPU resource, which is only a number
(`ray.init(num_gpus=ranks)`), and Ray then sets CUDA_VISIBLE_DEVICES, which nothing reads.
It also requires: `actor.strategy=fsdp2` (verl places FSDP1's shards on "cpu:<device>", which does not exist), process
group `cpu:gloo` opened before verl's `cpu:gloo,cpu:gloo`, which torch refuses, `attn_implementation=sdpa`,
`use_remove_padding=False`.
"""

import resource
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform

PLATFORM_NAME = "cpu"


def _resident() -> int:
    """Resident memory of this process, in bytes."""
    return int(psutil.Process().memory_info().rss)


def _peak() -> int:
    """Peak resident memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# What verl 0.9.1 calls on `get_torch_device()` during FSDP training, checkpoints and weight updates (by a search of
# its source). With `is_available` False verl skips allocator clean-up.
DEVICE_MODULE = types.ModuleType("cppo_lab_cpu_device")
DEVICE_MODULE.__dict__.update(
    is_available=lambda: False,
    get_device_name=lambda: "CPU",
    synchronize=lambda: None,
    empty_cache=lambda: None,
    mem_get_info=lambda: psutil.virtual_memory()[1::-1],  # free and total bytes of the machine
    memory_allocated=_resident,
    memory_reserved=_resident,
    max_memory_allocated=_peak,
    max_memory_reserved=_peak,
    # On resume verl restores the device's generator from the state saved under its name, here "cpu".
    set_rng_state=torch.set_rng_state,
)


@PlatformRegistry.register(platform=PLATFORM_NAME)
class PlatformCPU(PlatformBase):
    """One process of a machine without accelerator. Never chosen by verl's detection, only by `use_cpu`."""

    device_name: ClassVar[str] = "cpu"
    vendor_name: ClassVar[str] = "cpu"
    device_module: ClassVar[types.ModuleType] = DEVICE_MODULE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False

    def current_device(self) -> torch.device:
        # verl passes this to `Tensor.to`, where an index would mean a GPU.
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def _nothing(self, *_: Any) -> None:
        """A CPU has no device to choose, to wait for, to trim or to profile."""

    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


def use_cpu() -> None:
    """Makes this process's platform the CPU, also on a machine with a GPU."""
    set_platform(PlatformCPU())


def register_engine() -> None:
    """Registers verl's FSDP engine, as it is, for device "cpu". After `use_cpu`: verl reads the device on import."""
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(
        FSDPEngineWithLMHead
    )
