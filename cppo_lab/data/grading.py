"""Grades of responses by math-verify, the reward that verl's trainer gets, and DAPO's rule for comparison.

How a response is graded:
1. its answer is found (`answers.answer_of`);
2. a choice's letter is left out, and another unit than the truth's is wrong (`_other_unit`);
3. a whole number against a whole number is decided here, by comparison: that is every AIME answer and nearly every
   answer of DAPO-Math-17k, in a few microseconds;
4. an answer with the truth's text, or its value as a decimal or fraction, is right (`answers.canonical`);
5. anything else is put to math-verify in a child process (`grader_pool`), within a time limit.
"""

import atexit
import os
import re
import threading
from dataclasses import dataclass
from typing import Any

from cppo_lab.data.answers import (
    MAX_ANSWER,
    WINDOW,
    answer_of,
    canonical,
    residue,
    stated,
    tidy,
    whole_number,
    without_label,
    without_units,
)
from cppo_lab.data.grader_child import TEXT
from cppo_lab.data.grader_pool import GraderPool

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
    if said is not None and _other_unit(text, truth):
        return Grade(0.0, answer_rule, marked)
    truth = tidy(truth)
    if not re.search(r"(?<![\\A-Za-z])[A-Za-z]", truth):  # \sqrt has none
        text = without_units(text)
    if ("\\pmod" in text) != ("\\pmod" in truth):
        text, truth = residue(text), residue(truth)
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


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: dict[str, Any] | None = None,
    *,
    limit_seconds: float = LIMIT_SECONDS,
    workers: int = WORKERS,
    **_: Any,
) -> dict[str, float]:
    """Reward one response, in verl's protocol of custom reward functions.

    In verl's config: `reward.custom_reward_function.path=pkg://cppo_lab.data.grading`, `.name=compute_score`, and the
    keyword arguments of ours under `.reward_kwargs`.

    Args:
        data_source, extra_info: the row's own; the grade does not depend on them.
        solution_str: the response, without special tokens.
        ground_truth: the true answer.
        limit_seconds, workers: see `grade`.

    Returns:
        `score`, the reward; `acc`, the same, by the name under which verl validates; `answer_rule`, `marked_answer`,
        `grade_timeout`, `grade_error`: see `Grade`. verl averages all of them.
    """
    result = grade(solution_str, str(ground_truth), limit_seconds, workers)
    # PAPER: the reward's values are not given. Its reward curves lie between 0 and 0.85 and start near 0, which rewards
    # of 0 and 1 give; DAPO's code has -1 and 1. Group-normalised advantages are the same for both.
    return {
        "score": result.right,
        "acc": result.right,
        "answer_rule": result.answer_rule,
        "marked_answer": result.marked,
        "grade_timeout": result.timeout,
        "grade_error": result.error,
    }


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


# Units of measure behind numbers: math-verify leaves them out.

_PREFIXES = {
    "": "",
    "n": "nano",
    "µ": "micro",
    "m": "milli",
    "c": "centi",
    "d": "deci",
    "k": "kilo",
    "M": "mega",
    "G": "giga",
}
_WITH_PREFIX = {
    "m": "meter metre", "g": "gram gramme gm", "L": "liter litre", "l": "", "s": "second sec", "J": "joule",
    "N": "newton", "W": "watt", "V": "volt", "Hz": "hertz", "Pa": "pascal", "mol": "mole",
}  # fmt: skip
_OTHERS = {
    "min": "minute", "h": "hour hr", "day": "", "week": "", "month": "", "year": "yr", "in.": "inch inches",
    "ft": "foot feet", "yd": "yard", "mi": "mile", "lb": "pound", "oz": "ounce", "t": "ton tonne", "gal": "gallon",
    "deg": "degree", "rad": "radian", "$": "dollar usd", "cent": "", "kg": "kilo",
}  # fmt: skip
# Words that may be something else ("5 in all", "42 A") name no unit.
_UNIT_OF = {
    spelling: prefix + unit
    for units, prefixes in ((_WITH_PREFIX, _PREFIXES), (_OTHERS, {"": ""}))
    for unit, names in units.items()
    for prefix, long in prefixes.items()
    for spelling in (
        prefix + unit,
        *(form for name in names.split() for form in (long + name, f"{long}{name}s")),
    )
} | {f"{unit}s": unit for unit in _OTHERS}
_LENGTHS = {f"{prefix}m" for prefix in _PREFIXES}
_VOLUMES = {f"{prefix}{unit}" for prefix in _PREFIXES for unit in "Ll"}
_DERIVED = {f"{prefix}{unit}" for prefix in _PREFIXES for unit in ("N", "J", "W", "V", "Hz", "Pa")}
_RATES = {"mph": {"mi", "h"}, "kph": {"km", "h"}, "kmh": {"km", "h"}}
_BESIDE = frozenset(["square", "sq", "cubic", "per", "a", "an", "hundred", "thousand", "million", "billion"])
_DEGREE = re.compile(r"°|\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_COUNTED = re.compile(r"\W*[\w.,]*\d[^\w\\]+([A-Za-z]{2,}?)s?\W*")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-zµ]+|\S")


def _other_unit(answer: str, truth: str) -> bool:
    """Whether the truth is a number with a unit, and the answer has units instead of it: "5 kg" for "5 cm".

    An answer without units has no other one. "5 km" for "5 km/h" has a part of them. Of nouns that are no units, one
    alone is compared: "3 oranges" for "3 apples".
    """
    true = _of_truth(truth)
    if not true:
        matches = [_COUNTED.fullmatch(TEXT.sub(r" \1 ", text)) for text in (answer, truth)]
        nouns = [match[1].lower() for match in matches if match]
        # "5 methods" for "5 ways", "12 cm" for "12 units", "5 people" for "5 students"
        if {"way", "unit", "people", "person"} & {*nouns}:
            return False
        return len({str(_units(noun) or noun) for noun in nouns}) > 1
    # Before an equals sign a letter may be a variable ("4s = 20"), and a unit the same in another scale.
    readings = (_of_answer(text) for text in (answer, answer.rpartition("=")[2]))
    if "min" in true:
        readings = (given - {"m"} for given in readings)  # 2 h 5 m
    return not any(given <= true or true <= given or _may_be_equal(given, true) for given in readings)


def _may_be_equal(one: set[str], other: set[str]) -> bool:
    """Whether units may be the same by another name: a litre and a cubed length, N m and J."""
    if all(units & _VOLUMES for units in (one, other)) or any(
        units <= _VOLUMES and others <= _LENGTHS for units, others in ((one, other), (other, one))
    ):
        return True
    alone = [units for units in (one, other) if len(units) == 1]
    return len(alone) < 2 and bool((one | other) & _DERIVED) and all(units <= _DERIVED for units in alone)


def _of_truth(truth: str) -> set[str]:
    """The units of a truth that is a number with units; a single letter is one only as text, otherwise a variable."""
    plain = TEXT.split(_DEGREE.sub(r"\\text{deg}", truth))[::2]
    if any(len(token) == 1 and token.isalpha() for part in plain for token in _TOKEN.findall(part)):
        return set()
    units: set[str] = set()
    for token in _tokens(truth):
        if token[0].isalpha() and token not in _BESIDE:
            if not (named := _units(token)):
                return set()
            units |= named
    return set() if units & {"$", "cent"} else units  # an answer's sign of a currency is dropped before


def _of_answer(answer: str) -> set[str]:
    """The units behind the numbers of an answer."""
    units: set[str] = set()
    behind = False
    for piece in _tokens(answer):
        if piece.isdigit() or piece in ")}":
            behind = True
        elif piece[0].isalpha() and piece not in _BESIDE:
            named = _units(piece) if behind else set()
            behind = bool(named)
            units |= named
        elif piece in "=+,;:<>":
            behind = False
    return units


def _tokens(text: str) -> list[str]:
    text = TEXT.sub(r" \1 ", _DEGREE.sub(r" deg ", text)).replace("μ", "µ")
    return _TOKEN.findall(text)


def _units(word: str) -> set[str]:
    unit = _UNIT_OF.get(word) or _UNIT_OF.get(word.lower())
    return {unit} if unit else _RATES.get(word, set())


# DAPO's reward rule: the text after the last "Answer:", normalised, equals the normalised truth.
#
# Follows `is_correct_minerva` of verl's `verl/utils/reward_score/math_dapo.py`, with which the tests compare it. The
# normalisation is that of Lewkowycz et al. 2022 (Minerva, appendix D.1) as lm-evaluation-harness has it; its order
# matters and is kept. Its discrepancies are kept too, since it measures the reward that DAPO would have given.

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
    answers = _ANSWER.findall(response[-TAIL:])
    return bool(answers) and normalise(answers[-1]) == normalise(truth)


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
