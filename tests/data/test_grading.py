"""Grades: a table of answers, agreement with math-verify, texts of all kinds."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.data import grading
from cppo_lab.data.grading import close_pools
from cppo_lab.data.reward import compute_score
from tests.fuzz.mangling import fuzz
from tests.waiting import CEILING_SECONDS

# Without the limit of normal use: a right answer may take as long as this machine needs for it.
grade = partial(grading.grade, limit_seconds=CEILING_SECONDS)
RIGHT, WRONG = 1.0, 0.0


@pytest.fixture(autouse=True, scope="module")
def _no_process_is_left() -> Iterator[None]:
    yield
    close_pools()


# Answer after "Answer: ", truth, verdict.
ANSWERS = [
    # Whole numbers.
    ("42", "42", RIGHT),
    ("43", "42", WRONG),
    ("$42$", "42", RIGHT),
    ("$42$.", "42", RIGHT),
    ("\\boxed{42}", "42", RIGHT),
    ("$\\boxed{42}$", "42", RIGHT),
    ("\\(42\\)", "42", RIGHT),
    ("\\[42\\]", "42", RIGHT),
    ("`42`", "42", RIGHT),
    ("073", "73", RIGHT),
    ("73", "073", RIGHT),
    ("-3", "-3", RIGHT),
    ("3", "-3", WRONG),
    ("$-3$", "-3", RIGHT),
    ("−3", "-3", RIGHT),
    ("+3", "3", RIGHT),
    ("-0", "0", RIGHT),
    ("999999999999999999999999", "999999999999999999999999", RIGHT),
    ("999999999999999999999998", "999999999999999999999999", WRONG),
    # Thousands.
    ("1,000", "1000", RIGHT),
    ("1000", "1,000", RIGHT),
    ("$1{,}000$", "1000", RIGHT),
    ("$1\\,000$", "1000", RIGHT),
    ("1,000,000", "1000000", RIGHT),
    ("1,000,001", "1000000", WRONG),
    # Units and words.
    ("42 cm", "42", RIGHT),
    ("42 minutes", "42", RIGHT),
    ("$42\\text{ cm}$", "42", RIGHT),
    ("$42^\\circ$", "42", RIGHT),
    ("$\\$42$", "42", RIGHT),
    ("the sum is 42", "42", RIGHT),
    ("four", "4", WRONG),
    ("unknown", "42", WRONG),
    # Equations: the last side counts.
    ("x = 5", "5", RIGHT),
    ("$m+n = 42$", "42", RIGHT),
    ("6*7 = 42", "42", RIGHT),
    ("x = 5", "6", WRONG),
    # Decimals, fractions, percent. math-verify takes 42% for 42, and not for 0.42.
    ("42.0", "42", RIGHT),
    ("42.5", "42", WRONG),
    ("1/2", "\\frac{1}{2}", RIGHT),
    ("\\frac{1}{2}", "0.5", RIGHT),
    ("\\frac12", "\\frac{1}{2}", RIGHT),
    ("\\dfrac{2}{4}", "\\frac{1}{2}", RIGHT),
    ("-\\frac{1}{2}", "\\frac{-1}{2}", RIGHT),
    ("1\\frac{1}{2}", "\\frac{3}{2}", RIGHT),
    ("0.3333333", "\\frac{1}{3}", RIGHT),
    ("0.33", "\\frac{1}{3}", WRONG),
    ("\\frac{1}{3}", "\\frac{1}{2}", WRONG),
    ("42%", "42", RIGHT),
    ("$42\\%$", "0.42", WRONG),
    # Roots, powers and other expressions.
    ("2\\sqrt{2}", "\\sqrt{8}", RIGHT),
    ("\\sqrt8", "2\\sqrt{2}", RIGHT),
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", RIGHT),
    ("\\sqrt{2}+\\sqrt{3}", "\\sqrt{5+2\\sqrt{6}}", RIGHT),
    ("\\sqrt{2}", "1.41", WRONG),
    ("\\pi \\cdot 2", "2\\pi", RIGHT),
    ("\\frac{22}{7}", "\\pi", WRONG),
    ("2^{10}", "1024", RIGHT),
    ("10!", "3628800", RIGHT),
    ("\\binom{5}{2}", "10", RIGHT),
    ("3 \\times 4", "12", RIGHT),
    ("1.5 \\times 10^3", "1500", RIGHT),
    ("\\log_2 8", "3", RIGHT),
    ("x^2+2x+1", "(x+1)^2", RIGHT),
    ("x^2+2x+2", "(x+1)^2", WRONG),
    ("3+4i", "4i+3", RIGHT),
    ("\\infty", "\\infty", RIGHT),
    # Sets, intervals, inequalities, several numbers.
    ("(1, 2]", "(1,2]", RIGHT),
    ("[1, 2]", "(1,2)", WRONG),
    ("(2, 1)", "(1,2)", WRONG),
    ("\\{1, 2\\}", "\\{2,1\\}", RIGHT),
    ("$\\{1,2,3\\}$", "\\{1,2\\}", WRONG),
    ("1, 2", "\\{1,2\\}", RIGHT),
    ("5 > x", "x<5", RIGHT),
    ("x < 6", "x<5", WRONG),
    ("12 or 13", "12", WRONG),
    ("$12$ or $13$", "12", WRONG),
    ("42 and 43", "42", WRONG),
]
# As above, where math-verify alone would decide otherwise.
CLEANED = [
    # A space behind a comma separates two numbers, a thousands separator joins them.
    *[
        (f"(3{comma}125)", "(3,\\,125)", RIGHT)
        for comma in (",", ", ", ",\\,", ",\\;", ",\\ ", ",~", ",\\quad ")
    ],
    *[("3125", f"(3{comma}125)", WRONG) for comma in (",", ",\\,", ",\\;", ",\\:", ",\\ ", ",~", ",\\quad ")],
    *[(f"(3{comma}125)", "(3, 125)", WRONG) for comma in ("{,}", ",\\!", "\\,")],
    ("3\\,125", "3,\\,125", WRONG),
    ("3125", "3,\\,125", WRONG),
    ("(3,\\,125]", "(3,125)", WRONG),
    ("[3,\\;125)", "[3,125)", RIGHT),
    ("\\{3,\\,125\\}", "\\{125,3\\}", RIGHT),
    *[(f"1{mark}042", "1042", RIGHT) for mark in ("{,}", ",\\!", "\\,", "\\;", "\\ ", "\\!", "~", "\u202f")],
    ("$1{,}234{,}567$", "1234567", RIGHT),
    # LaTeX's spaces around an answer or a truth.
    *[
        (f"{space}42{space}", "42", RIGHT)
        for space in ("\\,", "\\;", "\\!", "\\:", "\\ ", "~", "\\quad ", "\\qquad ")
    ],
    *[("x+1", f"x+1{space}", RIGHT) for space in ("\\,", "\\;", "\\!", "\\ ", "~", "\\quad", ".\\,", "\\,.")],
    ("x+2", "x+1\\,", WRONG),
    ("$x+1\\,.$", "x+1", RIGHT),
    # Currencies and percent.
    *[
        (f"{sign}42", "42", RIGHT)
        for sign in ("\\$", "$", "\\$ ", "\\text{\\$}", "US\\$", "€", "£", "¥", "\\pounds ")
    ],
    *[(f"{sign}9,500", "9500", RIGHT) for sign in ("\\$", "$", "€")],
    ("-\\$42", "-42", RIGHT),
    ("\\$-42", "-42", RIGHT),
    ("42\\$", "42", RIGHT),
    ("42€", "42", RIGHT),
    ("\\$43", "42", WRONG),
    ("\\$42.50", "42.5", RIGHT),
    *[("198", f"198{percent}", RIGHT) for percent in ("\\%", "%", " \\%", "\\text{ percent}")],
    *[(f"50{percent}", "50\\%", RIGHT) for percent in ("%", "\\%", " percent", "％", "")],
    *[(f"50{percent}", "0.5", WRONG) for percent in ("%", "\\%", " percent")],
    ("0.5", "50\\%", WRONG),
    # Units, remarks, texts.
    ("42 $(n=5)$", "42", RIGHT),
    ("42 $(n=5)$", "5", WRONG),
    ("42 (n \\ge 5)", "42", RIGHT),
    ("$42\\quad (n=5)$", "42", RIGHT),
    ("42 (where $n=5$)", "42", RIGHT),
    ("20 $cm^{2}$", "20", RIGHT),
    ("42\\text{ cm}^2", "42", RIGHT),
    ("42~\\mathrm{cm}", "42", RIGHT),
    ("10^5 meters", "100000", RIGHT),
    ("\\frac{1}{2} cm", "\\frac{1}{2}", RIGHT),
    ("42个", "42", RIGHT),
    ("Monday", "\\text{Monday}", RIGHT),
    ("Tuesday", "\\text{Monday}", WRONG),
    ("ab + cd", "cd+ab", RIGHT),
    # Several answers, of which one is right.
    *[
        (form.format(a="12", b="13"), truth, WRONG)
        for form in (
            *(
                "either {a} or {b}",
                "{a} cm or {b} cm",
                "{a} or {b} cm",
                "{a} cm, {b} cm",
                "{a} (or {b})",
                "{a}或{b}",
            ),
            *("maybe {a}, maybe {b}", "{a} or, if n is odd, {b}", "{a} hours {b} minutes", "`{a}` or `{b}`"),
            *("${a}$ cm or ${b}$ cm", "either ${a}$ or ${b}$", "\\boxed{{{a}}} cm or \\boxed{{{b}}} cm"),
            *(
                "\\text{{either }} {a} \\text{{ or }} {b}",
                "\\${a} or \\${b}",
                "${a} or ${b}",
                "{a}\\% or {b}\\%",
            ),
        )
        for truth in ("12", "13")
    ],
    *[
        (form.format("xx"), truth, WRONG)
        for form in ("5 {0} - 5 {0} + 13", "$5\\text{{ {0}}} - 5\\text{{ {0}}} + 13 cm$")
        for truth in ("5", "13")
    ],
    ("sqrt 2", "2", WRONG),
    ("sqrt(2)", "\\sqrt{2}", RIGHT),
    ("log 8", "8", WRONG),
    # Other alphabets.
    ("４２", "42", RIGHT),
    ("（３，４）", "(3,4)", RIGHT),
    ("42。", "42", RIGHT),
    ("10 - 2√5", "10-2\\sqrt{5}", RIGHT),
    ("10 − 2√5", "10+2\\sqrt{5}", WRONG),
    ("½", "0.5", RIGHT),
    ("2π", "2\\pi", RIGHT),
    # A formula or code over several lines.
    *[
        (f"{opening}{body}{closing}", "42", RIGHT)
        for opening, closing in (
            *(
                ("$", "$"),
                ("$$", "$$"),
                ("\\(", "\\)"),
                ("\\[", "\\]"),
                ("", ""),
                ("**", "**"),
                ("```\n", "\n```"),
            ),
            *(
                (f"\\begin{{{name}}}\n", f"\n\\end{{{name}}}")
                for name in ("align*", "align", "equation", "gather*")
            ),
            *(("```latex\n", "\n```"), ("$$\\begin{aligned}\n", "\n\\end{aligned}$$")),
        )
        for body in ("\\boxed{\n42\n}", "\\boxed{42}")
    ],
    ("$\n42\n$", "42", RIGHT),
    ("\\begin{align*}\n x &= 6 \\cdot 7 \\\\ &= 42\n\\end{align*}", "42", RIGHT),
    ("\\begin{align*}\n x &= 1 \\\\ y &= 2\n\\end{align*}", "2", WRONG),
    ("$42\nIt costs $5", "42", RIGHT),
    # Units that are made of others, and marks around a number.
    *[
        (answer, "42", RIGHT)
        for answer in (
            *(
                "42 m/s",
                "$42$ m/s",
                "42 m/s²",
                "42 m s^{-1}",
                "42\\,\\mathrm{m\\,s^{-1}}",
                "42 N·m",
                "42 J/(kg·K)",
            ),
            *(
                "42 km per hour",
                "42 people/km^2",
                "42 m³",
                "42 [m/s]",
                "42 °C",
                "\\boxed{42 m/s}",
                "42\\ \\frac{m}{s}",
            ),
            *(
                "__42__",
                "_42_",
                "“42”",
                "\\underline{42}",
                "42 \\square",
                "42 ∎",
                "≈42",
                "#42",
                "→ 42",
                "42 ✓",
            ),
            *(
                "42 — the sum",
                "42 (two solutions)",
                "forty-two (42)",
                "42 or 42",
                "6*7 => 42",
                "4.2e1",
                "42—exactly",
            ),
        )
    ],
    ("1,000\\,\\text{m}^2", "1,000", RIGHT),
    (".998,.965 cm", ".998,.965", RIGHT),
    ("-1,0,1°", "-1,0,1", RIGHT),
    ("42 m/s", "41", WRONG),
    ("x = 2 (y>0)", "x=2 (y>0)", RIGHT),
    # Powers of ten, mixed numbers, minus signs.
    *[
        (answer, "1000", RIGHT)
        for answer in ("1e3", "1E+3", "1.0e3", "10**3", "1 000", "1’000", "1'000", "1 thousand")
    ],
    *[
        (answer, "0.0015", RIGHT)
        for answer in ("1.5e-3", "1.5×10⁻³", "1.5*10^-3", "1.5 \\cdot 10^{-3}", "15E-4")
    ],
    ("1e3", "1e4", WRONG),
    ("0.001", "1e-3", RIGHT),
    *[
        (f"{answer}", "\\frac{5}{2}", RIGHT)
        for answer in ("2 1/2", "$2 1/2$", "2\\ 1/2", "2½", "5⁄2", "5÷2", "2 1/2 cm")
    ],
    *[
        (f"{sign}{answer}", "-5/2", RIGHT)
        for sign in ("-", "–", "minus ")
        for answer in ("2 1/2", "2\\frac{1}{2}", "5/2")
    ],
    *[("2 1/2", truth, WRONG) for truth in ("1", "21/2", "11", "2")],
    ("5/2", "2 1/2", RIGHT),
    *[("2 3", truth, WRONG) for truth in ("23", "2", "3", "6")],
    *[(f"{minus}3", "-3", RIGHT) for minus in "−–—‒‐‑﹣－⁻"],
    ("5–2", "3", RIGHT),
    ("negative 3", "-3", RIGHT),
    # Two answers without the word "or".
    *[
        (form, truth, WRONG)
        for form in (
            *(
                "12 & 13",
                "12 \\& 13",
                "12 -> 13",
                "12 → 13",
                "12 --> 13",
                "12 => 13",
                "12 <-> 13",
                "12 | 13",
                "12|13",
            ),
            *(
                "12 ~ 13",
                "12...13",
                "12 … 13",
                "12 ⇒ 13",
                "12\\to 13",
                "12 \\rightarrow -13",
                "12 \\lor 13",
                "12 \\cup 13",
            ),
            *(
                "12?13",
                "12 ∨ 13",
                "12 @ 13",
                "12 # 13",
                "#12 13",
                "12、13",
                "12 • 13",
                "12\\\\13",
                "12 + or 13",
            ),
            *("$12$ $13$", "$12$/$13$", "$12$ & $13$", "12–13", "12; 13", "12 i.e. 13"),
            *(
                "12 or thirteen",
                "twelve or 13",
                "12 and thirteen",
                "12/thirteen",
                "12 ; thirteen",
                "12 maybe thirteen",
            ),
            *(
                "12 or thirteen apples",
                "12 \\ \\text{thirteen}",
                "12 \\text{ or thirteen}",
                "12 OR 13",
                "12 → thirteen",
                "12 \\text{ or 13}",
                "12 or \\text{13}",
                "12 \\mathbf{13}",
                "12 \\text{(or 13)}",
                "12 \\text{ if n is even, 13 if odd}",
            ),
        )
        for truth in ("12", "13")
    ],
    ("12 or one", "12", WRONG),
    ("12 \\text{ cm}^2", "12", RIGHT),
    ("\\mathbf{12}", "12", RIGHT),
    ("\\frac{\\mathbf{1}}{2}", "1/2", RIGHT),
    ("\\text{12 or 13}", "12", WRONG),
    ("12 and 13", "12,13", RIGHT),
    ("12 cm and 13 cm", "12,13", RIGHT),
]
RESPONSES = [
    ("First \\boxed{41}, no: \\boxed{42}", "42", RIGHT),
    ("First \\boxed{42}, no: \\boxed{41}", "42", WRONG),
    ("Answer: 42\nAnswer: 41", "42", WRONG),
    ("Answer:\n\n$$\\frac{84}{2}$$\n", "42", RIGHT),
    ("The final answer is 42.", "42", RIGHT),
    ("so the result is 42.", "42", RIGHT),
    ("so the result is 43.", "42", WRONG),
    ("I do not know", "42", WRONG),
    ("", "42", WRONG),
    ("<think>Answer: 41</think> Answer: 42", "42", RIGHT),
    ("<think>Answer: 42</think> Answer: 41", "42", WRONG),
    ("<think>It is 42. Answer: 42", "42", WRONG),
    ("<think>a</think>b<think>c Answer: 42", "42", WRONG),
    ("<think>a</think>Answer: 42<think>", "42", WRONG),
    ("<think>a</think>b<think>c</think>Answer: 42", "42", RIGHT),
    ("<think>a<think>b</think>Answer: 42", "42", RIGHT),
    ("So $\\boxed{\\,42\\,}$", "42", RIGHT),
    ("So \\fbox{42}.", "42", RIGHT),
    ("So \\boxed 42.", "42", RIGHT),
    ("So \\boxed {42}.", "42", RIGHT),
    ("\\boxed{Answer: 42}", "42", RIGHT),
    ("答案：42", "42", RIGHT),
    ("最终答案是：$42$", "42", RIGHT),
    ("答案：41\n等于42", "42", WRONG),
    ("解答：先算 7。答：42", "42", RIGHT),
    ("【答案】42", "42", RIGHT),
    ("<answer>42</answer> took 7 steps", "42", RIGHT),
    ("<Answer>\n$$42$$\n</Answer> 7", "42", RIGHT),
    ("<answer>41</answer><answer>42</answer> 7", "42", RIGHT),
    ("<final_answer>Answer: 42</final_answer>", "42", RIGHT),
    ("Answer: <answer>42</answer>", "42", RIGHT),
    ("<answer>42</answer>", "41", WRONG),
    ("<answer></answer> so it is 42", "42", RIGHT),
    ("Answer: $y_1 = x^2$\n$y_2=x^3$.", "$y_1=x^2$\n$y_2=x^3$", RIGHT),
    ("等于42", "42", RIGHT),
    ("等于４２。", "42", RIGHT),
    ("so it is 50%.", "50", RIGHT),
    ("so it is 50%.", "0.5", WRONG),
    ("The final answer is 12 or 13.", "12", WRONG),
    ("The final answer is 12 or 13.", "13", WRONG),
    ("The final answer is 42. It took 7 steps.", "42", RIGHT),
]
# Of files that people train on: math-verify cannot read them, or not as what they mean.
TRUTHS = (
    *(
        "x+1\\,",
        "1;$\\frac{8}{9}$",
        "20 $cm^{2}$",
        "12 or 13",
        "either 12 or 13",
        "3:4",
        "10:30 am",
        "\\text{(B)}",
        "Yes",
    ),
    *(
        "no solution",
        "(3,\\,125)",
        "\\$9,500",
        "50\\%",
        "42 (n=5)",
        "f(x)=\\begin{cases}1\\\\2\\end{cases}",
        "±3",
        "{",
    ),
    *(
        "2 hours 30 minutes",
        "x \\in (1,2]",
        "A, B",
        "\\frac{1}{",
        "a_n",
        "等于42",
        "$12$ cm or $13$ cm",
    ),
    *(
        "\\left\\{\\begin{array}{l}\nx=1\\\\\ny=2\n\\end{array}\\right.",
        "\\begin{pmatrix}\n1\\\\\n2\n\\end{pmatrix}",
    ),
)


@pytest.mark.parametrize(
    ("response", "truth", "verdict"),
    [(f"Some work.\nAnswer: {answer}", truth, verdict) for answer, truth, verdict in ANSWERS + CLEANED]
    + RESPONSES,
)
def test_the_table_of_answers(response: str, truth: str, verdict: float) -> None:
    result = grade(response, truth)
    assert (result.right, result.timeout, result.error) == (verdict, 0.0, 0.0)


@pytest.mark.parametrize("truth", TRUTHS)
def test_an_answer_with_the_text_of_the_truth_is_right(truth: str) -> None:
    for response in (f"Answer: {truth}", f"Some work.\n**Answer:** {truth}.", f"so \\boxed{{{truth}}}"):
        if truth not in ("{", "\\frac{1}{") or response[0] == "A":  # they do not close a box
            assert grade(response, truth).right == RIGHT, response
    assert grade("Answer: 4711", truth).right == WRONG


# Of every kind that Qwen2.5-Math's 25 answer sets have (6,643 answers).
PUBLISHED = (
    *(
        "204",
        "-2",
        "27.0",
        "1,000",
        "110,880",
        ".998,.965,.729",
        "0.6666666667",
        "10^{5}",
        "2^{10}",
        "3:4",
        "5!",
    ),
    *(
        "\\frac{8}{9}",
        "-\\frac{1}{2}",
        "5\\frac{1}{2}",
        "\\dfrac{\\sqrt{3}}{2}",
        "2\\sqrt{13}",
        "\\sqrt[3]{2}",
        "36\\pi",
    ),
    *(
        "b ^ { 2 } - 9 a ^ { 2 }",
        "10-4 n",
        "x^{2}+2 x+1",
        "(x+1)(x-2)",
        "y=2 x-3",
        "\\{x|-2\\leq x < 1\\}",
        "x \\geq 3",
    ),
    *(
        "(-\\infty, 3) \\cup(3, \\infty)",
        "(2,-1)",
        "[0,1)",
        "1,3,9,11",
        "-1,0,1",
        "\\pm 3",
        "0 < k < 1",
        "\\emptyset",
    ),
    *(
        "9 (apples)",
        "20 cm",
        "60^{\\circ}",
        "30 \\mathrm{~km} / \\mathrm{h}",
        "\\$9,500",
        "50\\%",
        "C",
        "C. {x \\mid-3<x<4}",
    ),
    *(
        "\\frac{x^{2}}{16}+\\frac{y^{2}}{4}=1 (y>0)",
        "\\left(\\begin{array}{l}1\\\\2\\end{array}\\right)",
        "2 \\ln 3",
    ),
    *(
        "\\text{Monday}",
        "no solution",
        "4.5e33",
        "2.7778 \\times 10^{-4}",
        "e^{-t} \\cos t",
        "\\log _{2} 3",
        "f(x)=3x",
    ),
)


UNITS = (" cm", "\\,\\text{m}^2", " m/s", "°")


def spellings(truth: str) -> list[str]:
    return [
        f"Work.\nAnswer: {truth}",
        f"so $\\boxed{{{truth}}}$.",
        f"Answer: $${truth}$$",
        f"Answer: \\( {truth} \\).",
        "Answer: " + truth.translate({ord("0") + digit: ord("０") + digit for digit in range(10)}),
        "Answer: " + re.sub(r"(?<=[\w)}])([+=<>/])(?=[\w(\\])", r" \1 ", truth).replace(", ", ",  "),
        f"**Answer: {truth}.**",
        *(f"Answer: {truth}{unit}" for unit in UNITS if re.fullmatch(r"-?[\d.,]+", truth)),
    ]


@pytest.mark.parametrize("truth", PUBLISHED)
def test_a_published_answer_is_right_in_every_spelling(truth: str) -> None:
    assert [response for response in spellings(truth) if grade(response, truth).right != RIGHT] == []


def direct(answer: str, truth: str) -> bool:
    """Math-verify's verdict on a formula, set up as in verl, with nothing of ours in between."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex, both = (LatexExtractionConfig(),), (ExprExtractionConfig(), LatexExtractionConfig())
    answer = re.sub(r"(?<!\\)%", r"\%", answer)  # in LaTeX a bare % begins a comment
    return bool(verify(parse(f"\\boxed{{{truth}}}", latex), parse(f"${answer}$", both)))


@pytest.mark.parametrize(
    ("answer", "truth"), [row[:2] for row in ANSWERS if not set("$`") & set(row[0]) and " " not in row[0]]
)
def test_the_verdict_is_math_verifys(answer: str, truth: str) -> None:
    if answer in ("\\boxed{42}", "\\(42\\)", "\\[42\\]"):
        answer = "42"
    assert grade(f"Answer: {answer}", truth).right == direct(answer, truth)


@fuzz(60)
@given(st.integers(-2000, 2000), st.integers(-2000, 2000), st.sampled_from(["{}", "{:,}", "+{}", "00{}"]))
def test_the_comparison_of_whole_numbers_is_math_verifys(number: int, truth: int, form: str) -> None:
    answer = form.format(number) if number >= 0 else str(number)
    for true in (truth, number):
        assert grade(f"Answer: {answer}", str(true)).right == direct(answer, str(true)) == (number == true)


def test_what_is_logged_beside_the_score() -> None:
    assert compute_score("aime24", "Answer: 073", "73", {"index": 0}, reward_router_address=None) == {
        "score": 1.0,
        "acc": 1.0,
        "answer_rule": 0.0,
        "marked_answer": 1.0,
        "grade_timeout": 0.0,
        "grade_error": 0.0,
    }
    assert compute_score("math_dapo", "so it is 73", 73)["marked_answer"] == 0.0
    assert compute_score("math_dapo", "so it is 73", 73)["score"] == 1.0
    assert compute_score("math_dapo", "x\nAnswer: 73", "73")["answer_rule"] == 1.0


MARKUP = (
    *(
        "Answer:",
        "\\boxed{",
        "}",
        "{",
        "$",
        "$$",
        "\\frac",
        "\\sqrt",
        "^",
        "_",
        "\\left(",
        "\\right)",
        "(",
        "]",
    ),
    *("=", "1", "42", "-", ",", ".", "%", "\\%", "x", "\\text{", "\\begin{pmatrix}", "\\int", "\\sum", "!"),
    *(
        "\\pi",
        " ",
        "\n",
        "<think>",
        "</think>",
        "or",
        "and",
        "\\in",
        "<",
        "\\le",
        "\\cup",
        "\0",
        "\ud800",
        "𝟜",
    ),
)
FRAGMENTS = st.sampled_from(MARKUP)


@fuzz(50)
@given(
    st.lists(FRAGMENTS | st.text(max_size=4), max_size=20).map("".join),
    st.sampled_from(["42", "\\frac{1}{2}", "x"]),
)
def test_any_text_gets_a_grade(text: str, truth: str) -> None:
    for response in (text, f"Answer: {text}"):
        result = grade(response, truth, limit_seconds=1.0)
        assert {result.right, result.answer_rule, result.marked, result.timeout, result.error} <= {0.0, 1.0}


@fuzz(25)
@given(FRAGMENTS.map(lambda piece: piece * 30) | st.text(max_size=2000))
def test_any_truth_gets_a_grade(truth: str) -> None:
    assert grade("Answer: \\frac{1}{7}", truth, limit_seconds=1.0).right in (0.0, 1.0)


def fractions(numerator: int) -> tuple[str, float]:
    """A response that needs math-verify, and its grade against 3/7."""
    return f"Answer: \\frac{{{numerator}\\cdot 2}}{{14}}", float(numerator == 3)


def test_many_threads_at_once() -> None:
    cases = [fractions(numerator % 5) for numerator in range(200)]
    with ThreadPoolExecutor(16) as threads:
        grades = list(threads.map(lambda case: grade(case[0], "\\frac{3}{7}").right, cases))
    assert grades == [verdict for _, verdict in cases]


def graders() -> set[int]:
    """Process ids of this process's own grading processes."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = int(status.read_text().split("PPid:")[1].split()[0])
            if parent == os.getpid() and b"grader_child" in (status.parent / "cmdline").read_bytes():
                found.add(int(status.parent.name))
        except (OSError, IndexError):  # it has ended meanwhile
            continue
    return found


def test_a_forked_process_has_children_of_its_own() -> None:
    response, verdict = fractions(3)
    assert grade(response, "3/7").right == verdict
    before = graders()
    assert before
    child = os.fork()
    if child == 0:
        right = grade(response, "3/7").right
        own = graders()
        close_pools()
        os._exit(0 if right == verdict and len(own) == 1 and not graders() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert graders() == before
    assert grade(response, "3/7").right == verdict
    assert graders() == before
