"""GPUs and what runs on them, shared and locked memory, open files, disk."""

import os
import re
import resource
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from cppo_lab.doctor.check import MISSING, OK, UNNEEDED, WARNING, Check
from cppo_lab.estimate import estimate
from cppo_lab.estimate.memory import CPU_OPTIMISER
from cppo_lab.spec import HubModel, LayoutSpec, RunSpec

SHARED = Path("/dev/shm")  # Ray's object store
DRIVER = Path("/proc/driver/nvidia/version")
SHARED_BYTES = {"cuda": 32e9, "cpu": 1e9}
OPEN_FILES = {"cuda": 65_536, "cpu": 1024}  # Ray's documentation asks for 65,536 on clusters
# bytes per parameter: float32 weights and AdamW's moments; Megatron keeps the bfloat16 weights as well
CHECKPOINT = {"fsdp2": 12, "megatron": 14}
CHECKPOINTS = 3  # the one that is being written, the one before it, and the best
# Bytes per parameter that rest in host memory: with layout.offload, and with AdamW's step on the CPU.
OFFLOADED = {"fsdp2": 12, "megatron": 14}
DRIVERS = {12: 525, 13: 580}  # the oldest driver of each CUDA, by NVIDIA's release notes
LEAST_DISK = 1e9


class Device(Protocol):
    """What torch says of a GPU; memory in bytes."""

    @property
    def name(self) -> str: ...

    @property
    def total_memory(self) -> int: ...


def check_devices(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """GPUs in number and memory, and the library by which they exchange gradients."""
    if run.core != "verl" or layout.device == "cpu":
        yield Check("GPUs", UNNEEDED, "the run needs none")
        return
    if find_spec("torch") is None:
        yield Check("GPUs", MISSING, "torch, which would find them, is not installed", "install torch first")
        return
    import torch

    if not torch.cuda.is_available():
        yield Check(
            "GPUs",
            MISSING,
            f"torch {torch.__version__} sees no CUDA device",
            f"layout={layout.name} needs {layout.devices_per_node} on this node; install a CUDA build of torch and its "
            "driver, or choose a small model with layout=cpu",
        )
        return
    yield from _gpus(
        run, layout, [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    )
    if torch.distributed.is_nccl_available():
        yield Check("NCCL", OK, ".".join(map(str, torch.cuda.nccl.version())))
    else:
        yield Check("NCCL", MISSING, "this torch is built without it", "install a CUDA build of torch")


def _gpus(run: RunSpec, layout: LayoutSpec, found: Sequence[Device]) -> Iterator[Check]:
    names = ", ".join(sorted({one.name for one in found}))
    smallest = min(one.total_memory for one in found)
    text = f"{len(found)} x {names}, {smallest / 1e9:.0f} GB"
    if len(found) < layout.devices_per_node:
        remedy = f"layout={layout.name} needs {layout.devices_per_node} on each node: choose another layout"
        yield Check("GPUs", MISSING, text, remedy)
    else:
        yield Check("GPUs", OK, text)
    if layout.nodes > 1:
        yield Check(
            "nodes",
            WARNING,
            f"layout={layout.name} has {layout.nodes}, of which this is one",
            "run `cppo doctor` on every node",
        )
    cost = estimate(run, layout, available=smallest)
    if cost is not None:
        status, remedy = OK, ""
        if not cost.memory.fits:
            status = WARNING
            remedy = (
                "an estimate: more nodes, a smaller layout.tokens_per_device or layout.offload=true take less"
            )
        yield Check("memory of a GPU", status, cost.memory.verdict, remedy)


def check_machine(run: RunSpec, layout: LayoutSpec, runs: Path) -> Iterator[Check]:
    """Shared and locked memory, open files, and room for checkpoints."""
    if run.core == "verl":
        yield _shared_memory(layout)
        yield _open_files(layout)
    if run.core == "verl" and layout.device == "cuda":
        yield _locked_memory()
        yield from _driver()
        yield from _host_memory(run, layout)
    yield _disk(run, layout, runs)


def _driver() -> Iterator[Check]:
    """NVIDIA's driver against the CUDA that torch is built for."""
    import torch

    built = torch.version.cuda
    if built is None:
        return  # said above: this torch sees no GPU
    wanted = DRIVERS.get(int(built.split(".")[0]))
    try:
        text = DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        yield Check("NVIDIA driver", WARNING, f"no {DRIVER}", "install NVIDIA's driver")
        return
    found = re.search(r"\b(\d{3,})\.\d+", text)
    if found is None or wanted is None:
        yield Check("NVIDIA driver", WARNING, f"of unknown version, for CUDA {built}")
    elif int(found[1]) < wanted:
        remedy = f"CUDA {built} takes driver {wanted} or newer"
        yield Check("NVIDIA driver", MISSING, found[0], remedy)
    else:
        yield Check("NVIDIA driver", OK, f"{found[0]}, for CUDA {built}")


def _host_memory(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """What parameters, gradients and the optimiser take of this node's memory while they rest there."""
    if not isinstance(run.model, HubModel) or not (layout.offload or layout.verl.get(CPU_OPTIMISER)):
        return
    wanted = run.model.parameters * 1e9 * OFFLOADED[layout.strategy] / layout.nodes
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{total / 1e9:.0f} GB on this node"
    if total >= wanted:
        yield Check("host memory", OK, text)
        return
    remedy = (
        f"layout.offload takes about {wanted / 1e9:.0f} GB of each node: more nodes, or layout.offload=false"
    )
    yield Check("host memory", WARNING, text, remedy)


def _shared_memory(layout: LayoutSpec) -> Check:
    if not SHARED.is_dir():
        return Check("shared memory", WARNING, f"no {SHARED}", "Ray will use the disk, which is slow")
    size, wanted = shutil.disk_usage(SHARED).total, SHARED_BYTES[layout.device]
    text = f"{size / 1e9:.1f} GB in {SHARED}"
    if size >= wanted:
        return Check("shared memory", OK, text)
    remedy = f"{wanted / 1e9:.0f} GB or more: docker run --shm-size, or mount -o remount,size=... {SHARED}"
    return Check("shared memory", WARNING, text, remedy)


def _open_files(layout: LayoutSpec) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES[layout.device]
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Check(
            "open files (ulimit -n)", OK, "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
        )
    return Check("open files (ulimit -n)", WARNING, str(soft), f"ulimit -n {wanted} before the run")


def _locked_memory() -> Check:
    """What NCCL may register with the network's devices; containers have a few megabytes unless told otherwise."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    name = "locked memory (ulimit -l)"
    if soft == resource.RLIM_INFINITY:
        return Check(name, OK, "unlimited")
    remedy = (
        "docker run --ulimit memlock=-1, or ulimit -l unlimited before the run: NCCL over InfiniBand takes it"
    )
    return Check(name, WARNING, f"{soft / 1e6:.1f} MB", remedy)


def _disk(run: RunSpec, layout: LayoutSpec, runs: Path) -> Check:
    """A folder that does not exist yet is judged by the nearest that does."""
    place = next(folder for folder in (runs, *runs.parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        remedy = "work in a folder that you can write to"
        return Check("runs folder", MISSING, f"{runs} cannot be made or written", remedy)
    wanted = LEAST_DISK
    if isinstance(run.model, HubModel):
        wanted = run.model.parameters * 1e9 * CHECKPOINT[layout.strategy] * CHECKPOINTS
    free = shutil.disk_usage(place).free
    text = f"{runs}: {free / 1e9:.0f} GB free"
    if free >= wanted:
        return Check("runs folder", OK, text)
    return Check("runs folder", WARNING, text, f"checkpoints of one run take about {wanted / 1e9:.0f} GB")
