"""No golden array goes unnoticed: each is an input or compared by a test."""

import tests.maths.test_maths_golden_parts as parts
import tests.maths.test_maths_golden_rules as rules
from cppo_lab.vectors.parts import is_input
from tests.maths.maths_golden import KEYS, VECTORS

COMPARED = {
    *rules.MASK_KEYS,
    *rules.TOKEN_KEYS,
    *rules.LOSS_KEYS,
    *(key for found in parts.PART_KEYS.values() for key in found),
    *(key for key in KEYS if key.startswith("theory/")),  # test_theory_*, test_vectors
}


def test_every_key_is_an_input_or_compared() -> None:
    assert {key for key in KEYS if not is_input(VECTORS, key)} - COMPARED == set()


def test_nothing_is_both_an_input_and_compared() -> None:
    given = {key for key in KEYS if is_input(VECTORS, key)}
    assert {key for key in given & COMPARED if not key.startswith("theory/")} == set()
