"""verl's own functions on the CPU platform."""

from collections.abc import Iterator

import pytest
import torch
from verl.plugin.platform import platform_manager
from verl.utils import device, memory_utils
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager
from verl.utils.flops_counter import get_device_flops
from verl.utils.profiler import performance

from cppo_lab.cores.verl import platform_cpu

pytestmark = pytest.mark.verl


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(platform_manager, "_current_platform", None)
    platform_cpu.use_cpu()
    yield


def test_verl_sees_a_cpu() -> None:
    assert (device.get_device_name(), device.get_resource_name()) == ("cpu", "GPU")
    assert device.get_nccl_backend() == "gloo" and device.get_device_capability() == (None, None)
    assert torch.zeros(2).to(device.get_device_id()).device.type == "cpu"
    assert not device.is_support_ipc()


def test_it_is_never_detected_only_asked_for() -> None:
    assert not platform_cpu.PlatformCPU().is_platform_available(use_smi_check=True)


def test_memory_and_speed_are_read_without_an_accelerator() -> None:
    allocated, reserved, used, total = map(float, performance._get_current_mem_info())
    assert 0 < allocated == pytest.approx(reserved, rel=0.1) and 0 < used < total
    module = device.get_torch_device()
    assert module.max_memory_allocated() >= module.memory_allocated() * 0.9 > 10**7
    assert get_device_flops() > 0
    memory_utils.aggressive_empty_cache()


def test_random_state_survives_a_checkpoint() -> None:
    torch.manual_seed(1)
    saved = BaseCheckpointManager.get_rng_state()
    first = torch.rand(3)
    BaseCheckpointManager.load_rng_state(saved)
    assert torch.equal(torch.rand(3), first)
