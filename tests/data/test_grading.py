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
from cppo_lab.data.grading import close_pools, compute_score
from tests.fuzz.mangling import fuzz
from tests.waiting import CEILING_SECONDS, is_alive

# Without the limit of normal use: a right answer may take as long as this machine needs for it.
grade = partial(grading.grade, limit_seconds=CEILING_SECONDS)
RIGHT, WRONG = 1.0, 0.0
Table = dict[str, str | list[str]]  # a truth, and an answer or several to it


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
    "73": "073",
    "073": "73",
    "-3": ["-3", "$-3$", "−3"],
    "3": ["+3", "\\log_2 8"],
    "0": "-0",
    "999999999999999999999999": "999999999999999999999999",
    "1000": ["1,000", "$1{,}000$", "$1\\,000$"],
    "1,000": "1000",
    "1000000": "1,000,000",
    "5": "x = 5",
    "\\frac{1}{2}": ["1/2", "\\frac12", "\\dfrac{2}{4}"],
    "0.5": "\\frac{1}{2}",
    "\\frac{-1}{2}": "-\\frac{1}{2}",
    "\\frac{3}{2}": "1\\frac{1}{2}",
    "\\frac{1}{3}": "0.3333333",
    "\\sqrt{8}": "2\\sqrt{2}",
    "2\\sqrt{2}": "\\sqrt8",
    "\\frac{\\sqrt{2}}{2}": "\\frac{1}{\\sqrt{2}}",
    "\\sqrt{5+2\\sqrt{6}}": "\\sqrt{2}+\\sqrt{3}",
    "2\\pi": "\\pi \\cdot 2",
    "1024": "2^{10}",
    "3628800": "10!",
    "10": "\\binom{5}{2}",
    "12": "3 \\times 4",
    "1500": "1.5 \\times 10^3",
    "(x+1)^2": "x^2+2x+1",
    "4i+3": "3+4i",
    "\\infty": "\\infty",
    "(1,2]": "(1, 2]",
    "\\{2,1\\}": "\\{1, 2\\}",
    "\\{1,2\\}": "1, 2",
    "x<5": "5 > x",
}
NOT_ANSWERS: Table = {
    "42": ["43", "unknown", "42.5", "42 and 43"],
    "-3": "3",
    "999999999999999999999999": "999999999999999999999998",
    "1000000": "1,000,001",
    "6": "x = 5",
    "\\frac{1}{2}": "\\frac{1}{3}",
    "\\frac{1}{3}": "0.33",
    "0.42": "$42\\%$",
    "1.41": "\\sqrt{2}",
    "\\pi": "\\frac{22}{7}",
    "12": ["12 or 13", "$12$ or $13$"],
    "(x+1)^2": "x^2+2x+2",
    "(1,2)": ["[1, 2]", "(2, 1)"],
    "\\{1,2\\}": "$\\{1,2,3\\}$",
    "x<5": "x < 6",
}
# fmt: on
# As above, where math-verify alone would decide otherwise, by truth. Each is here for a part of a pattern or a branch
# that it decides, or for what math-verify reads:
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
    "(3,\\,125)": "(3,125)",
    "1042": ["1\\,042", "1\\;042", "1~042", "1\u202f042"],
    "42": [
        "\\frac{13}{29}, so $m+n=42$",
        "42 with x=3",
        "€42", "£42", "¥42", "42 (n \\ge 5)", "42 (where $n=5$)", "４２", "$\\boxed{\n42\n}$", "\\boxed{\n42\n}",
        "**\\boxed{\n42\n}**", "```\n\\boxed{\n42\n}\n```", "```\n\\boxed{42}\n```", "$\n42\n$",
        "\\begin{align*}\n x &= 6 \\cdot 7 \\\\ &= 42\n\\end{align*}", "$42\nIt costs $5", "42 m s^{-1}",
        "42 people/km^2", "42 [m/s]", "\\boxed{42 m/s}", "42\\ \\frac{m}{s}", "≈42", "#42", "42 (two solutions)",
        "42 or 42", "6*7 => 42", "$\\boldsymbol{42}$", "\\Large{42}", "\u206042", "\u202a42\u202c", "\u206642\u2069",
        "forty-two", "42 (forty-two)", "42 rather than 43", "not 43 but 42", "42 (≠ 43)", "42 (not 43 or 44)",
        "42, since x cannot be negative", "n \\neq 0, n = 42", "There is no solution other than 42",
        "42 because n is not prime", "42_{10}", "at least 42", "approximately 42", "42 apples and oranges", "(A) 42",
        "$\\textbf{(A)}\\ 42$", "42 (A)", "42 \\(\\boxed{42}\\)", "(1) $42$", "$42$ m/s^2", "42 (6·7)", "$42$ (42)",
        "42 (42.0)", "\\emph{42}", "\\mathsf{42}", "\\texttt{42}", "142 mod 100", "$42$ (since $6\\cdot 7=42$)",
        "42 \\pmod{100}", "42 k\\Omega", "42 Ω", "42 \\mu m", "$42$(n=5)", "\\hspace{1em}42\\hfill", "\\phantom{1}42",
        "\\pmb{42}", "\\ensuremath{42}", "<b>42</b>", "<|begin_of_box|>42<|end_of_box|>",
        "\\begin{center}42\\end{center}", "42, where n=5", "42, when $n=5$", "42 if n = 5", "42 at x=1",
        "42, because 41 is odd", "\\hbox{\\small{\\huge{42}}}", "42, not 41 and 43", "42, not 40 + 3",
        "42 (because $n=5$)", "42 (for n=5)", "42 [n=5]", "42, for n=5",
        "\\begin{gather*}\\begin{split}42\\end{split}\\end{gather*}", "\\underline{\\mathbf{\\bm{42}}}",
        "\\begin{equation}\\begin{multline}42\\end{multline}\\end{equation}", "42 (n \\neq 5)",
    ],
    "x+1": ["$x+1\\,.$", "`1+x`", "```latex\n1+x\n```"],
    "9500": "€9,500",
    "cd+ab": "ab + cd",
    "12": ["3(4)", "(3)\\binom{4}{1}"],
    "\\sqrt{2}": ["sqrt(2)", "2^\\frac12", "根号2", "\\sqrt\\frac{4}{2}", "AB = √2"],
    "(3,4)": ["\\big(3,4\\big)", "f(2) = $(3,4)$", "(3,4) (not \\{3,4\\})", "$x=3,y=4$, so $P=(3,4)$", "$n=3$, $k=4$"],
    "1000": ["1\\mathord{,}000", "1\\enspace000", "1\\thinspace000", "10**3", "1 000", "1,\\!000"],
    "0.0015": ["1.5×10⁻³", "1.5*10^-3", ".15e-2"],
    "1e-3": "0.001",
    "3": ["5–2", "3 (mod 7)", "$3$ (mod $7$)", "3 \\bmod 7", "3千克", "共三种", "log 8/log 2"],
    "-3": ["—3", "negative 3"],
    "1/2": ["\\frac{\\mathbf{1}}{2}", "1/2 (not 1/3)", "1/2 (0.5)", "\\frac12 (= 0.5)", "一半"],
    "12,13": ["12 and 13", "12 cm and 13 cm"],
    "\\frac{5}{3}": ["$1.\\bar{6}$", "1.\\dot6", "1.(6)"],
    "-\\frac{1}{6}": "-0.1\\overline{6}",
    "0.\\overline{36}": ".\\overline{36}",
    "2\\sqrt{3}": [
        "2√3 (≈3.46)", "$2\\sqrt{3}$ (approximately $3.46$)", "$2\\sqrt{3} (\\approx 3.46)$", "2√3 cm (~3.46 cm)",
        "$2\\sqrt3$ (3.46)", "\\(2\\sqrt{3}\\) ≈ 3.46", "2√3, approximately 3.46", "$2\\sqrt{3}$, about $3.46$",
        "2√3, or approximately 3.46", "2√3 (roughly 3.46)", "2√3 (~3.46)", "2√3, or roughly 3.46",
    ],
    "6.6e-34": ["6.6e-34 J s", "$6.6\\times10^{-34}\\,\\mathrm{J\\cdot s}$"],
    "\\frac{1}{2^{2024}}": ["2^{-2024}", "\\frac{2}{2^{2025}}"],
    "\\emptyset": ["\\varnothing", "\\{ \\}", "the empty set"],
    "n\\equiv1\\pmod{4}": "n \\equiv 1 \\pmod 4",
    "\\pi": "pi",
    "A": ["Option A", "choice (A)", "The answer is A", "a", "(A) 42", "A. 42", "\\textbf{(A)}\\ 42"],
    "1": "one",
    "2": "two solutions",
    "4": "4 (not five)",
    "5": ["\\begin{eqnarray}5\\end{eqnarray}", "\\textdollar{}5", "5 not 6", "five (not six)"],
    "-5": ["negative five", "负五"],
    "0": "zero",
    "105": ["one hundred and five", "one hundred five"],
    "1200": "one thousand two hundred",
    "1000000": ["a million", "1.000.000"],
    "100": "10²",
    "1/3": ["one-third", "0.33…", "0.333\\ldots", ".333..."],
    "7/8": ["seven eighths", "7 eighths"],
    "5/2": ["Two-and-a-half hours", "2 and a half"],
    "-11/4": "minus two and three quarters",
    "6.02\\times10^{23}": ["6.02 x 10^23", "6.02X10^{23}"],
    "3/4": ["{3 \\over 4}", "四分之三"],
    "42_8": "42",
    "x \\neq 2": ["x ≠ 2", "x \\ne 2"],
    "(1,2)": ["(1, 2) (not (2, 1))", "1, 2"],
    "\\{(1,2),(3,4)\\}": "\\{(3,4),(1,2)\\}",
    "5 \\text{ cm}": ["5 units", "4s = 5", "n=4: $5$"],
    "5 \\text{ cm}^3": ["5 mL", "5 ml"],
    "5 \\text{ N m}": "5 Joules",
    "20 $cm^{2}$": ["20 cm^2", "20"],
    "30 \\mathrm{~km} / \\mathrm{h}": "30 kilometers an hour",
    "5m": "5m",
    "\\$5": ["\\$5 a day", "500 cents", "\\$5 per week", "\\$5 a year"],
    "-7": "\\textbf{(C)}~{-7}",
    "\\frac{3}{4}": "3/4 \\boxed{\\frac34}",
    "(x, y) = (\\frac12, 4)": "(0.5, 4)",
    "3, 4": "3, 4 \\boxed{3,4}",
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}": "\\begin{bmatrix}1\\\\2\\end{bmatrix}",
    "3 \\pmod 7": ["3 (mod 7)", "x\\equiv 3 \\pmod 7", "3"],
    "1/6": "0.1666...",
    "\\frac{1}{11}": "0.090909...",
    "(3,\\infty)": ["x>3", "3 < x", "x \\in (3,∞)", "(3, oo)"],
    "\\frac{1+\\sqrt5}{2}, \\frac{1-\\sqrt5}{2}": ["\\frac{1\\pm\\sqrt5}{2}", "x=\\frac{1\\mp\\sqrt{5}}{2}"],
    "\\frac{1\\pm\\sqrt{5}}{2}": "\\frac{1+\\sqrt5}{2} \\text{ and } \\frac{1-\\sqrt5}{2}",
    "120": ["C_{10}^{3}", "C_{10}^3", "10C3", "{}_{10}C_3", "^{10}C_3", "{}^{10}C_{3}"],
    "C(10,3)": "C(10, 3)",
    "\\binom{n}{2}": ["C_n^2", "C(n,2)"],
    "1,2,3,\\ldots": "1, 2, 3, ...",
    "3 apples": "3 Apples",
    "5 \\text{ dollars}": "\\$5 a day",
    "5 ways": "5 methods",
    "\\frac{\\pi}{4}": ["\\pi/4 (0.785398)", "\\pi/4 = 0.785398", "0.25π", "\\frac\\pi4"],
    "x \\ge 42": ["[42,\\infty)", "x>=42", "x ⩾ 42"],
    "4t": "4t",
    "\\frac{3+2i}{5}": "\\frac{2i+3}{5}",
    "2(x+1)": "(2)(x+1)",
    "3x-3": "(x-1)(3)",
    "60\\text{ km per h}": "60 km/h",
    "\\sin 15^\\circ": "sin 15°",
    "\\sin^2 15^\\circ": "(\\sin 15^\\circ)^2",
    "2ab": "2ba",
    "\\frac{1}{m} t": "\\frac{t}{m}",
    "e^{-t}\\cos t": ["\\frac{\\cos t}{e^t}", "\\cos(t) e^{-t}"],
    "2\\mathrm{e}": "2e",
    "\\frac{x}{2}": "1/2 x",
    "30": "3C(5,2)",
    "60": ["\\binom{4}{2}\\binom{5}{2}", "C_4^2 C_5^2"],
    "(1)(3)(4)": "\\textcircled{1}\\textcircled{3}\\textcircled{4}",
    "\\frac{GMm}{r^2}": ["GmM/r^2", "F = \\frac{GMm}{r^2}"],
    "mgh": "m g h",
    "2R or R": "R or 2R",
    "p \\equiv 1 \\pmod 4": ["p≡1 (mod 4)", "$p\\equiv 1\\pmod{4}$"],
    "2:3:5": ["2 : 3 : 5", "4:6:10", "2 to 3 to 5"],
    "1:\\sqrt{3}:2": "1:\\sqrt3:2",
    "1:58 am": ["1:58 a.m.", "1:58"],
    "(-\\infty,1)\\cup(2,\\infty)": [
        "$x<1$ or $x>2$", "\\{x | x<1 \\text{ or } x>2\\}", "x\\in(-\\infty,1)\\cup(2,\\infty)",
        "]-\\infty,1[\\cup]2,\\infty[",
    ],
    "x \\le -3 \\text{ or } x \\ge 3": ["(-\\infty,-3]\\cup[3,\\infty)", "|x| \\ge 3"],
    "\\{x \\mid x<-2 \\text{ 或 } 1<x<3\\}": "(-\\infty,-2)\\cup(1,3)",
    "(-\\infty,0)\\cup(0,\\infty)": "x \\neq 0",
    "[-2,1)": ["\\{x|-2\\leq x < 1\\}", "[-2;1)", "x\\in[-2;1)"],
    "(0,1]": ["]0,1]", "]0;1]"],
    "(0,\\infty)": ["\\{x \\in \\mathbb{R} : x > 0\\}", "]0,+\\infty["],
    "\\mathbb{R}": ["all real numbers", "all reals", "\\text{all real numbers}", "x \\in \\mathbf{R}"],
    "\\text{all real numbers}": "\\mathbb R",
    "\\text{no solution}": ["There is no solution", "no real solutions", "there are no solutions", "no root"],
    "\\sqrt2": ["2^0.5", "2^{0.5}", "2**0.5", "2**.5", "2**(1/2)"],
    "e^{-0.5}": "\\frac{1}{\\sqrt{e}}",
    "\\frac{\\sqrt{6}-\\sqrt{2}}{4}": "\\sin(15°)",
    "1234.56": "1.234,56",
    "(\\frac{1}{2}, 3)": "(0.5; 3)",
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}": [
        "\\left(\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right)", "[[1,2],[3,4]]",
    ],
    "k\\pi, k\\in\\mathbb{Z}": ["k\\pi (k\\in\\mathbf{Z})", "kπ, k∈ℤ", "k\\pi (k \\in \\mathrm{Z})"],
    "1,2": "2、1",
    "60^\\circ": ["\\pi/3", "60^o", "pi/3"],
    "60 degrees": "\\pi/3",
    "\\frac{\\pi}{8}": ["22.5^\\circ", "22.5 degrees"],
    "1:2:3:4": "2:4:6:8",
    "1:\\sqrt{2}:2:4:3": "2 : 2\\sqrt{2} : 4 : 8 : 6",
    "9.8 \\mathrm{~m} / \\mathrm{s}^2": ["9.8 m s^{-2}", "9.8 \\frac{m}{s^2}"],
    "22.1cm^{2}": "22.1 square centimeters",
    "3.00 \\times 10^8 \\text{ m/s}": "3e8 m/s",
    "2 (portions of trail mix)": "2",
    "9 (quarters)": "9 (quarters)",
    "24 种": "24",
    "BD": ["B, D", "B and D", "(B), (D)"],
    "[2,5)": "x in [2,5)",
    "Tuesday": "It is Tuesday",
    "ellipse": ["an ellipse", "The ellipse."],
    "101_2": ["101_{\\text{two}}", "101_\\text{two}", "101_{two}", "101 (base 2)"],
    "\\ln 2": ["\\log_e 2", "\\log_{e}(2)"],
    "24": ["P(4,3)", "$A_4^3$"],
    "(4,3)": "P(4,3)",
    "\\frac{16}{99}": ["0.1\u03056\u0305", "$0.1\u03056\u0305$"],
    "C": ["故选C", "选c", "故选：C"],
    "5\\text{ cm}": "0.05 m",
    "2 hours 30 minutes": "2 hours and 30 minutes",
    "5 feet 3 inches": "63 inches",
    "25 degrees Celsius": ["25", "25 degrees"],
    "98.6 degrees Fahrenheit": ["98.6°F", "98.6"],
    "1.5 million": ["\\$1.5 \\text{ million}", "0.0015 bn"],
    "42000000": ["42 million dollars", "$42$ million"],
    "50 cents": ["\\$0.50", "0.50 dollars"],
    "25\\%": "百分之二十五",
    "100\\text{ V}": "0.1 kV",
    "100 k\\Omega": ["100 kΩ", "100"],
    "13": "13th",
    "6:00 p.m.": ["6 pm", "6PM"],
    "3125": ["3\\text{,}125", "3\\mathpunct{,}125", "3\\hspace{1pt}125", "3\\mathrm{,}125"],
    "43": ["等于四十三", "四十三个"],
    "30000": ["3万", "3万元"],
    "3000": "3千",
    "5:6": ["$5$ to $6$", "The ratio is 5 to 6"],
    "(2,3)": ["P(2,3)", "A(2, 3)"],
    "(A) 42": "42",
    "-1": "i^2",
    "2i": "(1+i)^2",
    "z=3+4i": ["(2+i)^2", "3+4i"],
    "a+bi": "bi+a",
    "(1,000, 2,000)": ["(1000, 2000)", "(1{,}000, 2{,}000)"],
    "(-\\infty, 4]": "(-inf, 4]",
    "[1,2]\\cup[3,4]": "[1, 2] U [3, 4]",
    "\\frac34": ["\\nicefrac{3}{4}", "\\sfrac{3}{4}"],
    "\\binom{10}{3}": "10 choose 3",
    "C. {x \\mid-3<x<4}": "(C)",
    "\\begin{pmatrix}-1&2\\\\3&\\frac12\\end{pmatrix}": [
        "\\begin{pmatrix}-1&2\\\\\n3&\\frac12\\end{pmatrix}",
        "\\begin{pmatrix}\n-1 & 2 \\\\\n3 & 0.5\n\\end{pmatrix}",
    ],
    "\\arctan 2": ["arctan 2", "arctan(2)"],
    "\\infty": "Infinity",
    "Monday": ["it was Monday", "It's Monday", "on Monday"],
    "(1,-2,3)": ["\\langle 1,-2,3\\rangle", "⟨1,-2,3⟩"],
    "11": ["\\bf{11}", "∴11", "⇒ 11"],
    "1234567": "12,34,567",
    "0<x<1": ["x>0 and x<1", "1>x>0", "x>0, x<1"],
    "3 \\geq x > -1": ["(-1,3]", "-1<x\\le3"],
    "(-\\infty,-1]\\cup(3,\\infty)": "x \\le -1, x > 3",
    "2\\cos\\theta": "2 cos theta",
    "March 5": "March 5th",
    "12 m^2": "12 m2",
    "B": ["letter B", "B, because the other ones fail", "B is correct", "B, since 2<3"],
    "\\log_2 3": "ln 3/ln 2",
    "x \\le 42": "x ⩽ 42",
    "Yes": ["The answer is yes", "Yes, because 2 > 1"],
    "7/2": "3 and a half",
    "C(n,k)": "n choose k",
    "ABCD": "A and B and C and D",
    "10 m/min": "10",
    "10 km/h": "10",
    "10 N/cm^2": "10",
    "10 ft/s": "10",
    "10 kg/L": "10",
    "\\cos 3": "cos 3",
    "\\cot 3": "cot 3",
    "\\sec 3": "sec 3",
    "\\csc 3": "csc 3",
    "\\exp(3)": "exp(3)",
    "\\ln 3": "ln 3",
    "14": "fourteen",
    "5 sec": "5",
    "12 mph": "12",
    "5 min": "5",
    "\\sqrt{x}": "√x",
    "D": ["choice D. 5", "Option D. 5"],
    "22": "22nd",
    "7 tanks": "7",
    "5 p.m.": "5 pm",
    "21": "21st",
    "23": "23rd",
    "25": "百分之25",
    "1.2": "一点二",
    "AC": ["选AC", "A和C"],
    "\\text{odd}": "It is odd",
    "5\\%": ["5 pct"],
    "\\frac{1}{2}": ["\\xfrac{1}{2}"],
}
NOT_OURS: Table = {
    "(3,125)": "(3,\\,125]",
    "3,\\,125": ["3\\,125", "3125"],
    "42": [
        "It isn’t 42", "isnt 42", "Not 42.", "never 42", "\\text{not } 42", "42 isn't right", "cannot be 42",
        "can't be 42", "unequal to 42", "neither 42", "42 nor 43", "anything but 42", "other than 42", "≠ 42",
        "\\not= 42", "\\not = 42", "=/= 42", "<> 42", "> 42", "\\ge 42", "≥42", "more than 42", "42_8", "42₈", "42₍₈₎",
        "42_{(8)}", "not $42$", "42 or \\infty", "42 and \\pi", "42 ∨ x", "42, maybe \\pi", "half of 42",
        "the square root of 42", "the negative of $42$", "42 minus one", "42 +", "42-", "a multiple of 42",
        "divisible by 42", "over 42", "none of 42", "all but 42", "everything except 42", "no 42", "far from 42",
        "hardly 42", "by no means 42", "it ain't 42", "42 is impossible", "42 must be rejected",
        "42 is the wrong answer", "42 (wrong)", "42? No.", "42 fails", "没有42", "除了42", "小于42", "不可能是42",
        "42分之一", "42不对", "42是错的", "\\boxed{42}^2", "42 - \\boxed{42}", "41, x = $42$", "41 \\(42\\)", "42...",
        "42…", "$42\\dots$", "$42$ (43)", "42 dozen", "42 million dollars", "42 thousand people", "42 less than 50",
        "\\phantom{42}", "4<sup>2</sup>", "42 if n=5, 43 if n=6", "42 \\lor x", "42 \\vee x", "42 vs x", "42 versus x",
        "42, perhaps \\pi", "42, possibly \\pi", "42, alternatively \\pi", "$42+0$ is wrong", "42 are not",
        "42 was not it", "42 does not work", "42 do not work", "42 did not work", "42 can not be", "42 could not be",
        "42 will not do", "42 would not do", "42 may not be", "It won't be 42", "distinct from 42", "nor 42",
        "instead of 42", "не 42", "fails to be 42", "without 42", "excluding 42", "超过42", "42 is incorrect",
        "42 is false", "42 is invalid", "42 is ruled out", "42 can't be right", "42 won't work", "42 cannot be right",
        "!= 42", "42不是", "twice 42", "below 42", "above 42", "under 42", "the square of 42", "the cube of 42",
        "the reciprocal of 42", "a divisor of 42", "a factor of 42", "42 cubed", "42 factorial", "42 plus one",
    ],
    "0": ["0.\\bar3", "0.(3)", "not zero", "no solution"],
    "\\frac{5}{3}": "1.\\overline{7}",
    "0.\\overline{36}": "0.\\overline{3}6",
    "2\\sqrt{3}": ["(≈3.46)", "3 $2\\sqrt3$", "3.464102"],
    "1.6e-19": "0.0",
    "\\frac{1}{2^{2024}}": ["\\frac{1}{2^{2025}}", "0"],
    "\\emptyset": ["0", "\\{0\\}"],
    "n\\equiv1\\pmod{4}": "n \\equiv 1 \\pmod 3",
    "x+1\\,": "x+2",
    "50\\%": ["0.5", "50°"],
    "0.5": ["50%", "50 percent", "0,5"],
    "5": ["5 is not 6", "(2+i)(2+i)", "four and 5"],
    "\\text{Monday}": "Tuesday",
    "12": [
        "thrice 12", "12 doubled", "exceeds 12", "the opposite of 12", "a third of 12", "no longer 12",
        "nothing like 12", "everything but 12", "12 除外", "beyond 12", "the factorial of 12", "the inverse of 12",
        "a quarter of 12", "12 halved",
        "\\boxed{12} cm or \\boxed{13} cm", "12?13", "12\\\\13", "12 \\mathbf{13}",
        "12 \\text{ if n is even, 13 if odd}", "12 or one", "12≈13", "12 \\approx 13", "12 if x>0; 13 if x<0",
        "12, no 13", "12 no 13",
        "12th root",
    ],
    "13": [
        "12 \\& 13", "12 --> 13", "12 => 13", "12...13", "12 … 13", "12\\to 13", "12 \\cup 13", "#12 13",
        "$12$ & $13$", "12 i.e. 13", "12 and thirteen", "5 xx - 5 xx + 13", "3\\binom{5}{2}", "13A", "13K", "13xy",
    ],
    "2": ["sqrt 2", "\\begin{align*}\n x &= 1 \\\\ y &= 2\n\\end{align*}", "one or two"],
    "8": "log 8",
    "10+2\\sqrt{5}": "10 − 2√5",
    "1e4": "1e3",
    "1": ["2 1/2", "one or two", "one of them", "neither", "唯一", "一样"],
    "3": ["1, 2, 3, ...", "2, 3, \\ldots", "mod 3", "3千", "3百", "第三", "3 theta"],
    "6": ["5, not 6", "6:1"],
    "x": "x or y",
    "\\sqrt{2}": ["\\sqrt2 or \\pi", "not \\sqrt2", "\\sqrt{2} and \\sqrt{3}", "\\sqrt2 and \\pi"],
    "\\pi": ["\\sqrt2 or \\pi", "\\pi or e", "not \\pi", "\\pi & \\sqrt2", "3.141593"],
    "3.14": "\\pi or 3.14",
    "2n": "n and 2n",
    "n^2": "n^2 or n",
    "A": ["Option B", "A) or B)", "A'", "AB", "either A or B", "A nor B", "A/B", "A) is wrong", "A) 42 B) 43"],
    "7": ["7 eighths", "(3)(4)", "3 4"],
    "1/3": ["not ⅓", "0.3..."],
    "1/2": ["\\neq \\frac{1}{2}", "1/2 (0.6)"],
    "5/2": ["½", "half of 5/2", "\\frac{5}{2} squared"],
    "6.02\\times10^{23}": "6.02 x 10^22",
    "Yes": ["Yes or no", "not yes"],
    "Monday": "Sunday",
    "x \\neq 2": "x = 2",
    "(1,2)": ["not (1,2)", "(1,2) or (2,1)"],
    "n": "n'",
    "12, 13": "not 12 and 13",
    "\\text{not prime}": "prime",
    "5 \\text{ cm}": "5 kg",
    "5 \\text{ N m}": "5 kg",
    "30 \\mathrm{~km} / \\mathrm{h}": "30 mph",
    "5m": ["5n", "5"],
    "x+1": "Ax+1",
    "i": ["-i", "I"],
    "\\frac{3}{4}": "3/4 \\boxed{\\frac{3}{5}}",
    "(3,4)": ["\\{3,4\\}", "$\\{3, 4\\}$", "y=3, x=4", "Y=3, X=4"],
    "(x, y) = (\\frac12, 4)": "\\{\\frac12, 4\\}",
    "(0,1)": "[0,1]",
    "\\{3,4\\}": ["\\{3,5\\}", "(4,3)", "(3,4)", "\\left(4,3\\right)"],
    "5 students": ["5 kg", "5 teachers"],
    "(3,\\infty)": ["x \\ge 3", "x<3", "x=3", "3"],
    "(1,2]": ["1<x<2", "x\\le 2"],
    "\\frac{1+\\sqrt5}{2}, \\frac{1-\\sqrt5}{2}": ["(1+√5)/2", "\\frac{1\\pm\\sqrt3}{2}"],
    "120": "C(3,10)",
    "5 \\text{ dollars}": "5 apples",
    "\\frac{\\pi}{4}": ["0.785398", "x = 0.785398163397448", "0.7854"],
    "\\sqrt{2}+\\sqrt{3}": "3.146264",
    "x \\ge 42": ["at most 42", "x \\le 42"],
    "x \\le 42": "at least 42",
    "4t": "4",
    "\\frac{1}{m} t": "\\frac{1}{m}",
    "e^{-t}\\cos t": "e^{-t}",
    "-8i": ["-8", "8i"],
    "4-\\mathrm{i}": ["4", "4+i"],
    "2\\mathrm{e}": "2",
    "(1)(3)(4)": "(3)(4)",
    "\\frac{GMm}{r^2}": "\\frac{GM^2}{r^2}",
    "ab": "Ab",
    "p \\equiv 1 \\pmod 4": ["p=1", "1", "p=5"],
    "2:3:5": ["2/3/5", "\\frac{2}{15}", "3:2:5"],
    "9:03:36 a.m.": "9:36:03 am",
    "(-\\infty,1)\\cup(2,\\infty)": ["x<1", "x<1 or x>3", "x<1 or y>2"],
    "x \\le -3 \\text{ or } x \\ge 3": "|x|>3",
    "(-\\infty,0)\\cup(0,\\infty)": ["x=0", "x\\neq 1"],
    "[-2,1)": ["]-2,1[", "[-2,1]", "\\{x|-2\\leq x \\leq 1\\}"],
    "\\mathbb{R}": ["all real numbers except 0", "all positive real numbers", "\\mathbb{Z}", "not all real numbers"],
    "\\sqrt2": "2^0.6",
    "\\sin 50^\\circ": "\\sin 50",
    "1234.56": ["1.234", "1.234.56"],
    "10 \\text{ m/s}": "10 m/s^2",
    "10 m/s": "10 m/s^2",
    "60^\\circ": ["\\pi/6", "60'", "60%"],
    "\\frac{\\pi}{3}": ["60", "30°"],
    "25°C": "25°F",
    "1:2:3:4": ["1:2:3:5", "1:2:3", "4:3:2:1"],
    "5 \\text{ N}": "5 N m",
    "BD": "B",
    "[2,5)": ["x in [2,5]", "2 in [2,5)"],
    "Tuesday": ["It is Monday", "It is not Tuesday"],
    "ellipse": ["a circle", "an ellipse or a circle"],
    "\\ln 2": "\\log_2 e",
    "24": "(4,3)",
    "e": ["E", "$E$"],
    "5\\text{ cm}": ["5 apples", "5ml"],
    "11\\text{ cm}": "5 cm, 6 cm",
    "2\\text{ L}": "2 ml",
    "2 hours 30 minutes": "3 hours 20 minutes",
    "27 cubic inches": "27 inches",
    "25 degrees Celsius": "25°F",
    "72^\\circ\\text{F}": ["72°C", "72 degrees Celsius"],
    "1.5 million": "1.5",
    "50 cents": "$50",
    "100\\Omega": "100 V",
    "100 k\\Omega": "100 V",
    "6:00 p.m.": "6:30 pm",
    "(2,3)": ["{2,3}", "P(3,2)", "P(2,4)"],
    "P(2,3)": "Q(2,3)",
    "(A) 42": "(B) 42",
    "43": "负四十三",
    "5:6": "from 5 to 6",
    "-1": ["i", "i^4"],
    "(1,000, 2,000)": "(1, 0, 2, 0)",
    "True": ["True or False", "True or false"],
    "\\begin{pmatrix}-1&2\\\\3&\\frac12\\end{pmatrix}": "\\begin{pmatrix}-1&2\\\\\n3&\\frac13\\end{pmatrix}",
    "-\\infty": "Infinity",
    "\\frac13": "\\begin{pmatrix}-1&2\\\\\n3&\\frac{1}{3}\\end{pmatrix}",
    "0<x<1": ["0, 1", "x>0", "x>0 and x<2", "2>x>0", "x>0, x<2"],
    "(-1,3)": "3 \\ge x>-1",
    "(-\\infty,-1)\\cup(3,\\infty)": "x<-1 and x>3",
    "March 5": "March 15th",
    "x<1 and x>2": "x<0 and x>5",
    "B": "A, because B is wrong",
    "12 m^2": "12 m3",
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}": "[[1,2],[4,3]]",
    "p≡1 (mod 4)": "1",
}
# fmt: on
# fmt: off
RESPONSES: Table = {
    "42": [
        "First \\boxed{41}, no: \\boxed{42}", "<think>Answer: 41</think> Answer: 42",
        "<think>a</think>b<think>c</think>Answer: 42", "So \\boxed 42.", "\\boxed{Answer: 42}", "解答：先算 7。答：42",
        "【答案】42", "<answer>42</answer> took 7 steps", "<Answer>\n$$42$$\n</Answer> 7",
        "<answer>41</answer><answer>42</answer> 7", "<answer></answer> so it is 42", "等于42", "等于４２。",
        "The final answer is 42. It took 7 steps.", "The final answer is forty-two.", "so n is not 6 but \\boxed{42}.",
        "It is not a prime, so \\boxed{42}", "\\boxed{42} is not hard to find", "答え：42",
        "\\boxed{\\text{Answer: }42}", "\\framebox{42}", "With 3 terms we get 7 + 35 = 42.",
    ],
    "41, 42": [
        "\\boxed{41}, \\boxed{42}", "$\\boxed{41}$ and $\\boxed{42}$", "\\fbox{41}; \\fbox{42}",
        "\\boxed{41}和\\boxed{42}", "\\boxed{41}、\\boxed{42}", "$\\boxed{\\text{41}} \\text{ and } \\boxed{42}$",
    ],
    "$y_1=x^2$\n$y_2=x^3$": ["Answer: $y_1 = x^2$\n$y_2=x^3$.", "So we get $y_1=x^2$\n$y_2=x^3$"],
    "24": "so $\\boxed{4}!$ ways",
    "C": ["故选：C", "故选C。共7步"],
    "13": "Is it 12.5? No, it is 13.",
}
NOT_RESPONSES: Table = {
    "42": [
        "", "<think>42</think> \0\n", "It is not $\\boxed{42}$.", "\\boxed{42} is wrong",
        "$\\boxed{42}$ is not the answer", "\\boxed{41} or \\boxed{42}", "$\\boxed{41}$, $\\boxed{42}$",
        "\\boxed{42} is an invalid guess",
        "\\boxed{42} or 43", "43 or \\boxed{42}", "\\boxed{43}\\boxed{42}", "-\\boxed{42}", "2\\cdot\\boxed{42}",
        "\\sqrt{\\boxed{42}}", "\\boxed{42}.5", "\\boxed{42}/2", "1\\boxed{42}", "\\boxed{42}\\pi",
        "more than \\boxed{42}", "不是\\boxed{42}", "2\\cdot\n\\boxed{42}", "2 \\times \\boxed{42}",
        "so $\\boxed{42}!$ ways", "84 \\div \\boxed{42}", "41 或 \\boxed{42}", "41 \\text{ or } \\boxed{42}",
        "\\neq \\boxed{42}", "not equal to \\boxed{42}", "\\frac{\\boxed{42}}{5}", "\\log\\boxed{42}",
        "\\boxed{42}\\frac12", "\\boxed{42}\\cdot 2", "so \\(\\boxed{42}!\\) ways", "\\boxed{42} is not right",
        "\\boxed{42} is not possible", "\\boxed{42} is not it", "\\boxed{42} 或 43", "\\boxed{42}^2",
        "\\pm\\boxed{42}", "\\ln\\boxed{42}", "\\boxed{42}\\times 2", "\\boxed{42}\\sqrt2", "\\boxed{42}_8",
        "\\boxed{42} is not correct", "\\boxed{42} is not valid", "\\boxed{42} is not an answer", "<think>Answer: 42",
        "<think>a</think>b<think>c Answer: 42", "\\boxed{42} is wrong because 43 is",
    ],
    "$y_1=x^2$\n$y_2=x^3$": [
        "Answer: $2y_1 = x^2$\n$y_2=x^3$", "Answer: $-y_1=x^2$\n$y_2=x^3$", "It is not $y_1=x^2$\n$y_2=x^3$",
        "Answer: $y_0=1$, $y_1=x^2$\n$y_2=x^3$",
    ],
    "43": ["Die Antwort ist nicht 43.", "La respuesta no es 43.", "La réponse n'est pas 43."],
    "12": ["The final answer is 12 or 13.", "Is the answer 12? No, it is 13."],
    "3": "so $\\begin{pmatrix}1\\\\\n3\\end{pmatrix}$",
}
# fmt: on
# Of files that people train on: math-verify cannot read them, or not as what they mean.
# fmt: off
TRUTHS = (
    "x+1\\,", "1;$\\frac{8}{9}$", "20 $cm^{2}$", "12 or 13", "either 12 or 13", "3:4", "10:30 am",
    "\\text{(B)}", "Yes", "no solution", "(3,\\,125)", "\\$9,500", "50\\%", "42 (n=5)",
    "f(x)=\\begin{cases}1\\\\2\\end{cases}", "±3", "{", "2 hours 30 minutes", "x \\in (1,2]", "A, B",
    "\\frac{1}{", "a_n", "等于42", "$12$ cm or $13$ cm",
    "\\mathrm{V}=100.5 \\mathrm{~cm}^{3}", "25 \\pi / 144 \\mathrm{~m} / \\mathrm{min}",
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
        for truth, texts in table.items()
        for text in ([texts] if isinstance(texts, str) else texts)
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


def test_what_is_logged_beside_the_score() -> None:
    assert compute_score("aime24", "Answer: 073", 73, {"index": 0}, reward_router_address=None) == {
        **dict.fromkeys(("score", "acc", "marked_answer"), 1.0),
        **dict.fromkeys(("answer_rule", "grade_timeout", "grade_error"), 0.0),
    }


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
    children = [child for child in psutil.Process().children() if is_alive(child.pid)]
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
