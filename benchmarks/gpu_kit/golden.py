"""The golden vectors, recomputed on a device in float64 and in float32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu_kit.places import ROOT
from cppo_lab.testing.golden import Recomputation, Vectors, is_input, load
from cppo_lab.testing.vectors import DTYPES, Mismatch, check_array

FILE = ROOT / "tests" / "oracles" / "vectors.npz"


@dataclass(frozen=True)
class OnDevice(Vectors):
    """Vectors whose tensors are on `device`."""

    device: str = "cpu"

    def tensor(self, key: str, dtype: torch.dtype | None = None) -> Tensor:
        return super().tensor(key, dtype).to(self.device)


def check_on(device: str) -> tuple[int, list[Mismatch]]:
    """How many arrays were compared, and those that differ by more than `cppo_lab.testing.vectors` allows.

    The theory's constants are left out: they are a few float64 numbers that nobody computes on a GPU.
    """
    read = load(FILE)
    both = [Recomputation(OnDevice(read.arrays, read.manifest, device), dtype) for dtype in DTYPES]
    checked, mismatches = 0, []
    for key in read.arrays:
        if is_input(read, key) or key.startswith("theory/"):
            continue
        known, mismatch = check_array(both, key)
        checked += known
        if mismatch:
            mismatches.append(mismatch)
    return checked, mismatches
