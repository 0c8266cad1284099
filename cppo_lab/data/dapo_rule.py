"""DAPO's own reward rule: the text after the last "Answer:", normalised, equals the normalised truth.

Follows `is_correct_minerva` of verl's `verl/utils/reward_score/math_dapo.py`, with which the tests compare it. The
normalisation is that of Lewkowycz et al. 2022 (Minerva, appendix D.1) as lm-evaluation-harness has it; its order
matters and is kept. Its discrepancies are kept too, since it measures the reward that DAPO would have given.
"""

import re

TAIL = 300  # characters of the response that the rule looks at
_ANSWER = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")
_SUBSTITUTIONS = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_UNITS_AND_FILLERS = (
    *(
        "square",
        "ways",
        "integers",
        "dollars",
        "mph",
        "inches",
        "hours",
        "km",
        "units",
        "\\ldots",
        "sue",
        "points",
    ),
    *(
        "feet",
        "minutes",
        "digits",
        "cents",
        "degrees",
        "cm",
        "gm",
        "pounds",
        "meters",
        "meals",
        "edges",
        "students",
    ),
    *("childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3"),
    *("\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),  # only what is between dollars
        (r"(\\text\{)(.*?)(\})", r"\2"),
        (r"(\\textbf\{)(.*?)(\})", r"\2"),
        (r"(\\overline\{)(.*?)(\})", r"\2"),
        (r"(\\boxed\{)(.*)(\})", r"\2"),
        (r"(frac)([^{])(.)", r"frac{\2}{\3}"),  # \fracab -> \frac{a}{b}
        (r"(sqrt)([^{])", r"sqrt{\2}"),  # \sqrta -> \sqrt{a}
    )
)


def follows_answer_rule(response: str, truth: str) -> bool:
    """Whether DAPO's rule finds the true answer in the last 300 characters of the response."""
    found = _ANSWER.findall(response[-TAIL:])
    return bool(found) and normalise(found[-1]) == normalise(truth)


def normalise(answer: str) -> str:
    """An answer without units, fillers, spaces and LaTeX decoration."""
    answer = answer.split("=")[-1]
    for before, after in _SUBSTITUTIONS:
        answer = answer.replace(before, after)
    for filler in _UNITS_AND_FILLERS:
        answer = answer.replace(filler, "")
    for pattern, replacement in _REWRITES:
        answer = pattern.sub(replacement, answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()
