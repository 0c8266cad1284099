"""The load of machine, process and GPUs while a run trains, under the names of MLflow's own sampler.

For a run on several machines, only the first one is sampled.
"""

import contextlib
import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from cppo_lab.tracking.nvidia import Devices, nvml

PREFIX = "system/"
RENEW_SECONDS = 60.0  # interval of the search for descendants, which reads the whole process table
# Metrics that also get a peak, since running out of memory ends a run.
_PEAKS = re.compile(r"(process|gpu_\d+)_memory(?:_usage)?_megabytes")


class SystemSampler:
    """Takes a sample every `every` seconds in a separate thread, from `start` to `stop`.

    `folder` is the run's; the disk that holds it is sampled. `drain` returns the means since the last call.
    """

    def __init__(self, folder: Path, every: float = 5.0) -> None:
        self._folder, self._every = folder, every
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._peaks: dict[str, float] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start sampling."""
        self._thread = threading.Thread(target=self._run, name="system-sampler", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop sampling; the samples so far can still be drained."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(self._every)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def drain(self) -> dict[str, float]:
        """Metrics of schema.py: means over the samples since the last call, and peaks; empty if there were none."""
        with self._lock:
            values = {name: total / self._counts[name] for name, total in self._sums.items()} | self._peaks
            self._sums.clear()
            self._counts.clear()
            self._peaks.clear()
        return {PREFIX + name: value for name, value in values.items()}

    def _run(self) -> None:
        with nvml() as library:
            reading = Reading(self._folder, library)
            while not self._ended.wait(self._every):
                with contextlib.suppress(OSError, psutil.Error):  # skip this sample
                    self._add(reading.sample())

    def _add(self, sample: Mapping[str, float]) -> None:
        with self._lock:
            for name, value in sample.items():
                self._sums[name] += value
                self._counts[name] += 1
                if match := _PEAKS.fullmatch(name):
                    peak = f"{match[1]}_memory_peak_megabytes"
                    self._peaks[peak] = max(value, self._peaks.get(peak, value))


class Reading:
    """One sample after the other. `library` is NVML, None without it."""

    def __init__(self, folder: Path, library: Any) -> None:
        self._folder, self._devices = folder, Devices(library)
        self._received, self._sent = _network()
        self._own = psutil.Process()
        self._family: dict[int, psutil.Process] = {}
        self._renewed = float("-inf")
        psutil.cpu_percent()  # the next call gives the mean since this one
        self._processes()

    def sample(self) -> dict[str, float]:
        """All values now; processor loads are means since the last sample. What cannot be read is left out."""
        memory = psutil.virtual_memory()
        received, sent = _network()
        values = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
            "network_receive_megabytes": received - self._received,
            "network_transmit_megabytes": sent - self._sent,
        }
        with contextlib.suppress(OSError):  # the folder may be gone
            disk = psutil.disk_usage(str(self._folder))
            values["disk_usage_percentage"] = disk.percent
            values["disk_usage_megabytes"] = disk.used / 1e6
            values["disk_available_megabytes"] = disk.free / 1e6
        return values | self._processes() | self._devices.read()

    def _processes(self) -> dict[str, float]:
        """The load of this process and its descendants, which include verl's workers."""
        if time.monotonic() - self._renewed >= RENEW_SECONDS:
            self._renewed = time.monotonic()
            with contextlib.suppress(psutil.Error):
                found = [self._own, *self._own.children(recursive=True)]
                self._family = {one.pid: self._family.get(one.pid, one) for one in found}
        load, memory = 0.0, 0.0
        for pid, process in list(self._family.items()):
            try:
                with process.oneshot():
                    load += process.cpu_percent()
                    memory += process.memory_info().rss / 1e6
            except psutil.Error:  # it has ended
                del self._family[pid]
        return {"process_cpu_percentage": load, "process_memory_megabytes": memory}


def _network() -> tuple[float, float]:
    """Megabytes that the machine has received and sent; 0 where it has no network."""
    counters = psutil.net_io_counters()
    return (counters.bytes_recv / 1e6, counters.bytes_sent / 1e6) if counters else (0.0, 0.0)
