"""DAPO's rule against verl's own function."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.data.grading import follows_answer_rule, normalise
from tests.fuzz.mangling import fuzz

pytestmark = pytest.mark.verl

WORDS = (
    "Answer:",
    "answer :",
    "ANSWER:",
    "a ",
    "an ",
    "mbox",
    "x",
    "units",
    "square",
    "cents",
    "and",
    "frac",
    "sqrt",
)
SIGNS = (
    "$",
    "\\$",
    "}",
    "{",
    "=",
    ",",
    "{,}",
    ",\\!",
    ".",
    ".$",
    " ",
    "\n",
    "\\ ",
    "\\;",
    '"',
    "42",
    "1,000",
    "073",
    "-3",
)
COMMANDS = (
    *(
        "\\boxed{",
        "\\text{",
        "\\textbf{",
        "\\overline{",
        "\\frac",
        "\\sqrt2",
        "^\\circ",
        "^{\\circ}",
        "\\text{}^2",
    ),
    *("\\text{and}", "\\text{m}", "\\text{\ns}", "\\dots", "\\ldots", "\\mathrm{th}", "٣", "²"),
)
PIECES = st.sampled_from((*WORDS, *SIGNS, *COMMANDS))
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join)


@fuzz(200)
@given(response=TEXTS, truth=TEXTS)
def test_the_rule_is_verls(response: str, truth: str) -> None:
    from verl.utils.reward_score.math_dapo import is_correct_minerva, normalize_final_answer

    for text in (response, truth, f"{response}Answer:{truth}"):
        assert normalise(text) == normalize_final_answer(text)
        # The 300 characters are cut in verl's compute_score. Its fall-back to \boxed{} is newer than DAPO.
        assert follows_answer_rule(text, truth) == is_correct_minerva(text[-300:], truth)[0]


def test_every_expression_that_verl_takes_away_is_taken_away() -> None:
    from verl.utils.reward_score.math_dapo import REMOVED_EXPRESSIONS, SUBSTITUTIONS, normalize_final_answer

    for before in [*REMOVED_EXPRESSIONS, *(before for before, _ in SUBSTITUTIONS)]:
        for text in (before, f"4{before}2", f"${before}42$", f"\\text{{4}}{before}"):
            assert normalise(text) == normalize_final_answer(text)
