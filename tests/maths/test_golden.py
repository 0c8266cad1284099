"""Every array of the golden file against our value of it, in both precisions."""

from pathlib import Path

import pytest
import torch

from cppo_lab.testing.vectors import DTYPES, TOLERANCE, Case, is_exact, is_input, load, value

PATH = Path(__file__).parents[1] / "oracles" / "vectors.npz"
VECTORS = load(PATH)
# part -> tolerance in float64 and in float32: mostly tighter than `cppo_lab.testing.vectors`, which takes any seed
STRICT = {
    "in": (1e-10, 2e-6),
    "D": (1e-10, 2e-6),
    "w": (1e-12, 1e-7),
    "delta_b": (1e-12, 1e-6),
    "constants": (1e-12, 0.0),
    "mdp": (1e-12, 0.0),
}
ABSOLUTE = ("in", "D", "w", "delta_b", "mask", "loss", "dloss", "extreme")


@pytest.mark.parametrize(
    "case, dtype",
    [
        *((case, dtype) for case in (*VECTORS.manifest["cases"], "extreme") for dtype in DTYPES),
        ("theory", DTYPES[0]),
    ],
    ids=str,
)
def test_case(case: str, dtype: torch.dtype) -> None:
    ours, wrong = Case(VECTORS, case, dtype), []
    for key in VECTORS.arrays:
        if not key.startswith(f"{case}/") or is_input(VECTORS, key):
            continue
        actual = value(ours, key)
        assert actual is not None and not actual.requires_grad, key
        assert not actual.is_floating_point() or actual.dtype == dtype, key
        part = "extreme" if case == "extreme" else key.split("/")[1]
        tolerance = STRICT.get(part, (TOLERANCE[dtype],) * 2)[DTYPES.index(dtype)]
        tolerance = 0.0 if is_exact(key) else tolerance
        relative = 0.0 if part in ABSOLUTE and not key.endswith("ratio") else tolerance
        try:
            expected = VECTORS.tensor(key, actual.dtype)
            torch.testing.assert_close(actual, expected, rtol=relative, atol=tolerance)
        except AssertionError as error:
            wrong.append(f"{key}: {' '.join(str(error).split())}")
    assert wrong == []
