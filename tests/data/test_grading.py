"""Grades: a table of answers, agreement with math-verify, texts of all kinds."""

import os
import re
from collections.abc import Iterator
from functools import partial

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.data import grading
from cppo_lab.data.grading import close_pools
from tests.fuzz.mangling import fuzz
from tests.waiting import CEILING_SECONDS

# Without the limit of normal use: a right answer may take as long as this machine needs for it.
grade = partial(grading.grade, limit_seconds=CEILING_SECONDS)
RIGHT, WRONG = 1.0, 0.0
Table = dict[str, list[str]]  # a truth, and answers to it


@pytest.fixture(autouse=True, scope="module")
def _no_process_is_left() -> Iterator[None]:
    yield
    close_pools()


# Right answers after "Answer: ", and wrong ones (NOT_...), as math-verify decides, too.
# fmt: off
ANSWERS: Table = {
    "42": [
        "42", "$42$", "$42$.", "\\boxed{42}", "$\\boxed{42}$", "\\(42\\)", "\\[42\\]", "`42`", "42 cm", "42 minutes",
        "$42\\text{ cm}$", "$42^\\circ$", "$\\$42$", "the sum is 42", "$m+n = 42$", "6*7 = 42", "42.0", "42%",
    ],
    "73": ["073"],
    "073": ["73"],
    "-3": ["-3", "$-3$", "−3"],
    "3": ["+3", "\\log_2 8"],
    "0": ["-0"],
    "999999999999999999999999": ["999999999999999999999999"],
    "1000": ["1,000", "$1{,}000$", "$1\\,000$"],
    "1,000": ["1000"],
    "1000000": ["1,000,000"],
    "5": ["x = 5"],
    "\\frac{1}{2}": ["1/2", "\\frac12", "\\dfrac{2}{4}"],
    "0.5": ["\\frac{1}{2}"],
    "\\frac{-1}{2}": ["-\\frac{1}{2}"],
    "\\frac{3}{2}": ["1\\frac{1}{2}"],
    "\\frac{1}{3}": ["0.3333333"],
    "\\sqrt{8}": ["2\\sqrt{2}"],
    "2\\sqrt{2}": ["\\sqrt8"],
    "\\frac{\\sqrt{2}}{2}": ["\\frac{1}{\\sqrt{2}}"],
    "\\sqrt{5+2\\sqrt{6}}": ["\\sqrt{2}+\\sqrt{3}"],
    "2\\pi": ["\\pi \\cdot 2"],
    "1024": ["2^{10}"],
    "3628800": ["10!"],
    "10": ["\\binom{5}{2}"],
    "12": ["3 \\times 4"],
    "1500": ["1.5 \\times 10^3"],
    "(x+1)^2": ["x^2+2x+1"],
    "4i+3": ["3+4i"],
    "\\infty": ["\\infty"],
    "(1,2]": ["(1, 2]"],
    "\\{2,1\\}": ["\\{1, 2\\}"],
    "\\{1,2\\}": ["1, 2"],
    "x<5": ["5 > x"],
}
NOT_ANSWERS: Table = {
    "42": ["43", "unknown", "42.5", "42 and 43"],
    "-3": ["3"],
    "999999999999999999999999": ["999999999999999999999998"],
    "1000000": ["1,000,001"],
    "6": ["x = 5"],
    "\\frac{1}{2}": ["\\frac{1}{3}"],
    "\\frac{1}{3}": ["0.33"],
    "0.42": ["$42\\%$"],
    "1.41": ["\\sqrt{2}"],
    "\\pi": ["\\frac{22}{7}"],
    "12": ["12 or 13", "$12$ or $13$"],
    "(x+1)^2": ["x^2+2x+2"],
    "(1,2)": ["[1, 2]", "(2, 1)"],
    "\\{1,2\\}": ["$\\{1,2,3\\}$"],
    "x<5": ["x < 6"],
}
# fmt: on
# Two answers of which one may be right.
# fmt: off
SEVERAL = (
    "either 12 or 13", "12 cm or 13 cm", "12 or 13 cm", "12 cm, 13 cm", "12 (or 13)", "12或13",
    "maybe 12, maybe 13", "12 or, if n is odd, 13", "12 hours 13 minutes", "`12` or `13`",
    "$12$ cm or $13$ cm", "either $12$ or $13$", "\\boxed{12} cm or \\boxed{13} cm",
    "\\text{either } 12 \\text{ or } 13", "\\$12 or \\$13", "$12 or $13", "12\\% or 13\\%", "12 & 13",
    "12 \\& 13", "12 -> 13", "12 → 13", "12 --> 13", "12 => 13", "12 <-> 13", "12 | 13", "12|13", "12 ~ 13",
    "12...13", "12 … 13", "12 ⇒ 13", "12\\to 13", "12 \\rightarrow -13", "12 \\lor 13", "12 \\cup 13", "12?13",
    "12 ∨ 13", "12 @ 13", "12 # 13", "#12 13", "12、13", "12 • 13", "12\\\\13", "12 + or 13", "$12$ $13$",
    "$12$/$13$", "$12$ & $13$", "12–13", "12; 13", "12 i.e. 13", "12 or thirteen", "twelve or 13",
    "12 and thirteen", "12/thirteen", "12 ; thirteen", "12 maybe thirteen", "12 or thirteen apples",
    "12 \\ \\text{thirteen}", "12 \\text{ or thirteen}", "12 OR 13", "12 → thirteen", "12 \\text{ or 13}",
    "12 or \\text{13}", "12 \\mathbf{13}", "12 \\text{(or 13)}", "12 \\text{ if n is even, 13 if odd}",
)
# As above, where math-verify alone would decide otherwise, by truth:
#
# - spaces, signs, layout and alphabets; currencies, percent, units and remarks; powers of ten; answers of which one
#   is right;
# - what a careful grader of competition mathematics decides: who denies an answer does not give it, who offers two
#   gives none, and a number stays one in words, in other digits, or with invisible characters in it. Unclear, and
#   decided so: a strict bound ("more than 42") denies 42, "at least 42" may name a minimum; a remark may deny others
#   (5, not 6); the question of a truth in base 8 may ask for the digits alone, but no other base is right; "two
#   solutions" counts, "one of them" does not;
# - what stands beside the number: a unit of measure, the letter of a choice, another formula. Currencies, and nouns
#   such as apples, are no units; a truth of one letter outside text has none, either (5m may be a product);
# - the same value twice or with its modulus, unfinished numbers, relations for intervals, both signs at once. Decided
#   so: a decimal of any length is no irrational number (0.3333333 for 1/3 is math-verify's), a set is no pair in
#   either direction, other nouns are another answer, and a value in brackets has to be right, unless it is a decimal
#   behind LaTeX;
# - other notations of the same, and what math-verify reads as something else: 4t as 4 (tons), (3)(4) and "3 4" as 7,
#   GMm as GM^2, 2:3:5 as a quotient;
# - amounts: the same one in other units or in parts, powers of units, temperatures, words of scale, money beside
#   units.
# fmt: off
OURS: Table = {
    "(3,\\,125)": ["(3,125)", "(3, 125)", "(3,\\,125)", "(3,\\;125)", "(3,\\ 125)", "(3,~125)", "(3,\\quad 125)"],
    "[3,125)": ["[3,\\;125)"],
    "\\{125,3\\}": ["\\{3,\\,125\\}"],
    "1042": ["1{,}042", "1,\\!042", "1\\,042", "1\\;042", "1\\ 042", "1\\!042", "1~042", "1\u202f042"],
    "1234567": ["$1{,}234{,}567$"],
    "42": [
        "\\,42\\,", "\\;42\\;", "\\!42\\!", "\\:42\\:", "\\ 42\\ ", "~42~", "\\quad 42\\quad ",
        "\\qquad 42\\qquad ", "\\$42", "$42", "\\$ 42", "\\text{\\$}42", "US\\$42", "€42", "£42", "¥42",
        "\\pounds 42", "42\\$", "42€", "42 $(n=5)$", "42 (n \\ge 5)", "$42\\quad (n=5)$", "42 (where $n=5$)",
        "42\\text{ cm}^2", "42~\\mathrm{cm}", "42个", "４２", "42。", "$\\boxed{\n42\n}$", "$$\\boxed{\n42\n}$$",
        "$$\\boxed{42}$$", "\\(\\boxed{\n42\n}\\)", "\\(\\boxed{42}\\)", "\\[\\boxed{\n42\n}\\]",
        "\\[\\boxed{42}\\]", "\\boxed{\n42\n}", "**\\boxed{\n42\n}**", "**\\boxed{42}**",
        "```\n\\boxed{\n42\n}\n```", "```\n\\boxed{42}\n```", "\\begin{align*}\n\\boxed{\n42\n}\n\\end{align*}",
        "\\begin{align}\n\\boxed{\n42\n}\n\\end{align}", "\\begin{equation}\n\\boxed{\n42\n}\n\\end{equation}",
        "\\begin{gather*}\n\\boxed{\n42\n}\n\\end{gather*}", "```latex\n\\boxed{\n42\n}\n```",
        "```latex\n\\boxed{42}\n```", "$$\\begin{aligned}\n\\boxed{\n42\n}\n\\end{aligned}$$", "$\n42\n$",
        "\\begin{align*}\n x &= 6 \\cdot 7 \\\\ &= 42\n\\end{align*}", "$42\nIt costs $5", "42 m/s", "$42$ m/s",
        "42 m/s²", "42 m s^{-1}", "42\\,\\mathrm{m\\,s^{-1}}", "42 N·m", "42 J/(kg·K)", "42 km per hour",
        "42 people/km^2", "42 m³", "42 [m/s]", "42 °C", "\\boxed{42 m/s}", "42\\ \\frac{m}{s}", "__42__", "_42_",
        "“42”", "\\underline{42}", "42 \\square", "42 ∎", "≈42", "#42", "→ 42", "42 ✓", "42 — the sum",
        "42 (two solutions)", "forty-two (42)", "42 or 42", "6*7 => 42", "4.2e1", "42—exactly",
        "$\\boldsymbol{42}$", "\\Large{42}", "4\u200b2", "\u206042", "42\ufeff", "4\u00ad2", "\u202a42\u202c",
        "\u200e42\u200f", "\u206642\u2069", "4\u200d2", "4\ufe0f2\ufe0f", "\u200942\u2009", "𝟒𝟐", "٤٢", "forty-two",
        "Forty two", "FORTY-TWO.", "\\text{forty-two}", "**forty-two**", "forty\u2011two", "forty-two apples",
        "the answer is forty-two", "42 (forty-two)", "42 (not 43)", "42, not 43", "42 rather than 43",
        "42 instead of 41", "not 43 but 42", "42 (≠ 43)", "42 (not 43 or 44)", "42 (not counting repeats)",
        "42, since x cannot be negative", "n \\neq 0, n = 42", "42 (no other solutions)",
        "There is no solution other than 42", "42 because n is not prime", "42_{10}", "at least 42",
        "approximately 42", "42.", "{42}", "$42$ dollars", "42 apples and oranges", "A) 42", "(A) 42", "(A) $42$",
        "$\\textbf{(A)}\\ 42$", "\\text{(A) } 42", "\\textbf{(D)}~42", "D: 42", "C. 42", "Option B: 42", "42 (A)",
        "42 \\boxed{42}", "42. $\\boxed{42}$", "$42$ \\boxed{42}", "\\boxed{42} 42", "42 \\(\\boxed{42}\\)",
        "(1) $42$", "6*7 = $42$", "42 ($6 \\cdot 7$)", "$42$ m/s^2", "42 (6*7)", "42 (6·7)", "$42$ (42)",
        "42 (42.0)", "at most 42", "up to 42", "\\emph{42}", "\\mathsf{42}", "\\texttt{42}", "142 mod 100",
        "$42$ (since $6\\cdot 7=42$)", "42 (m = 41, n = 1)", "42 \\pmod{100}", "42 k\\Omega", "42 Ω", "42 \\mu m",
        "$42$(n=5)", "\\hspace{1em}42\\hfill", "\\phantom{1}42", "\\pmb{42}", "\\ensuremath{42}", "\\small{42}",
        "<b>42</b>", "'42'", "<|begin_of_box|>42<|end_of_box|>", "\\begin{center}42\\end{center}", "\\boxed{42} ✓",
        "42 Q.E.D.", "₽42", "42, where n=5", "42, when $n=5$", "42 if n = 5", "42 at x=1",
    ],
    "x+1\\,": ["x+1"],
    "x+1\\;": ["x+1"],
    "x+1\\!": ["x+1"],
    "x+1\\ ": ["x+1"],
    "x+1~": ["x+1"],
    "x+1\\quad": ["x+1"],
    "x+1.\\,": ["x+1"],
    "x+1": ["$x+1\\,.$", "(A) x+1", "x+1 \\boxed{x+1}"],
    "9500": ["\\$9,500", "$9,500", "€9,500"],
    "-42": ["-\\$42", "\\$-42"],
    "42.5": ["\\$42.50"],
    "198\\%": ["198"],
    "198%": ["198"],
    "198\\text{ percent}": ["198"],
    "50\\%": ["50%", "50\\%", "50 percent", "50％"],
    "0.5": ["½"],
    "20": ["20 $cm^{2}$"],
    "100000": ["10^5 meters"],
    "\\frac{1}{2}": ["\\frac{1}{2} cm"],
    "\\text{Monday}": ["Monday"],
    "cd+ab": ["ab + cd"],
    "12": ["12 \\text{ cm}^2", "\\mathbf{12}", "3(4)"],
    "\\sqrt{2}": ["sqrt(2)", "√2", "\\sqrt2 or \\sqrt{2}"],
    "(3,4)": [
        "（３，４）", "x=3, y=4", "\\big(3,4\\big)", "f(2) = $(3,4)$", "\\{x=3, y=4\\}", "(3,4) (not \\{3,4\\})",
        "$x=3,y=4$, so $P=(3,4)$", "m=3, b=4", "$n=3$, $k=4$", "r=3, h=4",
    ],
    "10-2\\sqrt{5}": ["10 - 2√5"],
    "2\\pi": ["2π"],
    "1,000": ["1,000\\,\\text{m}^2"],
    ".998,.965": [".998,.965 cm"],
    "-1,0,1": ["-1,0,1°"],
    "x=2 (y>0)": ["x = 2 (y>0)"],
    "1000": ["1e3", "1E+3", "10**3", "1 000", "1’000", "1'000", "1 thousand", "1\u2006000", "one thousand"],
    "0.0015": ["1.5e-3", "1.5×10⁻³", "1.5*10^-3", "1.5 \\cdot 10^{-3}", "15E-4"],
    "1e-3": ["0.001"],
    "\\frac{5}{2}": ["2 1/2", "$2 1/2$", "2\\ 1/2", "2½", "5⁄2", "5÷2", "2 1/2 cm"],
    "-5/2": [
        "-2 1/2", "-2\\frac{1}{2}", "-5/2", "–2 1/2", "–2\\frac{1}{2}", "–5/2", "minus 2 1/2",
        "minus 2\\frac{1}{2}", "minus 5/2",
    ],
    "2 1/2": ["5/2"],
    "3": [
        "5–2", "3 (mod 7)", "$3$ (mod $7$)", "3 \\pmod 7", "x \\equiv 3 \\pmod{7}", "3 \\bmod 7", "\\log_{2}(8)",
        "3千克", "共三种",
    ],
    "-3": ["–3", "—3", "‒3", "‐3", "‑3", "﹣3", "－3", "⁻3", "negative 3"],
    "1/2": [
        "\\frac{\\mathbf{1}}{2}", "half", "one half", "a half", "1/2 (not 1/3)", "1/2 (0.5)", "0.5 (1/2)",
        "\\frac12 (= 0.5)", "1/2 (or 0.5)",
    ],
    "12,13": ["12 and 13", "12 cm and 13 cm"],
    "\\frac{5}{3}": ["1.\\overline{6}", "$1.\\bar{6}$", "1.\\dot6", "1.(6)"],
    "-\\frac{1}{6}": ["-0.1\\overline{6}"],
    "0.\\overline{36}": ["4/11", ".\\overline{36}"],
    "2\\sqrt{3}": [
        "2√3 (≈3.46)", "$2\\sqrt{3}$ (approximately $3.46$)", "$2\\sqrt{3} (\\approx 3.46)$",
        "2√3 cm (~3.46 cm)", "2\\sqrt{3} m/s", "$2\\sqrt3$ N·m", "(B) 2\\sqrt{3}", "$2\\sqrt3$ (3.46)",
        "\\(2\\sqrt{3}\\) ≈ 3.46", "2√3, approximately 3.46", "$2\\sqrt{3}$, about $3.46$",
        "2√3, or approximately 3.46", "2√3 ≈ 3.46",
    ],
    "6.6e-34": ["6.6e-34 J s", "$6.6\\times10^{-34}\\,\\mathrm{J\\cdot s}$", "6.60e-34"],
    "1.6e-19": ["1.6e-19 coulombs"],
    "0.0000012": ["1.2e-6"],
    "\\frac{1}{2^{2024}}": ["2^{-2024}", "\\frac{2}{2^{2025}}"],
    "\\frac{1}{20!}": ["\\frac{21}{21!}"],
    "\\emptyset": ["\\varnothing", "∅", "\\{ \\}", "the empty set", "no solution"],
    "n\\equiv1\\pmod{4}": ["n \\equiv 1 \\pmod 4"],
    "x": ["x", "x or x"],
    "\\pi": ["pi"],
    "2n": ["2n"],
    "A": [
        "A", "(A)", "\\text{A}", "\\textbf{(A)}", "A)", "A.", "Option A", "choice (A)", "The answer is A", "选A",
        "Ａ", "a", "(A) 42", "A. 42", "\\textbf{(A)}\\ 42", "A: 42",
    ],
    "1": ["one"],
    "2": ["two", "two solutions"],
    "4": ["four", "4 (not five)"],
    "5": ["5 not 6", "five (not six)", "5 (instead of 6)"],
    "-5": ["minus five", "negative five", "-five", "负5", "负五"],
    "7": ["seven", "Seven.", "3+4"],
    "0": ["zero", "↉"],
    "105": ["one hundred and five", "one hundred five"],
    "1200": ["twelve hundred", "one thousand two hundred"],
    "1000000": ["a million", "one million", "1.000.000"],
    "100": ["10²", "one hundred"],
    "1/3": ["⅓", "$⅓$", "one third", "one-third", "0.333...", "0.33…", "0.333\\ldots", ".333..."],
    "2/5": ["⅖"],
    "7/8": ["⅞", "seven eighths"],
    "5/2": ["2½", "2 ½", "$2½$", "two and a half", "Two-and-a-half hours", "2 and a half", "two and one-half"],
    "-11/4": ["minus two and three quarters"],
    "6.02\\times10^{23}": ["6.02 x 10^23", "6.02X10^{23}"],
    "3/4": ["{3 \\over 4}", "three quarters", "three fourths", "¾", "四分之三"],
    "Yes": ["Yes", "yes", "YES.", "\\text{yes}"],
    "Monday": ["MONDAY"],
    "-\\frac{5}{2}": ["−2½", "-2 ½"],
    "42_8": ["42_8", "42_{8}", "42₈", "42"],
    "x_2": ["x₂", "x_2"],
    "x \\neq 2": ["x ≠ 2", "x \\ne 2"],
    "(1,2)": ["(1, 2) (not (2, 1))", "1, 2"],
    "\\{(1,2),(3,4)\\}": ["\\{(3,4),(1,2)\\}"],
    "n": ["n"],
    "f'(x)": ["f'(x)"],
    "12, 13": ["12 and 13", "12, 13 (not 14)"],
    "\\text{not prime}": ["not prime"],
    "4\u200b2": ["42"],
    "5 \\text{ cm}": [
        "5 cm", "5", "5cm", "5 centimetres", "5\\,\\mathrm{cm}", "x = 5 cm", "5 cm long", "(A) 5 cm", "5 units",
        "5 cm \\boxed{5 cm}", "4s = 5", "1) $5$", "n=4: $5$",
    ],
    "5 \\text{ cm}^3": ["5 mL", "5 ml", "5 cm^3"],
    "5 \\text{ N m}": ["5 Joules"],
    "20 $cm^{2}$": ["20 cm^2", "20\\text{ cm}^2", "20", "20 square centimeters"],
    "30 \\mathrm{~km} / \\mathrm{h}": ["30 km/h", "30 kilometers an hour", "30", "30 kph"],
    "12 \\text{ hours}": ["12 hrs", "twelve hours", "12 h", "12 hours per day"],
    "5 \\text{ minutes}": ["5 min", "5 m"],
    "90^\\circ": ["90", "90°", "90 degrees"],
    "\\frac{1}{2} \\text{ kg}": ["0.5 kilograms", "1/2 kg"],
    "5m": ["5m", "5 m"],
    "3 ms": ["3ms"],
    "\\$5": ["\\$5 a day", "5 dollars", "5", "\\$5", "five dollars", "500 cents", "$5"],
    "-7": ["(B) $-7$", "\\textbf{(C)}~{-7}"],
    "A+1": ["A+1"],
    "i": ["i", "D. $i$"],
    "\\frac{3}{4}": ["(D) 3/4", "3/4 \\boxed{\\frac34}", "0.75 ($\\frac34$)"],
    "\\frac{3}{2}": ["1 $\\frac12$"],
    "(x, y) = (\\frac12, 4)": ["(0.5, 4)"],
    "\\{3,4\\}": ["\\{4,3\\}", "3, 4", "{3,4}", "4 and 3"],
    "3, 4": ["3, 4 \\boxed{3,4}", "(A) 3,4", "\\{3,4\\}"],
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}": ["\\begin{bmatrix}1\\\\2\\end{bmatrix}"],
    "3 \\pmod 7": ["3 (mod 7)", "3 \\pmod{7}", "3 mod 7", "x\\equiv 3 \\pmod 7", "3"],
    "1/6": ["0.1666..."],
    "\\frac{1}{11}": ["0.090909..."],
    "(3,\\infty)": ["x>3", "3 < x", "x \\in (3,∞)"],
    "(1,2]": ["1 < x \\le 2"],
    "\\frac{1+\\sqrt5}{2}, \\frac{1-\\sqrt5}{2}": [
        "(1±√5)/2", "\\frac{1\\pm\\sqrt5}{2}", "x=\\frac{1\\mp\\sqrt{5}}{2}",
    ],
    "\\frac{1\\pm\\sqrt{5}}{2}": ["(1±√5)/2", "\\frac{1+\\sqrt5}{2} \\text{ and } \\frac{1-\\sqrt5}{2}"],
    "120": [
        "C(10,3)", "\\binom{10}{3}", "C_{10}^{3}", "C_{10}^3", "10C3", "{}_{10}C_3", "^{10}C_3", "{}^{10}C_{3}",
    ],
    "C(10,3)": ["120", "C(10, 3)"],
    "\\binom{n}{2}": ["C_n^2", "C(n,2)"],
    "1,2,3,\\ldots": ["1, 2, 3, ...", "1,2,3,\\dots"],
    "3 apples": ["3 Apples", "3 apple", "3", "three apples"],
    "5 \\text{ dollars}": ["5 USD", "5", "\\$5", "\\$5 a day"],
    "5 ways": ["5 methods"],
    "12 units": ["12 cm"],
    "5 students": ["5 people"],
    "\\frac{\\pi}{4}": ["\\pi/4 (0.785398)", "\\pi/4 = 0.785398", "0.25π"],
    "x \\ge 42": ["[42,\\infty)", "x>=42"],
    "4t": ["4t", "4 t", "t\\cdot4"],
    "\\frac{3+2i}{5}": ["\\frac{2i+3}{5}"],
    "2(x+1)": ["(2)(x+1)"],
    "3x-3": ["(x-1)(3)"],
    "20\\text{ square cm}": ["20 cm^2"],
    "60\\text{ km/h}": ["60 km/hr"],
    "60\\text{ km per h}": ["60 km/h"],
    "\\sin 15^\\circ": ["sin 15°"],
    "\\sin^2 15^\\circ": ["(\\sin 15^\\circ)^2"],
    "R": ["\\mathrm{R}"],
    "2ab": ["2ba", "2a b", "2 \\cdot a \\cdot b"],
    "5am": ["5am", "5ma"],
    "\\frac{1}{m} t": ["\\frac{t}{m}", "t/m"],
    "e^{-t}\\cos t": ["\\frac{\\cos t}{e^t}", "\\cos(t) e^{-t}"],
    "-8i": ["-8\\mathrm{i}", "-8 i"],
    "4-\\mathrm{i}": ["4-i"],
    "2\\mathrm{e}": ["2e"],
    "\\frac{x}{2}": ["1/2 x"],
    "30": ["3\\binom{5}{2}", "3C(5,2)"],
    "60": ["\\binom{4}{2}\\binom{5}{2}", "C_4^2 C_5^2"],
    "(1)(3)(4)": ["(1)(3)(4).**", "①③④", "\\textcircled{1}\\textcircled{3}\\textcircled{4}"],
    "\\frac{GMm}{r^2}": ["GmM/r^2", "F = \\frac{GMm}{r^2}"],
    "ab": ["ba", "a b"],
    "mgh": ["m g h"],
    "\\pi R^2": ["the area is \\pi R^2"],
    "2R or R": ["R or 2R"],
    "5 km": ["5 KM"],
    "p \\equiv 1 \\pmod 4": ["p≡1 (mod 4)", "$p\\equiv 1\\pmod{4}$"],
    "2:3:5": ["2 : 3 : 5", "4:6:10", "The ratio is 2:3:5", "2 to 3 to 5"],
    "1:\\sqrt{3}:2": ["1:\\sqrt3:2"],
    "9:03:36 a.m.": ["9:03:36 AM"],
    "1:58 am": ["1:58 a.m.", "1:58 AM", "1:58am", "1:58"],
    "(-\\infty,1)\\cup(2,\\infty)": [
        "x<1 or x>2", "x<1 \\text{ or } x>2", "$x<1$ or $x>2$", "x > 2 or x < 1", "\\{x | x<1 \\text{ or } x>2\\}",
        "x\\in(-\\infty,1)\\cup(2,\\infty)", "]-\\infty,1[\\cup]2,\\infty[",
    ],
    "x \\le -3 \\text{ or } x \\ge 3": ["(-\\infty,-3]\\cup[3,\\infty)", "|x| \\ge 3"],
    "\\{x \\mid x<-2 \\text{ 或 } 1<x<3\\}": ["x<-2 或 1<x<3", "(-\\infty,-2)\\cup(1,3)"],
    "(-\\infty,0)\\cup(0,\\infty)": ["x \\neq 0", "x<0 or x>0"],
    "[-2,1)": ["\\{x|-2\\leq x < 1\\}", "\\left\\{x \\mid -2 \\le x < 1\\right\\}", "[-2,1[", "[-2;1)"],
    "(0,1]": ["]0,1]", "]0;1]"],
    "(0,\\infty)": ["\\{x \\in \\mathbb{R} : x > 0\\}", "]0,+\\infty["],
    "(\\sqrt[3]{2}, \\sqrt[3]{5})": ["(\\sqrt[3]{2},\\sqrt[3]{5})"],
    "\\mathbb{R}": [
        "all real numbers", "all reals", "\\text{all real numbers}", "(-∞,∞)", "ℝ", "x \\in \\mathbf{R}",
    ],
    "\\text{all real numbers}": ["(-\\infty,\\infty)", "\\mathbb R"],
    "\\text{no solution}": ["There is no solution", "no real solutions", "∅"],
    "\\sqrt2": ["2^0.5", "2^{0.5}", "2**0.5"],
    "e^{-0.5}": ["\\frac{1}{\\sqrt{e}}"],
    "\\frac{\\sqrt{6}-\\sqrt{2}}{4}": ["\\sin 15^\\circ", "\\sin(15°)"],
    "1234.56": ["1.234,56"],
    "(\\frac{1}{2}, 3)": ["(0.5; 3)"],
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}": ["\\left(\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right)"],
    "k\\pi, k\\in\\mathbb{Z}": ["k\\pi (k\\in\\mathbf{Z})"],
    "10 m/s": ["10 m s^{-1}", "10", "10 meters per second", "$10$ m/s"],
    "9.8 m/s^2": ["9.8 m/s²", "9.8", "9.8 \\frac{m}{s^2}"],
    "60^\\circ": ["\\pi/3", "$\\frac{\\pi}{3}$", "π/3 rad", "60^o", "60º"],
    "60 degrees": ["\\pi/3", "60°"],
    "\\frac{\\pi}{8}": ["22.5°", "22.5^\\circ", "22.5 degrees"],
    "25°C": ["25", "25°", "25 °C", "25^{\\circ}C", "25 degrees Celsius"],
    "1:2:3:4": ["2:4:6:8", "1 : 2 : 3 : 4"],
    "1:\\sqrt{2}:2:4:3": ["2 : 2\\sqrt{2} : 4 : 8 : 6"],
    "10 \\text{ m/s}": ["10 m s^{-1}", "10", "10 meters per second", "10\\,\\mathrm{m\\,s^{-1}}"],
    "9.8 \\mathrm{~m} / \\mathrm{s}^2": ["9.8 m s^{-2}", "9.8 \\frac{m}{s^2}"],
    "22.1cm^{2}": ["22.1", "22.1 square centimeters"],
    "3.00 \\times 10^8 \\text{ m/s}": ["3e8 m/s"],
    "9 (apples)": ["9", "9 apples", "nine"],
    "2 (portions of trail mix)": ["2"],
    "9 (quarters)": ["9 (quarters)"],
    "24 种": ["24"],
    "BD": ["B, D", "B and D", "B、D", "DB"],
    "[2,5)": ["x in [2,5)"],
    "Tuesday": ["It is Tuesday", "tuesday"],
    "ellipse": ["an ellipse", "The ellipse."],
    "101_2": ["101_{\\text{two}}", "101_\\text{two}", "101_{two}", "101 (base 2)"],
    "\\ln 2": ["\\log_e 2", "\\log_{e}(2)"],
    "24": ["P(4,3)", "$A_4^3$", "二十四", "贰拾肆"],
    "(4,3)": ["P(4,3)"],
    "\\frac{16}{99}": ["0.1̅6̅", "$0.1̅6̅$"],
    "C": ["故选C", "选c"],
    "e": ["e", "$e$"],
    "E": ["E", "(e)"],
    "5\\text{ cm}": ["50 mm", "0.05 m", "5 units"],
    "2\\text{ L}": ["2 l", "2000 mL", "2000 cm^3"],
    "2 hours 30 minutes": ["2.5 hours", "150 minutes", "2 h 30 min", "2 hours and 30 minutes"],
    "5 feet 3 inches": ["63 inches", "5 ft 3 in"],
    "27 cubic inches": ["27", "27 in^3", "27 in³", "27 cu in"],
    "12\\text{ square meters}": ["12 m^2", "12 meters squared", "12 sq m"],
    "25 degrees Celsius": ["25", "25°C", "25℃", "25^{\\circ}\\mathrm{C}", "25 degrees"],
    "98.6 degrees Fahrenheit": ["98.6°F", "98.6"],
    "100\\Omega": ["100\\Omega", "100"],
    "5 people": ["5", "5 students"],
    "1.5 million": ["1500000", "\\$1.5 \\text{ million}", "0.0015 bn"],
    "42000000": ["42 million dollars", "$42$ million"],
    "50‰": ["50‰"],
    "50 cents": ["50", "50¢", "\\$0.50", "0.50 dollars"],
    "25\\%": ["25 percent", "百分之二十五"],
    "100\\text{ V}": ["0.1 kV", "100 volts"],
    "100 k\\Omega": ["100 kΩ", "100"],
    "13": ["13 A", "13th", "13\\text{ A}"],
    "6:00 p.m.": ["6 pm", "6PM", "6 p.m.", "06:00 pm"],
    "7 am": ["7:00 a.m."],
    "3125": ["3\\text{,}125", "3\\mathpunct{,}125", "3\\hspace{1pt}125"],
    "43": ["四十三", "等于四十三", "四十三个", "四三"],
    "30000": ["3万", "三万", "3万元"],
    "3000": ["3千", "三千"],
    "5:6": ["5 to 6", "$5$ to $6$", "The ratio is 5 to 6"],
    "(2,3)": ["P(2,3)", "A(2, 3)"],
    "P(2,3)": ["P(2, 3)", "(2,3)"],
    "(A) 42": ["42", "A", "(A) 42"],
    "-1": ["i^2", "e^{i\\pi}"],
    "2i": ["(1+i)^2"],
    "z=3+4i": ["(2+i)^2", "3+4i"],
    "a+bi": ["bi+a"],
    "(1,000, 2,000)": ["(1000, 2000)", "(1{,}000, 2{,}000)"],
    "-1,200, 3,400": ["-1200, 3400"],
    "(-\\infty, 4]": ["(-inf, 4]"],
    "[1,2]\\cup[3,4]": ["[1, 2] U [3, 4]"],
    "\\frac34": ["\\nicefrac{3}{4}", "\\sfrac{3}{4}"],
    "\\sqrt[3]{2}": ["∛2"],
    "1.5": ["1.5e0"],
    "\\binom{10}{3}": ["10 choose 3"],
    "C. {x \\mid-3<x<4}": ["C", "(C)", "C. {x \\mid-3<x<4}"],
}
NOT_OURS: Table = {
    "(3,\\,125)": ["3125"],
    "(3,125)": ["3125", "(3,\\,125]"],
    "(3,\\;125)": ["3125"],
    "(3,\\:125)": ["3125"],
    "(3,\\ 125)": ["3125"],
    "(3,~125)": ["3125"],
    "(3,\\quad 125)": ["3125"],
    "(3, 125)": ["(3{,}125)", "(3,\\!125)", "(3\\,125)"],
    "3,\\,125": ["3\\,125", "3125"],
    "42": [
        "\\$43", "42.\\overline{3}", "42°30′", "not 42", "isn't 42", "It isn’t 42", "isnt 42", "Not 42.",
        "not (42)", "never 42", "\\text{not } 42", "\\text{not 42}", "$\\text{NOT }42$", "42 is wrong",
        "42 isn't right", "cannot be 42", "can't be 42", "42 is not the answer", "not equal to 42", "unequal to 42",
        "不是42", "neither 42", "neither 42 nor 43", "42 nor 43", "anything but 42", "other than 42",
        "not 42 but 43", "≠ 42", "≠42", "\\neq 42", "\\ne 42", "\\ne42", "$\\neq 42$", "x \\neq 42", "\\not= 42",
        "\\not = 42", "!= 42", "=/= 42", "<> 42", "¬42", "\\lnot 42", "> 42", "\\ge 42", "≥42", "more than 42",
        "less than 42", "42_8", "42_{8}", "$42_8$", "42₈", "42₍₈₎", "42_{(8)}", "(42)_8", "42_{\\text{hex}}",
        "42_{\\text{eight}}", "42 base 8", "42 (base 8)", "042_8", "not $42$", "not forty-two", "42 or x",
        "x or 42", "42 or \\pi", "\\pi or 42", "42 or none", "42 or \\infty", "42 and \\pi", "42 \\text{ or } \\pi",
        "42 ∨ x", "42 xor x", "42, maybe \\pi", "42 versus \\pi", "42 或 \\pi", "42 or more", "42, 43 apples",
        "one of 42, 43", "forty-two or forty-three", "forty", "one hundred forty-two", "forty-two hundred",
        "half of 42", "twice 42", "the square root of 42", "the negative of $42$", "42 squared", "42 minus one",
        "42 +", "42-", "a multiple of 42", "divisible by 42", "below 42", "over 42", "none of 42", "all but 42",
        "everything except 42", "no 42", "far from 42", "hardly 42", "by no means 42", "it ain't 42",
        "42 is impossible", "42 must be rejected", "42 is the wrong answer", "42 (wrong)", "42? No.", "42 fails",
        "\\not 42", "没有42", "除了42", "小于42", "不可能是42", "42不对", "42是错的", "41 \\boxed{42}",
        "-\\boxed{42}", "2\\cdot\\boxed{42}", "\\boxed{42}^2", "A) 43", "(A) 43", "A42", "A) not 42",
        "A) 42, B) 43", "(A) 42 (B) 43", "42 \\boxed{43}", "2 \\boxed{42}", "42 - \\boxed{42}", "41 $42$",
        "41, $42$", "41, x = $42$", "41 \\(42\\)", "$42$ 41", "41. $\\boxed{42}$", "41 $\\boxed{42}$", "42...",
        "42…", "42\\ldots", "$42\\dots$", "42 ...", "$42$ (43)", "43 (42)", "42 dozen", "42 (mod 5)",
        "7*42 mod 100", "(2) $21$", "42 million dollars", "42bn", "42 thousand people", "42 less than 50",
        "\\phantom{42}", "<b>43</b>", "4<sup>2</sup>", "5, when x=42", "42 if n=5, 43 if n=6",
    ],
    "0": ["0.\\overline{3}", "0.\\bar3", "0.(3)", "not zero", "no solution", "\\emptyset"],
    "\\frac{5}{3}": ["1.6", "1.\\overline{7}"],
    "-\\frac{1}{6}": ["-0.1"],
    "0.\\overline{36}": ["0.36", "0.\\overline{3}6"],
    "2\\sqrt{3}": [
        "3√2 (≈3.46)", "(≈3.46)", "3√2 (about 2√3)", "(B) 3\\sqrt2", "3 $2\\sqrt3$",
        "3√2, approximately 3.46", "approximately 3.46", "3.464102",
    ],
    "6.6e-34": ["6.6e-33 J s", "6.6e-33", "-6.6e-34"],
    "1.6e-19": ["1.6e-18 coulombs", "0.0"],
    "0.0000012": ["0.0000014"],
    "\\frac{1}{2^{2024}}": ["\\frac{1}{2^{2025}}", "0"],
    "\\frac{1}{20!}": ["\\frac{1}{21!}"],
    "\\emptyset": ["0", "\\{0\\}"],
    "n\\equiv1\\pmod{4}": ["n \\equiv 1 \\pmod 3", "n\\equiv 3\\pmod{4}"],
    "x+1\\,": ["x+2"],
    "50\\%": ["0.5", "50‰", "50°", "50 kg", "\\$50"],
    "0.5": ["50%", "50\\%", "50 percent"],
    "5": [
        "42 $(n=5)$", "5 xx - 5 xx + 13", "$5\\text{ xx} - 5\\text{ xx} + 13 cm$", "6 (not 5)", "5 is not 6",
        "(2+i)(2+i)",
    ],
    "\\text{Monday}": ["Tuesday"],
    "12": [
        *SEVERAL, "12 or one", "\\text{12 or 13}", "12≈13", "12 \\approx 13", "12 if x>0; 13 if x<0", "12, no 13",
        "12 no 13", "12; no 13",
    ],
    "13": [
        *SEVERAL, "5 xx - 5 xx + 13", "$5\\text{ xx} - 5\\text{ xx} + 13 cm$", "3\\binom{5}{2}", "13A", "13K",
        "13xy",
    ],
    "2": [
        "sqrt 2", "\\begin{align*}\n x &= 1 \\\\ y &= 2\n\\end{align*}", "2 1/2", "2 3", "one or two", "two halves",
        "twenty-two",
    ],
    "8": ["log 8"],
    "10+2\\sqrt{5}": ["10 − 2√5"],
    "41": ["42 m/s"],
    "1e4": ["1e3"],
    "1": ["2 1/2", "one or two", "one of them", "neither", "一半", "唯一", "一样"],
    "21/2": ["2 1/2"],
    "11": ["2 1/2"],
    "23": ["2 3"],
    "3": [
        "2 3", "1, 2, 3, ...", "2, 3, \\ldots", "$1, 2, 3, \\dots$", "4 (mod 7)", "mod 3", "7 \\pmod 3", "3千",
        "3百", "负3", "三分之一", "第三",
    ],
    "6": ["2 3", "5, not 6", "5 (≠ 6)", "five, not six"],
    "x": ["x or y", "y or x", "$x$ or $y$", "\\text{x or y}", "x and y", "not x", "x ∨ y"],
    "\\sqrt{2}": [
        "\\sqrt2 or \\pi", "\\pi or \\sqrt2", "$\\sqrt2$ or $\\pi$", "√2 or π", "\\sqrt2 & \\pi", "not \\sqrt2",
        "\\sqrt{2} \\text{ or } \\pi", "\\sqrt{2} and \\sqrt{3}", "\\neq \\sqrt2",
    ],
    "\\pi": [
        "\\sqrt2 or \\pi", "\\pi or e", "pi or e", "not \\pi", "\\pi & \\sqrt2", "3.1415...", "3.141593",
        "3.14159265358979",
    ],
    "3.14": ["\\pi or 3.14", "pi or 3.14"],
    "2n": ["n or 2n", "2n or n", "n and 2n"],
    "n^2": ["n^2 or n"],
    "A": [
        "B", "Option B", "A) or B)", "A) 42 or B) 43", "A'", "AB", "B) A", "B or A", "either A or B", "(A) or (B)",
        "A and B", "A nor B", "not A", "≠ A", "A/B", "A | B", "(B) 42", "A) is wrong", "D. $A$", "A) B",
    ],
    "4": ["fourteen", "not four"],
    "-5": ["five"],
    "7": [
        "seven or eight", "seven hundred", "seventy", "seven eighths", "7 eighths", "seventh", "(3)(4)", "3 4",
        "3(4)",
    ],
    "105": ["one hundred", "five"],
    "100": ["10₂"],
    "1/3": ["⅔", "1⅓", "not ⅓", "0.3...", "0.343..."],
    "1/2": ["\\neq \\frac{1}{2}", "½ or ⅓", "not half", "1/2 (0.6)", "0.6 (1/2)"],
    "5/2": ["½", "two or a half", "two and a third", "two", "half of 5/2", "\\frac{5}{2} squared"],
    "-11/4": ["two and three quarters"],
    "6.02\\times10^{23}": ["6.02 x 10^22"],
    "3/4": ["three"],
    "Yes": ["No", "Yes or no", "not yes"],
    "Monday": ["Sunday"],
    "42_8": ["42_9", "34"],
    "x_2": ["x"],
    "x \\neq 2": ["x = 2"],
    "(1,2)": ["not (1,2)", "(1,2) or (2,1)"],
    "n": ["N", "n'", "twice n"],
    "2a": ["a+A"],
    "f'(x)": ["f(x)", "f''(x)"],
    "12, 13": ["not 12 and 13"],
    "\\text{not prime}": ["prime"],
    "4\u200b2": ["4"],
    "5 \\text{ cm}": [
        "5 kg", "5\\text{ kg}", "5 km", "5 m", "5 \\mathrm{mm}", "5 seconds", "5 Kilograms", "5 inches",
        "5 dollars",
    ],
    "5 \\text{ cm}^3": ["5 kg", "5 cm/s"],
    "5 \\text{ N m}": ["5 kg"],
    "20 $cm^{2}$": ["20 kg", "20 m^2"],
    "30 \\mathrm{~km} / \\mathrm{h}": ["30 m/s", "30 kg", "30 mph"],
    "12 \\text{ hours}": ["12 minutes", "twelve days"],
    "5 \\text{ minutes}": ["5 s"],
    "90^\\circ": ["90 radians", "90 K g 90 kg"],
    "\\frac{1}{2} \\text{ kg}": ["0.5 g", "1/2 cm"],
    "5m": ["5n", "5"],
    "\\$5": ["6 dollars", "5km", "5am", "5m", "5 kg", "5 cents", "5 hours", "5 days"],
    "-7": ["A) 7", "(A) - 8"],
    "x+1": ["Ax+1", "(A) x+2"],
    "A+1": ["A) 1", "(B) 1"],
    "i": ["-i", "I"],
    "\\frac{3}{4}": ["3/4 \\boxed{\\frac{3}{5}}"],
    "\\frac{3}{2}": ["2 $\\frac12$"],
    "(3,4)": [
        "\\{3,4\\}", "\\left\\{3,4\\right\\}", "$\\{3, 4\\}$", "the set \\{3,4\\}", "\\{4,3\\}", "y=3, x=4",
        "Y=3, X=4",
    ],
    "(x, y) = (\\frac12, 4)": ["\\{\\frac12, 4\\}"],
    "(0,1)": ["\\{0,1\\}", "[0,1]"],
    "\\{3,4\\}": ["\\{3,5\\}", "(4,3)", "(3,4)", "\\left(4,3\\right)"],
    "3, 4": ["3, 4 \\boxed{3,5}"],
    "3 \\pmod 7": ["3 (mod 5)", "4 (mod 7)", "7"],
    "5 students": ["5 kg", "5 teachers"],
    "(3,\\infty)": ["x \\ge 3", "x<3", "x=3", "3"],
    "(1,2]": ["1<x<2", "x\\le 2"],
    "\\frac{1+\\sqrt5}{2}, \\frac{1-\\sqrt5}{2}": ["(1+√5)/2", "\\frac{1\\pm\\sqrt3}{2}"],
    "\\frac{1\\pm\\sqrt{5}}{2}": ["(1+√5)/2"],
    "120": ["C(10,4)", "C(3,10)", "10C4"],
    "5 \\text{ dollars}": ["5 cents", "5 apples", "5km", "5pm", "5kg"],
    "5 ways": ["5 km", "5 kg"],
    "5 km": ["5 ml", "5 L", "5 km/h"],
    "3 apples": ["3 oranges", "3\\text{ oranges}", "3 kg", "4 apples", "3 meals"],
    "\\frac{\\pi}{4}": ["0.785398", "x = 0.785398163397448", "0.7854"],
    "\\sqrt{2}+\\sqrt{3}": ["3.146264"],
    "1000000": ["1.000"],
    "x \\ge 42": ["at most 42", "up to 42", "x \\le 42", "more than 42"],
    "x \\le 42": ["at least 42"],
    "4t": ["4", "4m", "4 s", "4T"],
    "2ab": ["2", "2a", "2AB"],
    "5am": ["5"],
    "\\frac{1}{m} t": ["\\frac{1}{m}"],
    "e^{-t}\\cos t": ["e^{-t}"],
    "-8i": ["-8", "8i"],
    "4-\\mathrm{i}": ["4", "4+i"],
    "2\\mathrm{e}": ["2"],
    "16": ["C_4^2 C_5^2"],
    "(1)(3)(4)": ["(3)(4)", "12", "8", "(1)(2)(4)"],
    "\\frac{GMm}{r^2}": ["\\frac{GM^2}{r^2}", "\\frac{Gm^2}{r^2}"],
    "ab": ["AB", "Ab"],
    "F=ma": ["F=mA"],
    "mgh": ["mgH", "mg"],
    "2R or R": ["2r or r"],
    "p \\equiv 1 \\pmod 4": ["p=1", "1", "p \\equiv 1", "p=5", "p\\equiv 3\\pmod 4"],
    "2:3:5": ["2/3/5", "\\frac{2}{15}", "3:2:5", "2:3", "4:3:10"],
    "9:03:36 a.m.": ["9:03:36 pm", "9:36:03 am"],
    "1:58 am": ["1:58 pm", "2:58 am"],
    "(-\\infty,1)\\cup(2,\\infty)": [
        "x<1 and x>2", "x<1", "x<1 or x>3", "x\\le1 or x>2", "x<1 or y>2", "]-\\infty,1]\\cup]2,\\infty[",
    ],
    "x \\le -3 \\text{ or } x \\ge 3": ["x<-3 or x>3", "|x|>3"],
    "(-\\infty,0)\\cup(0,\\infty)": ["x=0", "x\\neq 1"],
    "[-2,1)": ["]-2,1[", "[-2,1]", "\\{x|-2\\leq x \\leq 1\\}"],
    "\\mathbb{R}": [
        "all real numbers except 0", "all positive real numbers", "\\mathbb{Z}", "not all real numbers",
    ],
    "\\sqrt2": ["2^0.6", "2^{-0.5}"],
    "\\sin 50^\\circ": ["\\sin 50"],
    "1234.56": ["1.234", "1.234.56", "123.456"],
    "k\\pi, k\\in\\mathbb{Z}": ["k\\pi, k\\in\\mathbb{N}"],
    "10 \\text{ m/s}": ["10 m/s^2", "10 km/h", "11 m s^{-1}", "10 m", "10 s"],
    "10 m/s": ["10 m/s^2", "10 km/h", "11 m s^{-1}", "10 m", "11"],
    "9.8 m/s^2": ["9.8 m/s", "98"],
    "60 cm": ["60°", "60^\\circ", "60 degrees"],
    "60^\\circ": ["\\pi/6", "\\pi/3°", "60 rad", "\\pi/3 cm", "1.047", "60'", "60%", "60 percent", "\\$60"],
    "\\frac{\\pi}{3}": ["60", "30°", "60 rad"],
    "\\frac{\\pi}{3}\\text{ cm}": ["60°"],
    "25°C": ["25°F", "25 cm", "25 degrees Fahrenheit"],
    "1:2:3:4": ["1:2:3:5", "1:2:3", "1:2:3:4:5", "1:2:3 : 5", "4:3:2:1"],
    "20 \\text{ cm}^2": ["20 cm^3", "20 cm", "20 m^2"],
    "5 \\text{ N}": ["5 N m"],
    "22.1cm^{2}": ["22.1 m^2"],
    "9 (apples)": ["9 pears", "10 apples"],
    "24 种": ["42"],
    "BD": ["B", "B, C", "A, B, D"],
    "[2,5)": ["x in [2,5]", "2 in [2,5)"],
    "Tuesday": ["It is Monday", "It is not Tuesday"],
    "ellipse": ["a circle", "an ellipse or a circle"],
    "101_2": ["101_{\\text{three}}", "101 base 3", "5"],
    "\\ln 2": ["\\log_2 e"],
    "24": ["P(4,1)", "(4,3)", "三十四"],
    "\\frac{16}{99}": ["0.16", "0.16̅"],
    "e": ["E", "$E$"],
    "E": ["e"],
    "5\\text{ cm}": ["5 mm", "50 cm", "5in", "5 apples", "5ml"],
    "11\\text{ cm}": ["5 cm, 6 cm"],
    "2\\text{ L}": ["2 ml", "2 cl"],
    "5\\text{ cm}^3": ["5 L"],
    "2 hours 30 minutes": ["3 hours 20 minutes", "2 hours", "2.3 hours"],
    "5 feet 3 inches": ["3 feet 5 inches"],
    "27 cubic inches": ["27 in^2", "27 inches", "27 square inches"],
    "12\\text{ square meters}": ["12 meters", "12 cubic meters"],
    "25 degrees Celsius": ["25°F", "25℉", "26°C"],
    "72^\\circ\\text{F}": ["72°C", "72 degrees Celsius"],
    "5 people": ["5 kg"],
    "1.5 million": ["1.5", "\\$1.5", "1.5 bn"],
    "60 degrees": ["60%"],
    "5 apples": ["5%", "\\$5"],
    "50 cents": ["\\$50", "$50", "50%"],
    "\\$7": ["7%", "7¢"],
    "100\\Omega": ["100 V", "100%", "100 kΩ"],
    "100 k\\Omega": ["100 V", "100 Ω"],
    "5\\text{ A}": ["5 V", "5 mA"],
    "6:00 p.m.": ["6 am", "6:30 pm", "7 pm"],
    "(2,3)": ["{2,3}", "P(3,2)", "P(2,4)"],
    "P(2,3)": ["Q(2,3)", "(3,2)"],
    "(A) 42": ["(B) 42", "B"],
    "43": ["三十四", "负四十三", "四十三或四十四", "四十三万"],
    "5:6": ["6 to 5", "from 5 to 6", "5 or 6"],
    "-1": ["i", "i^4"],
    "(1,000, 2,000)": ["(1, 0, 2, 0)", "(2000, 1000)"],
    "C. {x \\mid-3<x<4}": ["D", "D. {x \\mid-3<x<4}"],
}
# fmt: on
# fmt: off
RESPONSES: Table = {
    "42": [
        "The answer is $\\boxed{\\textbf{(C)}\\ 42}$", "The answer is (C) 42.", "First \\boxed{41}, no: \\boxed{42}",
        "Answer:\n\n$$\\frac{84}{2}$$\n", "The final answer is 42.", "so the result is 42.",
        "<think>Answer: 41</think> Answer: 42", "<think>a</think>b<think>c</think>Answer: 42",
        "<think>a<think>b</think>Answer: 42", "So $\\boxed{\\,42\\,}$", "So \\fbox{42}.", "So \\boxed 42.",
        "So \\boxed {42}.", "\\boxed{Answer: 42}", "答案：42", "最终答案是：$42$", "解答：先算 7。答：42", "【答案】42",
        "<answer>42</answer> took 7 steps", "<Answer>\n$$42$$\n</Answer> 7",
        "<answer>41</answer><answer>42</answer> 7", "<final_answer>Answer: 42</final_answer>",
        "Answer: <answer>42</answer>", "<answer></answer> so it is 42", "等于42", "等于４２。",
        "The final answer is 42. It took 7 steps.", "The final answer is forty-two.", "An\u200bswer:\u200b 42",
        "so n is not 6 but 42.", "so n is not 6 but \\boxed{42}.", "$40+2=\\boxed{42}$", "- \\boxed{42}",
        "It is not a prime, so \\boxed{42}", "\\boxed{42}^\\circ", "\\boxed{42}\n\n\\boxed{42}", "a) $\\boxed{42}$.",
        "2\\sqrt{441}=\\boxed{42}\\text{ cm}", "**\\boxed{42}**", "Since $x=3$, \\boxed{42}",
        "\\boxed{42} or \\boxed{42}", "the number of people who are not sick is $$\\boxed{42}$$",
        "It's not hard to see \\boxed{42}", "\\boxed{42} is not hard to find", "\\boxed{42}^{th}",
        "答え：42", "\\boxed{\\text{Answer: }42}", "So 6*7=42\n\\boxed{42}", "Step 2\n$\\boxed{42}$",
        "We try -\n\\boxed{42}",
    ],
    "41, 42": ["\\boxed{41}, \\boxed{42}", "$\\boxed{41}$ and $\\boxed{42}$"],
    "$y_1=x^2$\n$y_2=x^3$": ["Answer: $y_1 = x^2$\n$y_2=x^3$.", "So we get $y_1=x^2$\n$y_2=x^3$"],
    "50": ["so it is 50%."],
    "24": ["so $\\boxed{4}!$ ways"],
    "17": ["It is \\boxed{17}!", "$\\boxed{17}$! We are done."],
    "C": ["故选C。", "故选：C", "故选择方法一，\\boxed{C}"],
}
NOT_RESPONSES: Table = {
    "42": [
        "First \\boxed{42}, no: \\boxed{41}", "Answer: 42\nAnswer: 41", "so the result is 43.", "I do not know", "",
        "<think>Answer: 42</think> Answer: 41", "<think>It is 42. Answer: 42", "<think>a</think>b<think>c Answer: 42",
        "<think>a</think>Answer: 42<think>", "答案：41\n等于42", "so the answer is not 42.", "so it isn't 42",
        "so it is 42_8", "not \\boxed{42}", "It is not $\\boxed{42}$.", "\\boxed{42} is wrong",
        "$\\boxed{42}$ is not the answer", "\\boxed{41} or \\boxed{42}", "$\\boxed{41}$, $\\boxed{42}$",
        "\\boxed{42} or 43", "43 or \\boxed{42}", "\\boxed{43}\\boxed{42}", "-\\boxed{42}", "2\\cdot\\boxed{42}",
        "\\sqrt{\\boxed{42}}", "\\boxed{42}^2", "\\boxed{42}.5", "\\boxed{42}/2", "1\\boxed{42}", "\\boxed{42}\\pi",
        "\\not\\boxed{42}", "\\neq \\boxed{42}", "more than \\boxed{42}", "不是\\boxed{42}",
        "41 or\n\\boxed{42}", "2\\cdot\n\\boxed{42}", "2 \\times \\boxed{42}",
        "so $\\boxed{42}!$ ways",
    ],
    "41": ["<answer>42</answer>"],
    "$y_1=x^2$\n$y_2=x^3$": [
        "Answer: $2y_1 = x^2$\n$y_2=x^3$", "Answer: $-y_1=x^2$\n$y_2=x^3$", "It is not $y_1=x^2$\n$y_2=x^3$",
        "Answer: $y_0=1$, $y_1=x^2$\n$y_2=x^3$",
    ],
    "C": ["故选择方法一，\\boxed{D}"],
    "43": ["Die Antwort ist nicht 43.", "La respuesta no es 43.", "La réponse n'est pas 43."],
    "41, 42": ["\\boxed{42}"],
    "0.5": ["so it is 50%."],
    "12": ["The final answer is 12 or 13."],
    "13": ["The final answer is 12 or 13."],
}
# fmt: on
# Of files that people train on: math-verify cannot read them, or not as what they mean.
# fmt: off
TRUTHS = (
    "x+1\\,", "1;$\\frac{8}{9}$", "20 $cm^{2}$", "12 or 13", "either 12 or 13", "3:4", "10:30 am",
    "\\text{(B)}", "Yes", "no solution", "(3,\\,125)", "\\$9,500", "50\\%", "42 (n=5)",
    "f(x)=\\begin{cases}1\\\\2\\end{cases}", "±3", "{", "2 hours 30 minutes", "x \\in (1,2]", "A, B",
    "\\frac{1}{", "a_n", "等于42", "$12$ cm or $13$ cm",
    "\\left\\{\\begin{array}{l}\nx=1\\\\\ny=2\n\\end{array}\\right.",
    "\\begin{pmatrix}\n1\\\\\n2\n\\end{pmatrix}",
)
# fmt: on


def rows(right: Table, wrong: Table, before: str = "") -> list[tuple[str, str, float]]:
    """Each response, truth and verdict."""
    verdicts = (RIGHT, right), (WRONG, wrong)
    return [
        (before + text, truth, verdict)
        for verdict, table in verdicts
        for truth in table
        for text in table[truth]
    ]


LINE = "Some work.\nAnswer: "  # after work that is not looked at
TABLES = {
    "answers": (ANSWERS, NOT_ANSWERS, LINE),
    "more of them": (OURS, NOT_OURS, LINE),
    "responses": (RESPONSES, NOT_RESPONSES),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_answers(name: str) -> None:
    """A test for each row would take as long again."""
    graded = [(*row, grade(*row[:2])) for row in rows(*TABLES[name])]
    assert [row for row in graded if (row[3].right, row[3].timeout, row[3].error) != (row[2], 0.0, 0.0)] == []


@pytest.mark.parametrize("truth", TRUTHS)
def test_an_answer_with_the_text_of_the_truth_is_right(truth: str) -> None:
    for response in (f"Answer: {truth}", f"Some work.\n**Answer:** {truth}.", f"so \\boxed{{{truth}}}"):
        if truth not in ("{", "\\frac{1}{") or response[0] == "A":  # they do not close a box
            assert grade(response, truth).right == RIGHT, response
    assert grade("Answer: 4711", truth).right == WRONG


# Of every kind that Qwen2.5-Math's 25 answer sets have (6,643 answers).
# fmt: off
PUBLISHED = (
    "204", "-2", "27.0", "1,000", "110,880", ".998,.965,.729", "0.6666666667", "10^{5}", "2^{10}", "3:4", "5!",
    "\\frac{8}{9}", "-\\frac{1}{2}", "5\\frac{1}{2}", "\\dfrac{\\sqrt{3}}{2}", "2\\sqrt{13}", "\\sqrt[3]{2}",
    "36\\pi", "b ^ { 2 } - 9 a ^ { 2 }", "10-4 n", "x^{2}+2 x+1", "(x+1)(x-2)", "y=2 x-3",
    "\\{x|-2\\leq x < 1\\}", "x \\geq 3", "(-\\infty, 3) \\cup(3, \\infty)", "(2,-1)", "[0,1)", "1,3,9,11",
    "-1,0,1", "\\pm 3", "0 < k < 1", "\\emptyset", "9 (apples)", "20 cm", "60^{\\circ}",
    "30 \\mathrm{~km} / \\mathrm{h}", "\\$9,500", "50\\%", "C", "C. {x \\mid-3<x<4}",
    "\\frac{x^{2}}{16}+\\frac{y^{2}}{4}=1 (y>0)", "\\left(\\begin{array}{l}1\\\\2\\end{array}\\right)",
    "2 \\ln 3", "\\text{Monday}", "no solution", "4.5e33", "2.7778 \\times 10^{-4}", "e^{-t} \\cos t",
    "\\log _{2} 3", "f(x)=3x",
)
# fmt: on


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


def test_the_verdicts_on_answers_without_words_or_delimiters_are_math_verifys() -> None:
    plain = [row for row in rows(ANSWERS, NOT_ANSWERS) if not re.search(r"[$` ]|\\(?:boxed|[(\[])", row[0])]
    assert len(plain) > 40
    assert [row for row in plain if direct(*row[:2]) != row[2]] == []


@fuzz(60)
@given(st.integers(-2000, 2000), st.integers(-2000, 2000), st.sampled_from(["{}", "{:,}", "+{}", "00{}"]))
def test_the_comparison_of_whole_numbers_is_math_verifys(number: int, truth: int, form: str) -> None:
    answer = form.format(number) if number >= 0 else str(number)
    for true in (truth, number):
        assert grade(f"Answer: {answer}", str(true)).right == direct(answer, str(true)) == (number == true)


# fmt: off
FRAGMENTS = st.sampled_from((
    "Answer:", "\\boxed{", "}", "{", "$", "$$", "\\frac", "\\sqrt", "^", "_", "\\left(", "\\right)", "(", "]",
    "=", "1", "42", "-", ",", ".", "%", "\\%", "x", "\\text{", "\\begin{pmatrix}", "\\int", "\\sum", "!",
    "\\pi", " ", "\n", "<think>", "</think>", "or", "and", "\\in", "<", "\\le", "\\cup", "\x00", "\ud800", "𝟜",
))
# fmt: on


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


SEVENTHS = "Answer: \\frac{3\\cdot 2}{14}"  # needs math-verify


def graders() -> set[int]:
    """Process ids of this process's own grading processes."""
    children = psutil.Process().children()
    return {child.pid for child in children if any("grader_child" in word for word in child.cmdline())}


def test_a_forked_process_has_children_of_its_own() -> None:
    assert grade(SEVENTHS, "3/7").right == RIGHT
    before = graders()
    assert before
    child = os.fork()
    if child == 0:
        right = grade(SEVENTHS, "3/7").right
        started = graders()
        close_pools()
        os._exit(0 if right == RIGHT and len(started) == 1 and not graders() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert grade(SEVENTHS, "3/7").right == RIGHT
    assert graders() == before
