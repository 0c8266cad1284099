"""Checks a file of golden vectors: every array against our value, in float64 and in float32.

    python -m cppo_lab.testing.vectors FILE.npz     # 0: all agree; 1: an array differs; 2: the file cannot be read

Masks must agree exactly in both; everything else within TOLERANCE, relative or absolute. An array stored in
less than float64 is compared with float32's tolerance throughout. One that we do not know is listed, and no mismatch.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cppo_lab.errors import UserError, message, printable
from cppo_lab.testing.golden import SOFT, Recomputation, Vectors, is_input, load, unknown_columns, value

DTYPES = (torch.float64, torch.float32)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}
UNCOMPUTABLE = (LookupError, ValueError, RuntimeError, TypeError, ArithmeticError)


class Mismatch(NamedTuple):
    """One array that differs from ours, at the first such place."""

    key: str
    place: str
    expected: str
    got: str
    where: str

    def __str__(self) -> str:
        return f"{self.key}{self.place}: expected {self.expected}, got {self.got} ({self.where})"


@dataclass
class Report:
    """What a check found."""

    checked: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line per mismatch and per unknown key, the summary last."""
        return [
            *(f"MISMATCH {printable(str(mismatch))}" for mismatch in self.mismatches),
            *(f"UNKNOWN  {printable(key)}: not checked" for key in self.unknown),
            f"{self.checked} arrays checked, {len(self.mismatches)} mismatches, {len(self.unknown)} unknown keys",
        ]


def check_file(path: Path) -> Report:
    """Check every array of a vectors file.

    Raises:
        UserError: a file that cannot be read, or with nothing to check.
    """
    vectors = load(path)
    report = check(vectors)
    if not report.checked:
        raise UserError(f"{path} holds no array that can be checked: pass a vectors file with cases")
    return report


def check(vectors: Vectors) -> Report:
    """Check every array of `vectors`, and that no array is missing that its manifest lists."""
    report = Report(mismatches=_missing(vectors))
    report.unknown += [f"theory/constants column {name!r}" for name in unknown_columns(vectors)]
    both = [Recomputation(vectors, dtype) for dtype in DTYPES]
    for key in vectors.arrays:
        if is_input(vectors, key):
            continue
        known, mismatch = check_array(both, key)
        report.checked += known
        if not known:
            report.unknown.append(key)
        if mismatch:
            report.mismatches.append(mismatch)
    return report


def check_array(recomputations: list[Recomputation], key: str) -> tuple[bool, Mismatch | None]:
    """Whether the key is known, and how the array first differs from ours, if it does."""
    for ours in recomputations:
        name = str(ours.dtype).removeprefix("torch.")
        try:
            actual = value(ours, key)
            expected = ours.vectors.tensor(key)
        except UNCOMPUTABLE as error:
            text = (str(error).splitlines() or [type(error).__name__])[0]
            return True, Mismatch(key, "", "inputs to compute it from", "none", f"{name}: {text}")
        if actual is None:
            return False, None
        tolerance = TOLERANCE[ours.dtype] if expected.dtype == torch.float64 else TOLERANCE[torch.float32]
        if mismatch := compare(key, name, expected, actual, 0.0 if is_exact(key) else tolerance):
            return True, mismatch
    return True, None


def is_exact(key: str) -> bool:
    """Masks of 0 and 1, counts and flags have no tolerance."""
    _, part, name = (*key.split("/", 2), "", "")[:3]
    return (part == "mask" and name not in SOFT) or name in ("group_keep", "lengths", "prefix_counts")


def compare(key: str, where: str, expected: Tensor, actual: Tensor, tolerance: float) -> Mismatch | None:
    """None if |actual - expected| <= tolerance (1 + |expected|) everywhere; NaN never is."""
    if expected.shape != actual.shape:
        shapes = f"shape {list(expected.shape)}", f"shape {list(actual.shape)}"
        return Mismatch(key, "", *shapes, where)
    # In our dtype, so that a float32 value equals the float64 number it was rounded from.
    wanted = expected.to(actual.dtype) if actual.is_floating_point() else expected
    bad = ~((actual - wanted).abs() <= tolerance * (1 + wanted.abs()))
    if not bool(bad.any()):
        return None
    first = tuple(bad.nonzero()[0].tolist())
    others = int(bad.sum()) - 1
    where += f", and {others} more places" if others else ""
    values = f"{expected[first].item():.9g}", f"{actual[first].item():.9g}"
    return Mismatch(key, str(list(first)) if first else "", *values, where)


def _missing(vectors: Vectors) -> list[Mismatch]:
    """Arrays that the manifest lists and the file lacks."""
    listed = []
    for case, facts in vectors.cases.items():
        listed += [f"{case}/mask/{method}" for method in facts.get("methods", [])]
        for method in facts.get("objectives", []):
            listed += [f"{case}/{part}/{method}" for part in ("val", "grad")]
            modes = vectors.manifest.get("modes", [])
            listed += [f"{case}/{part}/{method}/{mode}" for part in ("loss", "dloss") for mode in modes]
    absent = [key for key in listed if key not in vectors.arrays]
    found = [Mismatch(key, "", "an array", "none", "listed in the manifest") for key in absent]
    # More arrays than the manifest counts are no mismatch: the unknown ones are listed.
    total = vectors.manifest.get("keys")
    if isinstance(total, int) and total > len(vectors.arrays) + 1 and not found:
        found = [
            Mismatch("manifest", "/keys", f"{total} arrays", str(len(vectors.arrays) + 1), "with itself")
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a check finds; 0 if nothing differs, 1 if something does."""
    parser = argparse.ArgumentParser(
        prog="python -m cppo_lab.testing.vectors",
        description="Check the rules against a file of golden vectors.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE.npz", help="in the format of tests/oracles/vectors.npz"
    )
    try:
        report = check_file(parser.parse_args(arguments).file)
    except UserError as error:
        parser.exit(2, f"cppo: error: {message(str(error))}\n")
    print("\n".join(report.lines()))
    return 1 if report.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
