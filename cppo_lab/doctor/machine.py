"""Checks of GPUs and disk."""

import os
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from cppo_lab.core_records import core_of
from cppo_lab.doctor.check import MISSING, OK, UNNEEDED, WARNING, Check
from cppo_lab.doctor.core_checks import checks_of
from cppo_lab.estimate import estimate
from cppo_lab.spec import HubModel, LayoutSpec, RunSpec

# bytes per parameter: float32 weights and AdamW's moments; Megatron keeps the bfloat16 weights as well
CHECKPOINT = {"fsdp2": 12, "megatron": 14}
CHECKPOINTS = 3  # the one that is being written, the one before it, and the best
LEAST_DISK = 1e9


class Device(Protocol):
    """The properties of a GPU in torch; memory in bytes."""

    @property
    def name(self) -> str: ...

    @property
    def total_memory(self) -> int: ...


def check_devices(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """GPUs in number and memory, and the library by which they exchange gradients."""
    if not core_of(run.core).gpus(layout):
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
    """Check what the core needs from the machine, and the disk space for checkpoints."""
    yield from checks_of(run.core).machine(run, layout)
    yield _disk(run, layout, runs)


def _disk(run: RunSpec, layout: LayoutSpec, runs: Path) -> Check:
    """Check the disk of the folder; if it does not exist yet, that of the nearest existing parent."""
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
