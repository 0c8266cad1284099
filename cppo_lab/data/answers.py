"""The part of a response that is its answer, and the comparison of whole numbers.

Everything here runs in the trainer's own process on text that a policy wrote: it takes time linear in the length of
the last `WINDOW` characters, with possessive quantifiers where a pattern could otherwise backtrack.
"""

import re
from dataclasses import dataclass

WINDOW = 4_000  # characters at the end of a response in which an answer is looked for
PROSE = 1_000  # characters of the end that are handed on when no answer is marked
MAX_ANSWER = 1_000  # characters; MATH's longest answer has 159, DAPO's are integers
THINK_START, THINK_END = "<think>", "</think>"
# "Answer: 5", "**Answer:** 5", "Answer**: 5", "answer：5"; the text may be on a following line.
_MARK = re.compile(r"(?i)answer\s*+\**+\s*+[:：]\s*+\**+\s*+(?=\S)")
_BOX = "\\boxed{"
_OPENINGS = {"$$": "$$", "\\[": "\\]"}  # displayed formulas, which may span lines
_FENCES = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"), (_BOX, "}"))
# A thousands separator of LaTeX between digits: math-verify reads "1\,000" as 1 times 0. Plain commas it knows.
_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,!; ]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_WHOLE = re.compile(r"([+-]?)([0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")


@dataclass(frozen=True)
class Answer:
    """What a response answers.

    text: the answer, or the end of the response if no answer is marked.
    marked: whether it stood after "Answer:" or in a \\boxed{}.
    """

    text: str
    marked: bool


def answer_of(response: str) -> Answer | None:
    """Find the answer that a response gives.

    In this order: the text after the last "Answer:" (which the prompt asks for), the content of the last
    \\boxed{}, the end of the response. Only what follows the last </think> is looked at.

    Returns:
        None if there is none: the response is empty, or its thinking never ends.
    """
    thought = response.rfind(THINK_END)
    if thought < 0 and THINK_START in response:
        # PAPER: not said. A response cut off while thinking has not answered; numbers in its thoughts are no answer.
        return None
    start = 0 if thought < 0 else thought + len(THINK_END)
    final = response[max(start, len(response) - WINDOW) :].replace("\0", " ").strip()
    if not final:
        return None
    marks = list(_MARK.finditer(final))
    if marks:
        return Answer(_tidy(_first_formula_or_line(final[marks[-1].end() :])), True)
    boxed = _last_boxed(final)
    if boxed is not None:
        return Answer(_tidy(boxed), True)
    return Answer(final[-PROSE:], False)


def whole_number(text: str) -> str | None:
    """A whole number in one spelling ("+1,000" and "01000" are "1000"), or None for any other text."""
    match = _WHOLE.fullmatch(_bare(text))
    if match is None:
        return None
    sign, digits = match.groups()
    value = digits.replace(",", "").lstrip("0") or "0"
    return f"-{value}" if sign == "-" and value != "0" else value


def tidy_truth(truth: str) -> str:
    """The true answer in the spelling that answers are brought to."""
    return _tidy(truth)


def _tidy(text: str) -> str:
    return _SEPARATOR.sub("", text.strip().strip("*").rstrip().rstrip(".,;").rstrip())


def _first_formula_or_line(text: str) -> str:
    """The displayed formula that the text starts with, or its first line."""
    closing = _OPENINGS.get(text[:2])
    if closing is not None:
        end = text.find(closing, 2)
        if end >= 0:
            return text[: end + 2]
    return text.split("\n", 1)[0]


def _last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{}, or None if there is none or its braces do not close."""
    start = text.rfind(_BOX)
    depth = 0
    for place in range(start + len(_BOX) - 1, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len(_BOX) : place]
    return None


def _bare(text: str) -> str:
    """The text without dollars, boxes and emphasis around the whole of it."""
    for _ in range(4):
        text = text.strip().rstrip(".")
        fence = next((pair for pair in _FENCES if text.startswith(pair[0]) and text.endswith(pair[1])), None)
        if fence is None or len(text) <= len(fence[0]) + len(fence[1]):
            return text
        text = text[len(fence[0]) : -len(fence[1])]
    return text
