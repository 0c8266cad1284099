"""The machine's NVIDIA GPUs through NVML (package nvidia-ml-py and a driver); nothing here fails without them."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import pynvml
except ImportError:
    pynvml = None

DRIVER = Path("/proc/driver/nvidia")  # the kernel module's description of itself


@dataclass(frozen=True)
class Inventory:
    """GPUs of the machine by the names of their models; versions are empty where they are not known."""

    names: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""  # the newest version that the driver supports


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """NVML, initialised; None if it is not available."""
    if pynvml is None:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def inventory(driver: Path = DRIVER) -> Inventory:
    """The machine's GPUs, from NVML, or otherwise from the files of the kernel module in `driver`."""
    with nvml() as library:
        if library is not None:
            with contextlib.suppress(library.NVMLError):
                return _by_nvml(library)
    return _by_kernel(driver)


def _by_nvml(library: Any) -> Inventory:
    count = library.nvmlDeviceGetCount()
    handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    cuda = library.nvmlSystemGetCudaDriverVersion()  # 12040 is 12.4
    return Inventory(
        tuple(library.nvmlDeviceGetName(handle) for handle in handles),
        library.nvmlSystemGetDriverVersion(),
        f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _by_kernel(driver: Path) -> Inventory:
    names, version = [], ""
    with contextlib.suppress(OSError):
        for path in sorted(driver.glob("gpus/*/information")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    with contextlib.suppress(OSError):
        words = (driver / "version").read_text(encoding="utf-8", errors="replace").partition("\n")[0].split()
        version = next((word for word in words if word[0].isdigit() and "." in word), "")
    return Inventory(tuple(names), version)


def visible(count: int, uuids: list[str], chosen: str | None) -> list[int]:
    """Which of `count` devices the value of CUDA_VISIBLE_DEVICES leaves; all of them for None.

    As CUDA reads it: entries after an invalid one are ignored.
    """
    if chosen is None:
        return list(range(count))
    found: list[int] = []
    for word in (part.strip() for part in chosen.split(",")):
        named = [i for i, uuid in enumerate(uuids) if word.startswith("GPU-") and uuid.startswith(word)]
        if word.isdecimal() and int(word) < count:
            found.append(int(word))
        elif len(named) == 1:
            found += named
        else:
            break
    return found


class Devices:
    """The devices that this process may use, opened for reading. `library` is what `nvml` gives."""

    def __init__(self, library: Any) -> None:
        self._library, self._handles = library, {}
        if library is None:
            return
        with contextlib.suppress(library.NVMLError):
            handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
            uuids = [library.nvmlDeviceGetUUID(handle) for handle in handles]
            chosen = visible(len(handles), uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
            self._handles = {i: handles[i] for i in chosen}

    def read(self) -> dict[str, float]:
        """Load of each device now, under MLflow's names; omitting values that a device does not report."""
        values: dict[str, float] = {}
        for i, handle in self._handles.items():
            with contextlib.suppress(self._library.NVMLError):
                memory = self._library.nvmlDeviceGetMemoryInfo(handle)
                values[f"gpu_{i}_memory_usage_megabytes"] = memory.used / 1e6
                values[f"gpu_{i}_memory_usage_percentage"] = memory.used / memory.total * 100
            with contextlib.suppress(self._library.NVMLError):
                load = self._library.nvmlDeviceGetUtilizationRates(handle)
                values[f"gpu_{i}_utilization_percentage"] = float(load.gpu)
            with contextlib.suppress(self._library.NVMLError):
                watts = self._library.nvmlDeviceGetPowerUsage(handle) / 1000
                values[f"gpu_{i}_power_usage_watts"] = watts
                limit = self._library.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
                values[f"gpu_{i}_power_usage_percentage"] = watts / limit * 100
        return values
