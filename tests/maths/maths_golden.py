"""The golden vectors, and our value of each of their arrays in both precisions."""

from collections.abc import Iterable
from pathlib import Path

import torch

from cppo_lab.testing.golden import Recomputation, load, value
from cppo_lab.testing.vectors import DTYPES, TOLERANCE

__all__ = [
    "ARRAYS",
    "DTYPES",
    "KEYS",
    "MANIFEST",
    "OURS",
    "PATH",
    "TOLERANCE",
    "VECTORS",
    "by_case",
    "golden",
    "keys",
    "ours",
]

PATH = Path(__file__).parents[1] / "oracles" / "vectors.npz"
VECTORS = load(PATH)
ARRAYS, MANIFEST = VECTORS.arrays, VECTORS.manifest
KEYS = list(ARRAYS)
OURS = {dtype: Recomputation(VECTORS, dtype) for dtype in DTYPES}


def golden(key: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    """One golden array; `dtype` None keeps the stored one."""
    return VECTORS.tensor(key, dtype)


def ours(key: str, dtype: torch.dtype) -> torch.Tensor:
    """Our value of a golden array."""
    actual = value(OURS[dtype], key)
    assert actual is not None
    return actual


def keys(*parts: str, of: tuple[str, ...] | None = None) -> list[str]:
    """Keys `<case>/<part>/<name>...` whose part is one of `parts`, and name one of `of`."""
    found = []
    for key in KEYS:
        case, part, name = (*key.split("/"), "")[:3]
        if case in VECTORS.cases and part in parts and (of is None or name in of):
            found.append(key)
    return found


def by_case(found: Iterable[str]) -> dict[str, list[str]]:
    """Keys by the case that they begin with."""
    groups: dict[str, list[str]] = {}
    for key in found:
        groups.setdefault(key.split("/")[0], []).append(key)
    return groups
