"""GPUs: what the machine has and how busy they are, also while one of them falls off the bus."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from cppo_lab.tracking import nvidia
from cppo_lab.tracking.nvidia import Devices, inventory, visible


class StandIn:
    """NVML of a machine with two GPUs; those in `gone` answer with errors."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        return i

    def _alive(self, handle: int) -> None:
        if handle in self.gone:
            raise self.NVMLError("GPU is lost")

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str:
        self._alive(handle)
        return "NVIDIA H100"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12040

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        self._alive(handle)
        return SimpleNamespace(used=20e9, total=80e9)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        self._alive(handle)
        return SimpleNamespace(gpu=70 + handle)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        self._alive(handle)
        return 350_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    library = StandIn()
    monkeypatch.setattr(nvidia, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library


def test_the_stand_in_has_only_what_nvml_has() -> None:
    ours = [name for name in vars(StandIn) if not name.startswith("_")]
    assert len(ours) > 8
    assert all(hasattr(pynvml, name) for name in ours)


def test_inventory_by_nvml(two: StandIn, tmp_path: Path) -> None:
    assert inventory(tmp_path) == nvidia.Inventory(("NVIDIA H100",) * 2, "550.54.15", "12.4")
    assert two.open == 0


def test_inventory_by_the_kernels_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "pynvml", None)
    assert inventory(tmp_path / "none") == nvidia.Inventory()
    for i in range(2):
        gpu = tmp_path / "gpus" / f"0000:0{i}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t {i}\n")
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 11\n"
    )
    assert inventory(tmp_path) == nvidia.Inventory(("NVIDIA A100-SXM4-80GB",) * 2, "535.104.05")


def test_a_lost_gpu_at_the_start_is_no_error(two: StandIn, tmp_path: Path) -> None:
    two.gone = {1}
    assert inventory(tmp_path) == nvidia.Inventory()
    assert two.open == 0


def test_reading(two: StandIn) -> None:
    devices = Devices(two)
    values = devices.read()
    assert values["gpu_0_utilization_percentage"] == 70
    assert values["gpu_1_utilization_percentage"] == 71
    assert values["gpu_1_memory_usage_megabytes"] == 20_000
    assert values["gpu_1_memory_usage_percentage"] == 25
    assert values["gpu_1_power_usage_watts"] == 350
    assert values["gpu_1_power_usage_percentage"] == 50
    two.gone = {1}
    assert devices.read() == {key: value for key, value in values.items() if key.startswith("gpu_0")}
    two.gone = set()
    assert devices.read() == values
    assert Devices(None).read() == {}


def test_only_the_devices_of_the_run_are_read(two: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert {name[:5] for name in Devices(two).read()} == {"gpu_1"}


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("GPU-b1", [1]),
        ("GPU-", []),  # means several
        ("1,7,0", [1]),
        ("MIG-3", []),
    ],
)
def test_visible(chosen: str | None, left: list[int]) -> None:
    assert visible(3, ["GPU-a0", "GPU-b1", "GPU-c2"], chosen) == left
