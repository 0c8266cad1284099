"""The process in which math-verify runs: one JSON request per line in, one verdict per line out.

Started by `grader_pool` as a script, so that it needs no import of ours. It reads the text of a policy, so it limits
its own memory and processor time, and its owner may kill it at any moment. It ends when its input ends, that is,
when its owner does; should a forked relative of the owner still hold the pipe, it ends when its parent is gone; and
should it be computing at that time, the limit on processor time ends it.
"""

import json
import os
import re
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

PARENT_CHECK_MS = 5_000
RETIRE_BYTES = 512 << 20  # a child that holds more than this after a grade is replaced
CPU_MARGIN = 2  # seconds of processor time beyond the limit, after which the kernel ends a request
_DELIMITERS = ("$", "\\(", "\\[", "\\boxed")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[A-Za-z]+\*?\}")
# Function names without their backslash, which are no unit of the number behind them.
_FUNCTION = re.compile(r"(?<![\\A-Za-z])(?:sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pi)(?![A-Za-z])")
_BARE_ROOT = re.compile(r"\\sqrt\s*(?:\(([^(){}]*)\)|([0-9]+))")
_LETTERS = r"i\.\s?e\.|e\.\s?g\.|[^\W\d_\u3040-\u30ff\u4e00-\u9fff]{2,}|[\u3040-\u30ff\u4e00-\u9fff]+"
_JOINT = r"(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])"
_WORD = re.compile(rf"(?<![\\A-Za-z])(?!(?:and|or)(?![A-Za-z]))(?:{_LETTERS})")
_POWER = r"(?:\s*(?:\^\s*\{?\s*-?[0-9]\s*\}?|[²³]))?"  # of a unit
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|textbf|mathbf|mbox|operatorname)\s*\{[^{}]*\}" + _POWER)
_TEXT_CONTENT = re.compile(r"\\(?:text|mathrm|textrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}")
_NUMBER_IN_TEXT = re.compile(
    r"\\(?:text|mathrm|textrm|textbf|mathbf|mbox|operatorname)\s*\{((?:[^{}]*[^{}\w^])?[0-9]+(?!\w)[^{}]*)\}"
)
_BETWEEN = re.compile(rf"{_TEXT.pattern}|(?<![\\A-Za-z])(?:{_LETTERS}){_POWER}|{_JOINT}")
_ASIDE = re.compile(r"\(\s*((?:or|and)\b[^()]*)\)")
_MOST_PIECES = 8
_TRIMMED = re.compile(r"^(?:\\[,;:! )]|[\s,;:?!*$~]|\.(?!\d))+|(?:\\[,;:! (]|[\s,.;:?!*$~])+$")
# Between two numbers: what is neither a sign of formulas nor a word makes two answers of them.
_APART = re.compile(
    r"(?<=[\d)}\]$%])\s*(?:[^\w\s+\-*/^=<>.,:!'(){}\[\]\\$%\"|]+|<?[-=]+>|\.{2,}|\\\\|\s\|+\s|\|\||\|(?=\d)|\\[&#|]"
    r"|\\(?:to|(?:[Ll]ong)?(?:[Ll]eft)?[Rr]ightarrow|lor|land|vee|wedge|cup|cap|implies|iff|mapsto)(?![A-Za-z])"
    r")\s*(?=[-+]?[\d({\[\\$.])"
)
# A truth with one of these may be more than one number, and its formula may have the signs above.
_LISTING = re.compile(
    r"[,;<>|&]|\\(?:\\|\{|(?:cup|cap|in|pm|mp|[lg]eq?|[lg]t|neq?|to|(?:[Ll]eft)?[Rr]ightarrow|lor|land|vee|wedge)"
    rf"(?![A-Za-z]))|{_JOINT}"
)
_UNITS = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *(f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "万": 4, "亿": 8}
_SCALED = re.compile(rf"(?i)(?<=\d)\s*(?:\\text\s*\{{\s*)?({'|'.join(_SCALES)})(?![A-Za-z])\s*\}}?")
_NOUN = r"(?i)\s+(?!and\b|or\b)[a-z]"
_NAME = re.compile(
    rf"(?i)(?<![\\A-Za-z])(?:({'|'.join(_TENS)})(?:[-\s]({'|'.join(_UNITS[1:10])}))?|"
    rf"((?<=or )one|one(?= or\b)|{'|'.join(_UNITS[2:])}|zero)|(hundred|thousand|million))(?![A-Za-z])"
)


def main(limit_seconds: float, memory_bytes: int) -> None:
    """Answer requests until the input ends."""
    source, sink = os.dup(0), os.dup(1)
    with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123  what a library prints must not mix in
        for stream in (0, 1, 2):
            os.dup2(nothing.fileno(), stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        grade = load_grader()
    except ImportError as error:
        _reply(sink, {"missing": error.name or str(error)})
        return
    _reply(sink, {"ready": True})
    parent = os.getppid()
    for line in _lines(source, parent):
        request = json.loads(line)
        _limit_processor(limit_seconds)
        try:
            verdict: dict[str, Any] = {"right": grade(request["answer"], request["marked"], request["truth"])}
        except Exception as error:  # noqa: BLE001  the policy's text may cause any error
            verdict = {"error": type(error).__name__}
        last = _resident_bytes() > RETIRE_BYTES
        _reply(sink, {"last": last, **verdict})
        if last:
            return


def load_grader() -> Callable[[str, bool, str], bool]:
    """Import math-verify and warm it up.

    Returns:
        A function of the answer, whether it is marked as the answer, and the truth.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    of_truth, of_answer = (LatexExtractionConfig(),), (ExprExtractionConfig(), LatexExtractionConfig())

    # math-verify's own timeouts are off: they work by SIGALRM, which cannot stop a big-integer power.
    @lru_cache(maxsize=1024)
    def parsed_truth(truth: str) -> list[Any]:
        found: list[Any] = parse(f"\\boxed{{{truth}}}", of_truth, parsing_timeout=None)
        return found

    def right(text: str, truth: str) -> bool:
        return bool(
            verify(parsed_truth(truth), parse(text, of_answer, parsing_timeout=None), timeout_seconds=None)
        )

    def grade(answer: str, marked: bool, truth: str) -> bool:
        found = readings(answer, truth) if marked else [[answer]]
        return any(all(right(text, truth) for text in texts) for texts in found)

    for example in ("$\\frac{1}{2}$", "Answer: 0.5"):
        grade(example, True, "1/2")
    return grade


def readings(answer: str, truth: str) -> list[list[str]]:
    """The forms in which a marked answer is put to math-verify; it is right if all texts of one of them are.

    math-verify finds LaTeX only between delimiters. Without delimiters, "\\frac12" is a formula, and "5 cm" either a
    number with its unit or a product of symbols: the product if the truth has these symbols, too. "12 or 13" counts as
    a formula (a set of two numbers). Every number between words has to be right ("12 cm or 13 cm"): offering several
    answers must not pay. So do numbers with another sign between them ("12 & 13", "12 -> 13") or in words ("12 or
    thirteen"), if the truth is a single one.
    """
    single = not _LISTING.search(truth)
    answer = _SCALED.sub(
        lambda match: f"\\cdot 10^{{{_SCALES[match[1].lower()]}}}", _ASIDE.sub(r"\1", answer)
    )
    if re.search("[0-9]", answer) and _NAME.search(answer):
        answer = _NAME.sub(_named, _TEXT_CONTENT.sub(r" \1 ", answer))
    elif re.search("[0-9]", _TEXT.sub("", answer)):  # of "42 \\text{ or 43}" both are numbers
        answer = _NUMBER_IN_TEXT.sub(r" \1 ", answer)
    if single:
        answer = _APART.sub(" or ", answer)
    answer = _BARE_ROOT.sub(r"\\sqrt{\1\2}", _FUNCTION.sub(r"\\\g<0>", answer))
    bare = _ENVIRONMENT.sub(" ", answer)
    if answer.count("$") > 2 and not _WORD.search(bare):
        answer = bare = bare.replace("$", " ")
    whole = _delimited(answer)
    if not _WORD.search(bare) and not (single and re.search(_JOINT, bare)):
        return [[whole]]
    numbers, symbols = _between_words(bare), set("".join(_WORD.findall(_TEXT.sub(" ", bare))))
    found = []
    if not numbers or (symbols <= _letters(truth) and (symbols or len(numbers) == 1)):
        found.append([whole])
    if 0 < len(numbers) <= _MOST_PIECES:
        found.append([_delimited(number) for number in numbers])
        if not single:
            found.append([_delimited(", ".join(numbers))])
    return found + ([[f"Answer: {answer}"]] if len(numbers) == 1 else [])


def _letters(formula: str) -> set[str]:
    """The letters of a formula that belong to no command of LaTeX."""
    return set(re.sub(r"\\[A-Za-z]+", "", formula))


def pieces(text: str) -> list[str]:
    """What stands between the words of a text and has a digit; a text without words is one piece."""
    if not _WORD.search(text):
        return [text]
    return _between_words(text)


def _between_words(text: str) -> list[str]:
    found = (_TRIMMED.sub("", piece) for piece in _BETWEEN.split(text))
    return [_balanced(piece) for piece in found if re.search("[0-9]", piece)]


def _named(match: "re.Match[str]") -> str:
    """A number word in digits, apart from the numbers beside it; as it is in "two solutions"."""
    if re.match(_NOUN, match.string[match.end() :]) and not re.search(
        r"(?i)\b(?:and|or)\s$", match.string[: match.start()]
    ):
        return match[0]
    tens, digit, unit, scale = (part and part.lower() for part in match.groups())
    number = 10 * (_TENS.index(tens) + 2) + (_UNITS.index(digit) if digit else 0) if tens else 0
    number = _UNITS.index(unit) if unit else 10 ** _SCALES[scale] if scale else number
    return f" and {number} and "


def _balanced(piece: str) -> str:
    """Without brackets at its ends whose other half is behind a word."""
    if piece.count("(") != piece.count(")"):
        piece = piece.strip("() ")
    return piece if piece.count("{") == piece.count("}") else piece.strip("{} ")


def _delimited(text: str) -> str:
    return f"Answer: {text}" if any(mark in text for mark in _DELIMITERS) else f"${text}$"


def _limit_processor(limit_seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + limit_seconds) + CPU_MARGIN
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _resident_bytes() -> int:
    # Not getrusage's ru_maxrss: a child inherits it, and a trainer's is gigabytes.
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _lines(source: int, parent: int) -> Iterator[bytes]:
    """Lines of the input, until it ends or the parent is gone."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    pending = b""
    while True:
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            yield line
        if not poll.poll(PARENT_CHECK_MS):
            if os.getppid() != parent:
                return
            continue
        data = os.read(source, 1 << 16)
        if not data:
            return
        pending += data


def _reply(sink: int, message: dict[str, Any]) -> None:
    os.write(sink, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
