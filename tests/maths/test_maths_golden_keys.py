"""No golden array goes unnoticed: each is an input or compared by a test, and a test reports all that differ."""

from itertools import product

import pytest
import torch

import tests.maths.test_maths_golden_parts as parts
import tests.maths.test_maths_golden_rules as rules
from cppo_lab.testing.golden import is_input
from tests.maths.maths_cases import check_all
from tests.maths.maths_golden import DTYPES, KEYS, VECTORS

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


def test_a_failure_lists_every_case_that_differs_and_by_how_much() -> None:
    asked = []

    def compare(key: str, dtype: torch.dtype) -> None:
        asked.append((key, dtype))
        if key == "c" and dtype == torch.float32:
            raise LookupError("no array 'd'")
        actual = torch.tensor([0.0, 0.25 if key == "b" else 0.0], dtype=dtype)
        torch.testing.assert_close(actual, torch.zeros(2, dtype=dtype), rtol=0, atol=1e-3)

    with pytest.raises(pytest.fail.Exception) as caught:
        check_all(compare, product("abc", DTYPES))
    assert asked == list(product("abc", DTYPES))
    first, *lines = str(caught.value).splitlines()
    assert first == "3 of 6 cases failed"
    for line, dtype in zip(lines[:2], DTYPES, strict=True):
        assert line.startswith(f"b, {dtype}: AssertionError: ") and "difference: 0.25 at index (1,)" in line
    assert lines[2:] == ["c, torch.float32: LookupError: no array 'd'"]
    with pytest.raises(AssertionError, match="no case"):
        check_all(compare, [])
