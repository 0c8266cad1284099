"""Grades of responses: math-verify's verdict, and DAPO's rule for comparison.

DAPO's reward rule: the text after the last "Answer:", normalised, equals the normalised truth.

Follows `is_correct_minerva` of verl's `verl/utils/reward_score/math_dapo.py`, with which the tests compare it. The
normalisation is that of Lewkowycz et al. 2022 (Minerva, appendix D.1) as lm-evaluation-harness has it; its order
matters and is kept. Its discrepancies are kept too, since it measures the reward that DAPO would have given.
"""

import atexit
import os
import re
import threading
from dataclasses import dataclass

from cppo_lab.data.answers import (
    MAX_ANSWER,
    WINDOW,
    answer_of,
    canonical,
    stated,
    tidy,
    whole_number,
    without_label,
    without_units,
)
from cppo_lab.data.grader_pool import GraderPool
from cppo_lab.data.units import other_unit

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
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    '"',
    "\\dots",
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


# Grades of responses: math-verify's verdict, and DAPO's rule for comparison.
#
# How a response is graded:
# 1. its answer is found (`answers.answer_of`);
# 2. a choice's letter is left out, and another unit than the truth's is wrong (`units.other_unit`);
# 3. a whole number against a whole number is decided here, by comparison: that is every AIME answer and nearly every
#    answer of DAPO-Math-17k, in a few microseconds;
# 4. an answer with the truth's text, or its value as a decimal or fraction, is right (`answers.canonical`);
# 5. anything else is put to math-verify in a child process (`grader_pool`), within a time limit.


LIMIT_SECONDS = 5.0
# Per process: verl grades in several processes, and few answers need a child.
WORKERS = 2

_pools: dict[tuple[float, int], GraderPool] = {}
_pools_lock = threading.Lock()


@dataclass(frozen=True)
class Grade:
    """The grade of one response. All are numbers, 0 or 1, so that a trainer can average them.

    right: math-verify's verdict: the score.
    answer_rule: whether DAPO's rule accepts the response.
    marked: whether the response marks its answer, with "Answer:" or \\boxed{}.
    timeout: math-verify did not decide in time.
    error: the answer could not be judged: too long, or math-verify broke on it.
    """

    right: float
    answer_rule: float
    marked: float
    timeout: float = 0.0
    error: float = 0.0


def grade(response: str, truth: str, limit_seconds: float = LIMIT_SECONDS, workers: int = WORKERS) -> Grade:
    """Grade a response. Whatever its text is, this returns a grade.

    Args:
        response: what the policy wrote, of any length.
        truth: the true answer, as LaTeX without dollars.
        limit_seconds: the longest that math-verify may take, see `GraderPool`.
        workers: the most child processes of this process.

    Raises:
        UserError: math-verify is not installed, or the grading process cannot be started.
    """
    if len(truth) > MAX_ANSWER:
        return Grade(0.0, 0.0, 0.0, error=1.0)
    answer_rule = float(follows_answer_rule(response, truth))
    answer = answer_of(response)
    if answer is None:
        return Grade(0.0, answer_rule, 0.0)
    marked = float(answer.marked)
    if len(answer.text) > MAX_ANSWER:
        return Grade(0.0, answer_rule, marked, error=1.0)
    if "\n" in truth.strip() and _flat(response).endswith(_flat(truth)):  # an answer ends with its line
        return Grade(1.0, answer_rule, marked)
    said = answer.text if answer.marked else stated(answer.text)
    text = answer.text if said is None else without_label(said, truth)
    if said is not None and other_unit(text, truth):
        return Grade(0.0, answer_rule, marked)
    truth = tidy(truth)
    if not re.search("[A-Za-z]", truth):
        text = without_units(text)
    whole, true_whole = whole_number(text), whole_number(truth)
    if whole is not None and true_whole is not None:
        return Grade(float(whole == true_whole), answer_rule, marked)
    if truth and canonical(text) == canonical(truth):
        return Grade(1.0, answer_rule, marked)
    verdict = _pool(limit_seconds, workers).grade(text, said is not None, truth)
    return Grade(
        float(verdict.right),
        answer_rule,
        marked,
        timeout=float(verdict.fault == "timeout"),
        error=float(verdict.fault == "error"),
    )


def _flat(text: str) -> str:
    return canonical(" ".join(text[-WINDOW:].split()))


def close_pools() -> None:
    """End all grading processes of this process; the next grade starts new ones."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


def _pool(limit_seconds: float, workers: int) -> GraderPool:
    key = (limit_seconds, workers)
    with _pools_lock:
        if key not in _pools:
            _pools[key] = GraderPool(limit_seconds, workers)
        return _pools[key]


def _forget_pools() -> None:
    """After a fork: the pools and their pipes are the parent's."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_forget_pools)
