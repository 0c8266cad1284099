"""What a run costs before it is run: GPU-hours, and the memory of one GPU.

Guarantees of this package:

- Pure arithmetic: it needs no GPU, no model and no file, only the run and its layout.
- Every assumed number is in `assumptions.py`, with unit and source; hours are good to a factor of `UNCERTAINTY`.
- Memory is that of the two peaks, training and rollout (`memory.py`); time is decoding plus training (`time.py`).
- A core without an estimate, and a run without a GPU, give None, never a guess (`estimate` below).

Begin with `estimate_on_gpus` below, then `shape.py` (what is known of model and run). Measured costs (preflights,
past runs) are in `cppo_lab.sweep.cost`.
"""

from dataclasses import dataclass

from cppo_lab.core_records import core_of
from cppo_lab.estimate.assumptions import UNCERTAINTY
from cppo_lab.estimate.memory import MemoryEstimate, estimate_memory
from cppo_lab.estimate.shape import amounts_of, shape_of
from cppo_lab.estimate.time import TimeEstimate, estimate_time
from cppo_lab.spec import LayoutSpec, RunSpec

__all__ = ["UNCERTAINTY", "CostEstimate", "MemoryEstimate", "TimeEstimate", "estimate", "estimate_on_gpus"]


@dataclass(frozen=True)
class CostEstimate:
    """Time and memory of one run."""

    time: TimeEstimate
    memory: MemoryEstimate


def estimate(run: RunSpec, layout: LayoutSpec, available: float | None = None) -> CostEstimate | None:
    """The cost of a run on GPUs as fast as an H100, each with `available` bytes, or the layout's if None.

    None for runs without GPUs, and for a core that has no estimate.
    """
    of_core = core_of(run.core).load("estimate")
    found: CostEstimate | None = of_core(run, layout, available) if of_core is not None else None
    return found


def estimate_on_gpus(run: RunSpec, layout: LayoutSpec, available: float | None = None) -> CostEstimate | None:
    """The estimate of a core that trains one model on all GPUs of its layout, and samples from it on the same ones."""
    if layout.device != "cuda":
        return None
    shape, amounts = shape_of(run), amounts_of(run)
    available = available or layout.device_memory_gb * 1e9
    return CostEstimate(
        estimate_time(shape, amounts, layout), estimate_memory(shape, amounts, layout, available)
    )
