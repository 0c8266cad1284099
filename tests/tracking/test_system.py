"""The load of machine and process: against what the kernel says, with GPUs that come and go."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mlflow.system_metrics.metrics import cpu_monitor, disk_monitor, gpu_monitor, network_monitor

from cppo_lab import schema
from cppo_lab.tracking import nvidia
from cppo_lab.tracking.system import PREFIX, Reading, SystemSampler
from tests.tracking.test_nvidia import StandIn
from tests.waiting import CEILING_SECONDS, until

MEBI = 2**20


def test_names_are_mlflows_and_known(tmp_path: Path) -> None:
    names = set(Reading(tmp_path, StandIn()).sample())
    assert all(schema.is_known_metric(PREFIX + name) for name in names)
    modules = (cpu_monitor, disk_monitor, gpu_monitor, network_monitor)
    text = "".join(inspect.getsource(module) for module in modules)
    theirs = {name.replace("{i}", "0") for name in re.findall(r'_metrics\[f?"([a-z_{}]+)"\]', text)}
    assert len(theirs) >= 12
    assert theirs <= names
    assert {name for name in names - theirs if "gpu_1" not in name} == {
        "process_cpu_percentage",
        "process_memory_megabytes",
    }
    assert not schema.is_known_metric("system/gpu_x_power_usage_watts")
    assert not schema.is_known_metric("system/anything")


def test_against_the_kernel(tmp_path: Path) -> None:
    """At a moment at which no other process takes or gives back gigabytes between the two readings."""
    reading = Reading(tmp_path, None)

    def agrees() -> bool:
        values = reading.sample()
        kernel = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(kernel[key].split()[0]) * 1024 / 1e6 for key in ("MemTotal", "MemAvailable"))
        disk = os.statvfs(tmp_path)
        memory = pytest.approx(total - free, abs=0.05 * total)
        available = pytest.approx(disk.f_bavail * disk.f_frsize / 1e6, rel=0.02)
        return (
            values["system_memory_usage_megabytes"] == memory
            and values["disk_available_megabytes"] == available
        )

    until("both readings agree", agrees)
    values = reading.sample()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    assert values["process_memory_megabytes"] >= 0.9 * resident


# A process that has 200 MB, says so, and computes without end.
HOLDS = "import os; block = bytearray(os.urandom(1024)) * (200 * 1024); print(flush=True)\nwhile True: block[0] ^= 1"


def test_workers_count(tmp_path: Path) -> None:
    before = Reading(tmp_path, None).sample()["process_memory_megabytes"]
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None
            worker.stdout.readline()
            reading = Reading(tmp_path, None)
            assert reading.sample()["process_memory_megabytes"] - before >= 200
            # Beside whatever else is here; a sample is of the time since the last one.
            until("its load is seen", lambda: reading.sample()["process_cpu_percentage"] > 1)
        finally:
            worker.kill()
    assert reading.sample()["process_memory_megabytes"] - before < 150  # and one that is gone does not


def test_means_and_peaks_since_the_last_time(tmp_path: Path) -> None:
    sampler = SystemSampler(tmp_path)
    assert sampler.drain() == {}
    for used in (10.0, 40.0, 10.0):
        sampler._add({"gpu_0_memory_usage_megabytes": used, "process_memory_megabytes": used / 10})
    sampler._add({"process_memory_megabytes": 2.0})  # the GPU is gone
    drained = sampler.drain()
    assert drained == {
        "system/gpu_0_memory_usage_megabytes": 20.0,
        "system/gpu_0_memory_peak_megabytes": 40.0,
        "system/process_memory_megabytes": 2.0,
        "system/process_memory_peak_megabytes": 4.0,
    }
    assert all(schema.is_known_metric(name) for name in drained)
    assert sampler.drain() == {}


def test_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn()
    monkeypatch.setattr(nvidia, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = tmp_path / "run"
    folder.mkdir()

    with SystemSampler(folder, every=0.05) as sampler:
        values = until("a sample", sampler.drain)
        assert values["system/gpu_1_utilization_percentage"] == 71
        assert 0 <= values["system/cpu_utilization_percentage"] <= 100
        library.gone = {0, 1}
        shutil.rmtree(folder)

        def without_disk() -> dict[str, float] | None:
            found = sampler.drain()  # of samples before it, too
            return None if "system/disk_available_megabytes" in found else found

        values = until("samples have no disk", without_disk)
        assert "system/gpu_1_utilization_percentage" not in values
        assert "system/cpu_utilization_percentage" in values
        assert library.open == 1
    until("the thread has ended", lambda: "system-sampler" not in {one.name for one in threading.enumerate()})
    assert library.open == 0
    sampler.drain()
    assert sampler.drain() == {}


def test_a_stopped_sampler_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    class Begun(Reading):
        def __init__(self, folder: Path, library: object) -> None:
            super().__init__(folder, library)
            begun.set()

    monkeypatch.setattr("cppo_lab.tracking.system.Reading", Begun)
    sampler = SystemSampler(tmp_path, every=10 * CEILING_SECONDS)
    SystemSampler(tmp_path).stop()  # never started
    sampler.start()
    assert begun.wait(CEILING_SECONDS)
    stopping = threading.Thread(target=sampler.stop, daemon=True)
    stopping.start()
    until("it has stopped", lambda: not stopping.is_alive())
    assert sampler._thread is not None and not sampler._thread.is_alive()
