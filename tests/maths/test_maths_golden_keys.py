"""No golden array goes unnoticed: each is an input or compared by a test, and a test reports all that differ."""

import pytest
import torch

import tests.maths.test_maths_golden_parts as parts
import tests.maths.test_maths_golden_rules as rules
from cppo_lab.vectors.parts import is_input
from tests.maths.maths_golden import DTYPES, KEYS, VECTORS, compare_all

GROUPED = [rules.MASKS, rules.TOKENS, rules.LOSSES, *parts.PARTS.values()]
COMPARED = {
    *(key for cases in GROUPED for found in cases.values() for key in found),
    *(key for key in KEYS if key.startswith("theory/")),  # test_theory_*, test_vectors
}


def test_every_key_is_an_input_or_compared() -> None:
    assert {key for key in KEYS if not is_input(VECTORS, key)} - COMPARED == set()


def test_nothing_is_both_an_input_and_compared() -> None:
    given = {key for key in KEYS if is_input(VECTORS, key)}
    assert {key for key in given & COMPARED if not key.startswith("theory/")} == set()


def test_a_failure_lists_every_key_that_differs_and_by_how_much() -> None:
    asked = []

    def compare(key: str, dtype: torch.dtype) -> None:
        asked.append((key, dtype))
        if key == "c" and dtype == torch.float32:
            raise LookupError("no array 'd'")
        actual = torch.tensor([0.0, 0.25 if key == "b" else 0.0], dtype=dtype)
        torch.testing.assert_close(actual, torch.zeros(2, dtype=dtype), rtol=0, atol=1e-3)

    with pytest.raises(pytest.fail.Exception) as caught:
        compare_all("abc", compare)
    assert asked == [(key, dtype) for key in "abc" for dtype in DTYPES]
    first, *lines = str(caught.value).splitlines()
    assert first == "3 of 6 comparisons failed"
    starts = ["b (torch.float64): AssertionError: ", "b (torch.float32): AssertionError: "]
    for line, start in zip(lines, starts, strict=False):
        assert line.startswith(start) and "difference: 0.25 at index (1,)" in line
    assert lines[2:] == ["c (torch.float32): LookupError: no array 'd'"]
