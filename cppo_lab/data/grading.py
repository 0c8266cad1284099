"""Grades of responses by math-verify, the reward that verl's trainer gets, and DAPO's rule for comparison.

How a response is graded:
1. its answer is found (`answers.answer_of`);
2. a choice's letter is left out, and another unit than the truth's is wrong (`_other_unit`);
3. both are rewritten for math-verify (`answers.tidy`), and units that are the same left out;
4. an answer with the truth's text, or its value as a decimal or fraction, is right (`answers.canonical`), and another
   whole number than the truth wrong: so every AIME answer and nearly every answer of DAPO-Math-17k is decided here;
5. anything else is put to math-verify in a child process (`GraderPool`), within a time limit.
"""

import atexit
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Literal

from cppo_lab.data.answers import (
    CURRENCY,
    MAX_ANSWER,
    PERCENT,
    WINDOW,
    answer_of,
    canonical,
    compiled,
    residue,
    rewritten,
    stated,
    tidy,
    whole_number,
    without_degrees,
    without_label,
    without_units,
)
from cppo_lab.data.grader_child import NOT, SIGN, TEXT
from cppo_lab.errors import UserError

LIMIT_SECONDS = 5.0
# Per process: verl grades in several processes, and few answers need a child.
WORKERS = 2


@dataclass(frozen=True)
class Grade:
    """The grade of a response. All are numbers, 0 or 1, so that a trainer can average them.

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
    verdict = partial(Grade, answer_rule=answer_rule, marked=float(answer.marked))
    if len(answer.text) > MAX_ANSWER:
        return verdict(0.0, error=1.0)
    if "\n" in truth.strip():  # an answer ends with its line
        end, lines = _flat(response), _flat(truth)
        if end.endswith(lines) and not _CHANGES_LINES.search(end.removesuffix(lines)):
            return verdict(1.0)
    said = answer.written if answer.marked else stated(answer.written)
    original = rewritten(truth, _OF_TRUTH)
    given = answer.text if said is None else tidy(said)
    true_number = whole_number(original)
    if true_number:  # else it may be a point, or a list
        given = _LAKHS.sub(lambda match: match[0].replace(",", ""), given)
        given = _PERMUTATIONS.sub(lambda match: str(math.perm(int(match[1]), int(match[2]))), given)
    text = given if said is None else without_label(given, original)
    number = whole_number(text)
    if number and true_number:
        return verdict(float(number == true_number))
    if text == given:  # "(A) 42" is no "(B) 42"
        original = without_label(original, text)
    text, original = _in_radians(text, original), _in_radians(original, text)
    true = tidy(original)
    measured, true_measured = f"{text}{_signs(said or '')}", f"{true}{_signs(original)}"
    units = _of_truth(true_measured)
    size, true_size = units and _quantity(measured), units and _quantity(true_measured)
    if size and true_size and size[1] == true_size[1]:
        return verdict(float(size == true_size))
    if said is not None and measured != true_measured and _other_unit(measured, true_measured):
        return verdict(0.0)
    if units or not re.search(r"(?<![\\A-Za-z])[A-Za-z]", true):  # \sqrt has none
        text, true = without_units(text), without_units(true)
    text, true = without_degrees(text), without_degrees(true)
    if ("\\pmod" in text) != ("\\pmod" in true) and not re.search(r"\\equiv|≡", truth):
        text, true = residue(text), residue(true)
    if true and canonical(text) in map(canonical, (true, truth)):
        return verdict(1.0)
    if (whole_number(true) and (whole_number(text) or _RATIO.search(text))) or _conflict(text, true):
        return verdict(0.0)
    pool = _pools.setdefault((limit_seconds, workers), GraderPool(limit_seconds, workers))
    result = pool.grade(text, said is not None, true)
    return verdict(
        float(result == "right"), timeout=float(result == "timeout"), error=float(result == "error")
    )


# Nouns behind a true number as text, which letters of a formula are not: "9 (apples)", "6:01 p.m.", "24 种"
# And "10 m/s" without LaTeX, which has no symbols.
_OF_TRUTH = compiled(
    (
        r"^(-?[\d.,]++) *(?:\(([A-Za-z ]++)\)|("
        r"(?!(?:alpha|delta|gamma|kappa|lambda|omega|sigma|theta|log|sin|cos|tan)(?![a-z]))[a-z]{5,}(?: [a-z]{2,})*))$",
        r"\1\\text{ \2\3}",
    ),
    (r"([ap])\.m\.$", r"\1m"),
    (r"(?<=\d)([ ~]*[kM]?\\Omega)$", r"\\text{\1}"),
    (r"^(-?[\d.,]++) *(?![十百千万亿])[\u4e00-\u9fff]$", r"\1"),
    (
        r"^(-?[\d.,]++) +((?:[kcm]?m|mi|ft|k?g|L|mol|[JNW])/(?:s|hr?|min|[cd]?m|L|kg|mol)(?:\^?[23]|[²³])?)$",
        r"\1\\text{ \2}",
    ),
)
_LAKHS = re.compile(r"(?<![\d,])\d\d?(?:,\d\d)+,\d{3}(?![\d,])")  # "12,34,567"
# "P(4,3)", "A_4^3"
_PERMUTATIONS = re.compile(r"(?<![\\A-Za-z])[PA](?:\(|_\{?)(\d{1,3})\}?[,^] *\{?(\d{1,3})[)}]?")
# Letters that may be symbols side by side, and no words or units
_RUN = re.compile(
    r"(?<![\\A-Za-z])(?!(?i:[ckm]m|kg|ml|[ap]m|[mk]ph|hrs?|min|sec|lbs?|ft|in|yd|oz)(?![A-Za-z]))(?![A-Z][a-z]{2})"
    r"(?:[A-Za-z]'*+){1,3}(?![A-Za-z])"
)


_RATIO = re.compile(r"\d( ?):\1\d+[\s$.]*\Z")
_RATIONAL = re.compile(r"-?\d+(?:/[1-9]\d*)?")
_PI = re.compile(r"\\pi(?![A-Za-z])|(?<![\\A-Za-z])pi(?![A-Za-z])")


def _in_radians(text: str, other: str) -> str:
    """An angle in degrees as that in radians beside a text with pi: 60° as \\pi/3."""
    angle = without_degrees(text) != text and _PI.search(other) and _RATIONAL.fullmatch(canonical(text))
    if not angle:
        return text
    share = Fraction(angle[0]) / 180
    return f"\\frac{{{share.numerator}\\pi}}{{{share.denominator}}}\\text{{ rad}}"


# What changes the lines of an answer from before: "2", "-", "not", a further value
_CHANGES_LINES = re.compile(rf"(?i)(?:[\w.^{{(+\-*/\\]|,\s*|(?:{NOT}|{SIGN})\s*)\Z")


def _conflict(answer: str, truth: str) -> bool:
    """Whether the answer has a symbol of the truth in another case or with other primes (math-verify reads X and x' as
    x).
    """
    runs, true_runs = (_RUN.findall(text) for text in (answer, truth))
    letters = set("".join(true_runs).lower() + "'")
    symbols, true_symbols = (
        {symbol for run in some if set(run.lower()) <= letters for symbol in re.findall("[A-Za-z]'*", run)}
        for some in (runs, true_runs)
    )
    both = symbols | true_symbols
    return symbols != true_symbols and len({symbol[0].lower() for symbol in both}) < len(both)


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
    """Reward a response, in verl's protocol of custom reward functions.

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


# The child processes that run math-verify and can be killed.
#
# math-verify's timeout is a signal, which works in the main thread alone and can't stop C code such as the power of
# two big integers. verl grades in threads. So each grade is made in a child, and a child that does not answer within
# the limit is killed and replaced: one bad grade, no worker lost, no thread stuck.

CHILD = Path(__file__).with_name("grader_child.py")
MEMORY_BYTES = 2 << 30  # address space of a child; math-verify itself takes about 60 MB
START_SECONDS = 120  # for the import of math-verify on a busy machine or a slow network disk
# Deaths that the answer itself brings about, so that asking again would kill the next child as well.
_OWN_FAULT = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS}
_OUT_OF_TIME = -signal.SIGXCPU  # its limit of processor time, before this process looked at the clock


# What math-verify says of an answer, or what kept it from deciding.
Verdict = Literal["right", "wrong", "timeout", "error"]


class _Child:
    """One process and the connection to it. Used by one thread at a time."""

    def __init__(self, limit_seconds: float, memory_bytes: int) -> None:
        self._link, theirs = Pipe()
        # -P: the script's folder, with our module names, must not shadow the child's imports.
        command = [
            sys.executable,
            "-P",
            str(CHILD),
            str(theirs.fileno()),
            str(limit_seconds),
            str(memory_bytes),
        ]
        with theirs:  # what a library reads or prints must not mix in
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._ready = False

    def wait_ready(self) -> None:
        """Wait until math-verify is imported.

        Raises:
            UserError: it is not installed, or the process does not start.
        """
        if self._ready:
            return
        try:
            message = self._read(time.monotonic() + START_SECONDS)
        except EOFError:
            message = None
        if message is not None and "missing" in message:
            raise UserError(
                f"package {message['missing']!r} is needed to grade answers: pip install math-verify==0.9.0"
            )
        if message is None:
            raise UserError(
                f"the grading process ({sys.executable} {CHILD}) did not start within {START_SECONDS} s: "
                "run `python -c 'import math_verify'` to see why"
            )
        self._ready = True

    def ask(self, question: dict[str, Any], deadline: float) -> dict[str, Any] | None:
        """The reply to a question, or None if it does not come in time.

        Raises:
            EOFError: the process has died.
        """
        try:
            self._link.send_bytes(json.dumps(question).encode())
        except OSError:
            raise EOFError from None
        return self._read(deadline)

    def end(self, seconds: float | None = None) -> int:
        """End the process, now or after `seconds` in which it may end by itself. Returns its exit code, -N for a death
        by signal N.
        """
        if seconds is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=seconds)
        self.process.kill()
        self._link.close()
        return self.process.wait()

    def _read(self, deadline: float) -> dict[str, Any] | None:
        try:
            if not self._link.poll(max(0.0, deadline - time.monotonic())):
                return None
            answer: dict[str, Any] = json.loads(self._link.recv_bytes())
        except OSError:
            raise EOFError from None
        return answer


class GraderPool:
    """Grades answers in at most `workers` children, which are started when they are first needed.

    Safe to call from any number of threads; a call waits while all children are busy.

    Args:
        limit_seconds: the longest that a grade may take. The wait for a free child and the start of a child
            (about half a second; the first calls, and the call after a child was killed) come on top.
        workers: the most children at a time.
        memory_bytes: the most address space of a child.
    """

    def __init__(self, limit_seconds: float, workers: int, memory_bytes: int = MEMORY_BYTES) -> None:
        if not (limit_seconds > 0 and workers >= 1):
            raise UserError(
                f"limit_seconds={limit_seconds!r} and workers={workers!r}: give a limit above 0 and at least 1 worker"
            )
        self.limit_seconds = limit_seconds
        self._memory_bytes = memory_bytes
        self._places = threading.Semaphore(workers)
        self._idle: list[_Child] = []

    def grade(self, answer: str, marked: bool, truth: str) -> Verdict:
        """Math-verify's verdict.

        Raises:
            UserError: no child can be started.
        """
        question = {"answer": answer, "marked": marked, "truth": truth}
        with self._places:
            try:
                child = self._idle.pop()
            except IndexError:
                child = self._new_child()
            seconds = self.limit_seconds
            try:
                # A child that somebody else killed says nothing about the answer: it is asked once more.
                for _ in range(2):
                    child.wait_ready()
                    begun = time.monotonic()
                    try:
                        reply = child.ask(question, begun + seconds)
                    except EOFError:
                        code = child.end(1.0)
                        seconds -= time.monotonic() - begun
                        child = self._new_child()
                        if code == _OUT_OF_TIME:
                            return "timeout"
                        if code in _OWN_FAULT or seconds <= 0:
                            break
                        continue
                    if reply is None or reply["last"]:
                        child.end()
                        child = self._new_child()
                    if reply is None:
                        return "timeout"
                    return "error" if "error" in reply else "right" if reply["right"] else "wrong"
                return "error"
            except BaseException:
                child.end()  # an interrupt in the middle of an exchange: its next reply would be late
                raise
            finally:
                if child.process.returncode is None:
                    self._idle.append(child)

    def close(self) -> None:
        """End the children that are not grading."""
        with suppress(IndexError):
            while True:
                self._idle.pop().end()

    def _new_child(self) -> _Child:
        return _Child(self.limit_seconds, self._memory_bytes)


_pools: dict[tuple[float, int], GraderPool] = {}


def close_pools() -> None:
    """End all grading processes of this process; the next grade starts new ones."""
    while _pools:
        _pools.popitem()[1].close()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_pools.clear)  # the pools and their pipes are the parent's


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


def _named(units: str) -> dict[str, list[str]]:
    return {unit: names for unit, *names in map(str.split, units.split(","))}


_WITH_PREFIX = _named(
    "m meter metre, g gram gramme gm, L liter litre, s second sec, J joule, N newton, W watt, V volt, Hz hertz, "
    "Pa pascal, mol mole, Ω ohm, A ampere amp, K kelvin, T tesla"
)
_OTHERS = _named(
    "min minute, h hour hr, day, week, month, year yr, in. inch inches, ft foot feet, yd yard, mi mile, lb pound, "
    "oz ounce, t ton tonne, gal gallon, deg degree, celsius, fahrenheit, rad radian, $ dollar usd, cent, kg kilo, "
    "am, pm, % percent"
)
# Words that may be something else ("5 in all") name no unit.
_UNIT_OF = {
    spelling: prefix + unit
    for units, prefixes in ((_WITH_PREFIX, _PREFIXES), (_OTHERS, {"": ""}))
    for unit, names in units.items()
    for prefix, long in prefixes.items()
    for spelling in (
        prefix + unit,
        *(form for name in names for form in (long + name, f"{long}{name}s")),
    )
} | {f"{unit}s": unit for unit in _OTHERS}
_UNIT_OF |= {f"{prefix}l": f"{prefix}L" for prefix in _PREFIXES}
# In the unit that it is a multiple of
_SIZES = {
    f"{prefix}{unit}{mark}": (Fraction(f"1e{exponent * power}"), f"{unit}{mark}")
    for prefix, exponent in zip(_PREFIXES, (0, -9, -6, -3, -2, -1, 3, 6, 9), strict=True)
    for unit in _WITH_PREFIX
    for mark, power in (("", 1), ("²", 2), ("³", 3))
}
_SIZES |= {f"{prefix}L": (_SIZES[f"{prefix}L"][0] / 1000, "m³") for prefix in _PREFIXES}
_SIZES |= {
    unit: (Fraction(size), base)
    for base, sizes in (
        ("s", {"min": 60, "h": 3600, "day": 86400, "week": 604800}),
        ("in.", {"ft": 12, "yd": 36, "mi": 63360}),
        ("oz", {"lb": 16}),
        ("month", {"year": 12}),
        ("cent", {"$": 100}),
    )
    for unit, size in sizes.items()
}
_DERIVED = {f"{prefix}{unit}" for prefix in _PREFIXES for unit in ("N", "J", "W", "V", "Hz", "Pa", "Ω", "T")}
_RATES = {"mph": {"mi", "h"}, "kph": {"km", "h"}, "kmh": {"km", "h"}}
_BESIDE = frozenset(["per", "a", "an", "hundred", "thousand", "million", "billion"])
# "12 hours per day", "$5 a day"; "5 km/h" is another than "5 km"
_A_DAY = re.compile(r"\b(?:per|an?)\s+(?:day|week|month|year)\b")
_DEGREE = re.compile(
    r"(?:\^\s*(?:\\circ|\{\s*\\circ\s*\}))(?:\s*(?:\\(?:text|math)(?:rm)?\s*\{\s*)?([CF])(?![A-Za-z])\}?)?"
)
_SCALES = {"C": "celsius", "F": "fahrenheit", None: ""}
_COUNTED = re.compile(r"\W*[\w.,]*\d[^\w\\]+([A-Za-z]{2,}?)s?\W*")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-zµΩ]+[²³]?|\S")
# Letters at a number that are no unit there: "13A" is no 13, nor is "13xy"
_ATTACHED = re.compile(r"\W*+[\d.,]*\d(?!st|nd|rd|th)(?:[A-Z]|([A-Za-z]{1,2}))\W*")
# One spelling of powers of units ("square cm", "cm squared", "cm^{2}"), of inches ("5in"), ohms, micro and full hours
_SPELT = compiled(
    (r"\\Omega(?![A-Za-z])|\u2126", "Ω"),
    (r"\\mu(?![A-Za-z]) *|μ", "µ"),
    (r"(?i)(?<=\d)(?::00)?\s*([ap])\.?\s?m\b\.?", r" \1m"),
    (r"(?i)\b(?:square|sq\.?)\s+([a-z]+)|([a-z]+)\s+squared\b|(?<=[a-z])[\s}$]*\^[\s{]*-?2\b", r"\1\2²"),
    (r"(?i)\b(?:cubic|cu\.?)\s+([a-z]+)|([a-z]+)\s+cubed\b|(?<=[a-z])[\s}$]*\^[\s{]*-?3\b", r"\1\2³"),
    (r"(?<=\d)([\s~]*)in\.?(?=[\s.$}]*$|[²³])", " inch"),
)


def _other_unit(answer: str, truth: str) -> bool:
    """Whether the truth is a number with a unit, and the answer has units instead of it: "5 kg" for "5 cm".

    An answer without units has no other unit, and "12 hours per day" has that of "12 hours". A noun that is no unit is
    compared if it is a single word: "3 oranges" for "3 apples".
    """
    true = _of_truth(truth)
    attached = _ATTACHED.fullmatch(answer)
    if attached and not _units(attached[1] or "") and not re.search("[A-Za-z]", truth):
        return True
    matches = [_COUNTED.fullmatch(TEXT.sub(r" \1 ", text)) for text in (answer, truth)]
    nouns = [match[1].lower() for match in matches if match]
    # "12 cm" for "12 units"; "5 methods" for "5 ways", "5 people" for "5 students", and no "5 km"
    if "unit" in nouns or ({"way", "people", "person"} & {*nouns} and not any(map(_units, nouns))):
        return False
    if not true or (len(nouns) == 2 and not all(map(_units, nouns))):
        return len({str(_units(noun) or noun) for noun in nouns}) > 1
    # Before an equals sign a letter may be a variable ("4s = 20"), and a unit the same in another scale.
    readings = [_of_answer(text) for text in (answer, answer.rpartition("=")[2], _A_DAY.sub("", answer))]
    return not any(
        not given or true <= given <= true | {*_SCALES.values()} or _may_be_equal(given, true)
        for given in readings
    )


def _may_be_equal(given: set[str], true: set[str]) -> bool:
    """Whether units may be the same by another name: N m and J, 25° and 25°C."""
    if given == {"deg"} <= true:
        return True
    alone = [units for units in (given, true) if len(units) == 1]
    return (
        len(alone) < 2
        and not given & true
        and bool((given | true) & _DERIVED)
        and all(units <= _DERIVED for units in alone)
    )


def _of_truth(truth: str) -> set[str]:
    """The units of a truth that is a number with units; a single letter is a unit only as text, else a variable."""
    plain = TEXT.split(_DEGREE.sub(r"\\text{deg}", truth))[::2]
    if any(len(token) == 1 and token.isalpha() for part in plain for token in _TOKEN.findall(part)):
        return set()
    units: set[str] = set()
    for token in _tokens(truth):
        if token[0].isalpha() and token not in _BESIDE:
            if not (named := _units(token)):
                return set()
            units |= named
    return units


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
    text = _DEGREE.sub(lambda match: f" deg {_SCALES[match[1]]} ", text)
    return _TOKEN.findall(rewritten(TEXT.sub(r" \1 ", text), _SPELT))


def _signs(text: str) -> str:
    """The signs of an answer that `tidy` drops, as words."""
    signs = (" dollars", CURRENCY), (" percent", PERCENT)
    return "".join(word for word, sign in signs if sign.search(text))


def _units(word: str) -> set[str]:
    name = word.rstrip("²³")
    unit = _UNIT_OF.get(name) or _UNIT_OF.get(name.lower())
    return {f"{unit}{word[len(name) :]}"} if unit else _RATES.get(word, set())


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """A number with its unit, or the sum of several ("2 h 30 min"), in a unit that all of a kind are measured in."""
    total = Fraction()
    sizes: list[Fraction] = []
    bases: set[str] = set()
    numbers = rewritten(TEXT.sub(r" \1 ", text).replace(" and ", " "), _SPELT)
    *numbers_and_units, ending = re.split(r"([A-Za-zµΩ]+[²³]?)[,.\s]*", numbers)
    for number, word in zip(numbers_and_units[::2], numbers_and_units[1::2], strict=True):
        value = _RATIONAL.fullmatch(canonical(number))
        unit = "".join(_units(word))
        if value is None or not unit:
            return None
        size, base = _SIZES.get(unit, (Fraction(1), unit))
        total += Fraction(value[0]) * size
        sizes.append(size)
        bases.add(base)
    summed = sizes == sorted(set(sizes), reverse=True)  # "5 cm, 6 cm" are two
    return (total, bases.pop()) if summed and len(bases) == 1 and not ending.strip("$ ") else None


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
    "square ways integers dollars mph inches hours km units \\ldots sue points feet minutes digits cents "
    "degrees cm gm pounds meters meals edges students childrentickets multiples \\text{s} \\text{.} "
    '\\text{\ns} \\text{}^2 \\text{}^3 \\text{\n} \\text{} \\mathrm{th} ^\\circ ^{\\circ} \\; ,\\! {,} " '
    "\\dots"
)
_REWRITES = compiled(
    (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),  # only what is between dollars
    (r"(\\text\{)(.*?)(\})", r"\2"),
    (r"(\\textbf\{)(.*?)(\})", r"\2"),
    (r"(\\overline\{)(.*?)(\})", r"\2"),
    (r"(\\boxed\{)(.*)(\})", r"\2"),
    (r"(frac)([^{])(.)", r"frac{\2}{\3}"),  # \fracab -> \frac{a}{b}
    (r"(sqrt)([^{])", r"sqrt{\2}"),  # \sqrta -> \sqrt{a}
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
    for filler in _UNITS_AND_FILLERS.split(" "):
        answer = answer.replace(filler, "")
    answer = rewritten(answer, _REWRITES).replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()
