"""The part of a response that is its answer. What it is worth: test_grading.py."""

import time

import pytest

from cppo_lab.data.answers import answer_of, canonical, value


@pytest.mark.parametrize(
    "response, text, marked",
    [
        ("Answer:\n$$\n42\n$$", "$$\n42\n$$", True),
        ("Answer: $1{,}000$.", "$1000$", True),
        ("\\boxed{41}, no: \\boxed{\\frac{1}{2}}", "\\frac{1}{2}", True),
        ("\\boxed{41} and \\boxed{\\frac{1}{2}}", "41  and \\frac{1}{2}", True),
        ("Answer:", "Answer:", False),
        ("Answer: 42" + " " * 5_000, "42", True),
    ],
)
def test_the_answer_that_a_response_gives(response: str, text: str, marked: bool) -> None:
    answer = answer_of(response)
    assert answer is not None
    assert (answer.text, answer.marked) == (text, marked)


ALIKE = (
    ("1000", "+1000", "1e3", "1 000", "1'000", "10.0 \\times 10^{2}", "\\text{1,000}", "1.0E+3"),
    ("5/2", "2 1/2", "$2\\ 1/2$"),
    ("-3", "-3.00", "-\\frac{6}{2}"),
    ("5/3", "1.\\overline{6}"),
    ("1/2", "\\frac12", "\\dfrac{2}{4}", "\\tfrac{1}{2}"),
    ("(3,125)", "\\left(3,\\;125\\right)"),
    ("A", "Option A"),
    ("AB",),
    ("ab",),
    ("34",),
    ("3 4",),
    ("1/0",),
    ("-1/2", "-0.5", "\\frac{-1}{2}"),
)


@pytest.mark.parametrize("same", ALIKE)
def test_equal_answers_have_one_spelling(same: tuple[str, ...]) -> None:
    assert {canonical(text) for text in same} == {canonical(same[0])}
    others = [texts for texts in ALIKE if texts != same]
    assert canonical(same[0]) not in {canonical(text) for texts in others for text in texts}
    assert {canonical(canonical(text)) for text in same} == {canonical(same[0])}


@pytest.mark.parametrize(
    "text, number",
    [
        ("so the final answer is $\\boxed{41}$. It took 7 steps.", "41"),
        ("so it is $\\frac{41}{2}$.", "41/2"),
        ("We have 6 cases.\n\nThus x = 41", "41"),
        ("Total: 1,000.", "1000"),
        ("I do not know", "i do not know"),
    ],
)
def test_the_value_of_an_answer_in_words(text: str, number: str) -> None:
    assert value(text) == number


def test_only_the_end_is_looked_at() -> None:
    assert answer_of("Answer: 42\n" + "x" * 3_980).text == "42"  # type: ignore[union-attr]
    far = answer_of("Answer: 42\n" + "x" * 4_000)
    assert far is not None
    assert (far.text, far.marked) == ("x" * 1_000, False)


@pytest.mark.parametrize(
    "response",
    [
        "answer" + " " * 1_000_000,
        "answer " * 200_000,
        "answer:" * 200_000,
        "answer" + "*" * 1_000_000 + " " * 3_000,
        "\\boxed{" * 200_000,
        "{" * 1_000_000,
        "<think>" * 200_000,
        "</think>" * 200_000,
        "Answer: " + "\\," * 500_000,
        "Answer: " + "1," * 500_000,
        "Answer: " + "$" * 1_000_000,
        "$" * 3_000 + "Answer: " + "$" * 900,
        "<answer>" * 200_000,
        "Answer: 1" + " m^2" * 900,
        "Answer: " + "(A) " * 900,
        "Answer: " + "½" * 1_000 + " \\boxed{42}",
        "Answer: " + "$ $" * 900 + "\\boxed{" + "**" * 400 + "}",
        "Answer: 1" + " 000" * 900,
        "Answer: " + "1e" * 1_900,
        "Answer: " + "(" * 1_900 + "1" * 1_900,
        "x" * 3_900 + "\\boxed{1}",
        "\\boxed{1}" * 400,
        "Answer: " + "option " * 500,
    ],
    ids=lambda text: f"{text[:12]}... {len(text)}",
)
def test_megabytes_are_looked_at_in_milliseconds(response: str) -> None:
    begun = time.process_time()
    answer = answer_of(response)
    if answer is not None:
        canonical(answer.text), value(answer.text)
    assert time.process_time() - begun < 0.25
