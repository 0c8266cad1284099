"""DAPO's rule, by hand; tests/data/test_verl.py compares it with verl's own function."""

import pytest

from cppo_lab.data.grading import follows_answer_rule


@pytest.mark.parametrize(
    "response, truth, accepted",
    [
        ("answer:\n\n42", "42", True),
        ("Answer: $42$", "42", True),
        ("Answer: x = 5 cm", "5", True),
        ("Answer: 42\nAnswer: 41", "42", False),
        ("Answer: 42" + " " * 291, "42", False),  # "Answer:" stands before the last 300 characters
        ("Answer: 42" + " " * 290, "42", True),
        ("\\boxed{42}", "42", False),
        ("Answer: 073", "73", False),
    ],
)
def test_the_rule_by_hand(response: str, truth: str, accepted: bool) -> None:
    assert follows_answer_rule(response, truth) is accepted
