"""The process in which math-verify runs: a request in JSON comes, a verdict goes.

Started by `grading` as a script, so that it needs no import of ours. It reads the text of a policy, so it limits
its own memory and processor time, and its owner may kill it at any moment. It ends when its connection ends, that is,
when its owner does; should a forked relative of the owner still hold that, it ends when its parent is gone; and
should it be computing at that time, the limit on processor time ends it.
"""

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PARENT_CHECK_SECONDS = 5
RETIRE_BYTES = 512 << 20  # a child that holds more than this after a grade is replaced
CPU_MARGIN = 2  # seconds of processor time beyond the limit, after which the kernel ends a request
_DELIMITERS = ("$", "\\(", "\\[")
_DELIMITER = re.compile(r"\$|\\[()\[\]]")
# A formula between delimiters, and what it is said to be ("f(2) = $5$")
_FORMULA = re.compile(
    r"(?:\$[^$]*+\$|\\\((?:(?!\\\)).)*+\\\)|\\\[(?:(?!\\\]).)*+\\\])|(?<![^,;])[^,;=$\\]*+=\s*(?=\$|\\[(\[])"
)
_LABEL = re.compile(
    r"\A\s*+(?:#?[0-9][.):]\s|\([0-9]++\)\s|[^$,;:\\]*+:\s)"
)  # "1) $42$", "(12) $42$", "n=4: $42$"
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[A-Za-z]+\*?\}(?:\s*\{[lcr| ]+\})?")
# Names of functions and Greek letters without their backslash, which are no unit of the number behind them.
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(?:sqrt|(?:arc)?(?:sin|cos|tan|cot|sec|csc)|log|ln|exp|pi"
    r"|alpha|beta|gamma|delta|theta|lambda|sigma|phi|omega)(?![A-Za-z])"
)
_BARE_ROOT = re.compile(r"\\sqrt\s*(?:\(([^(){}]*)\)|([0-9]+))")
_LETTERS = r"i\.\s?e\.|e\.\s?g\.|[^\W\d_\u3040-\u30ff\u4e00-\u9fff]{2,}|[\u3040-\u30ff\u4e00-\u9fff]+"
_ALTERNATIVE = r"or|xor|versus|vs|alternatively|maybe|perhaps|possibly|或者?|∨|\\(?:lor|vee)"
_OR, _JOINT = (
    re.compile(rf"\\text[a-z]*\s*\{{\s*(?:{words})\s*\}}|(?<![\\A-Za-z])(?:{words})(?![A-Za-z])")
    for words in (_ALTERNATIVE, f"{_ALTERNATIVE}|and")
)
_WORD = re.compile(rf"(?<![\\A-Za-z])(?!(?:and|or)(?![A-Za-z]))(?:{_LETTERS})")
_POWER = r"(?:\s*(?:\^\s*\{?\s*-?[0-9]\s*\}?|[²³]))?"  # of a unit
_FONT = r"\\(?:(?:text|math)(?:rm|bf|it|sf|tt)|text|mbox|emph|bold|operatorname)\s*\{"
_TEXT = re.compile(rf"{_FONT}[^{{}}]*\}}{_POWER}")
TEXT = re.compile(rf"{_FONT}([^{{}}]*)\}}")
# Behind a formula: "4t \\text{ cm}", "$4t$ ft"
_UNIT = re.compile(rf"(?<=[\w)}}])\s*(?:{_TEXT.pattern}[\s/]*)+(?=\W*\Z)|(?<=\$) +[a-z]+(?=[^\w$]*\Z)")
_BETWEEN = re.compile(rf"{_TEXT.pattern}|(?<![\\A-Za-z])(?:{_LETTERS}){_POWER}|{_JOINT.pattern}")
_MOST_PIECES = 8
# "1/2 (0.5)"; with a letter in the brackets it may be a product, too; behind LaTeX a decimal is a rounded value
_TWICE = re.compile(r"(?=.*\\)(.*[\w})$])\s+\(\$?\d*\.\d+\$?\)\s*|(.*(?:[\d})$]|\\pi))\s+\(([^()]*)\)\s*")
_TRIMMED = re.compile(r"^(?:\\[,;:! )]|[\s,;:?!*$~=]|\.(?!\d))+|(?:\\[,;:! (]|[\s,.;:?!*$~])+$")
# Between two numbers: what is neither a sign of formulas nor a word makes two answers of them.
_APART = re.compile(
    r"(?<=[\d)}\]$%])\s*(?:[^\w\s+\-*/^=<>.,:!'(){}\[\]\\$%\"|]+|<?[-=]+>|\.{2,}|\\\\|\s\|+\s|\|\||\|(?=\d)|\\[&#|]|\\[lc]?dots"
    r"|\\(?:to|(?:[Ll]ong)?(?:[Ll]eft)?[Rr]ightarrow|lor|land|vee|wedge|cup|cap|implies|iff|mapsto)(?![A-Za-z])"
    r")\s*(?=[-+]?[\d({\[\\$.])"
)
# A truth with any of these may be more than one number, and its formula may have the signs above.
_LISTING = re.compile(
    r"[,;<>|&]|\\(?:\\|\{|(?:cup|cap|in|pm|mp|[lg]eq?|[lg]t|neq?|to|(?:[Ll]eft)?[Rr]ightarrow|lor|land|vee|wedge)"
    rf"(?![A-Za-z]))|{_JOINT.pattern}"
)
_DIGITS = "one|two|three|four|five|six|seven|eight|nine"
_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_NUMBERS = dict(
    zip(
        f"a|an|{_DIGITS}|{_TEENS}|{_TENS}".split("|"), (1, 1, *range(1, 20), *range(20, 100, 10)), strict=True
    )
)
_PART = "half|halve|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth"
_PARTS = dict(zip(_PART.split("|"), (2, *range(2, 5), *range(4, 11)), strict=True))
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "bn": 9, "trillion": 12}
_SMALL = rf"(?:(?:{_TENS})(?:[-\s](?:{_DIGITS}))?|{_TEENS}|{_DIGITS}|zero)"
_GROUP = rf"(?:(?:{_SMALL}|an?)\s+)?(?:{'|'.join(SCALES)})"
_COUNT = rf"{_GROUP}(?:\s+(?:and\s+)?{_GROUP})*(?:\s+(?:and\s+)?{_SMALL})?|{_SMALL}"
# "forty-two", "one hundred and five", "three quarters", "7 eighths", "half", "two and a half"
_NAME = re.compile(
    rf"(?i)(?<![\\A-Za-z])(?!one\s+of\b)(?:(?:(?:({_COUNT}|[0-9]+)[-\s]+and[-\s]+)?({_COUNT}|an?|[0-9]+)[-\s]+)?"
    rf"({_PART})s?|({_COUNT}))(?![A-Za-z])"
)
_NOUN = re.compile(r"(?i)\s+(?!and\b|or\b)[a-z]")
# What an answer says that it is not: "not 42", "42 is wrong", "5 (not 6)", "x \\neq 5", "> 5".
_CHUNK = r"(?:[^\s,;().$]|[.,](?=\d))+"
# Where a chunk begins, or a denial before it has ended: a long chunk is not tried again at each of its characters.
_BEGIN = r"(?:(?<![^\s,;().$])(?<![.,](?=\d))|(?<=[a-z])(?=[^\w\\'.\-])|(?<=[错对是外不非未有除了于过可能会必等为]))"
_FENCED, _LETTER = r"\$[^$]+\$|\((?=[^()]*[\d\\])[^()]*\)", r"(?-i:[A-Zb-z])\b"
_TERM = rf"(?:{_FENCED}|(?=\S*[\d\\]|{_LETTER}){_CHUNK})"
_FIRST = rf"(?:{_FENCED}|(?={_BEGIN}(?:\S*[\d\\]|{_LETTER})){_CHUNK})"
_VERB = r"(?:is|are|was|does|do|did|can|could|will|would|must|may)"
NOT = (
    rf"(?:\b(?:not|never|neither|nor|cannot|(?:{_VERB}|ca|wo|ai)n['´]?t|unequal|instead\s+of|(?!other)[a-z]+\s+than|"
    r"(?:different|distinct|far)\s+from|none\s+of|no\s+longer|by\s+no\s+"
    r"means|nicht|no\s+es|n['´]?est\s+pas|не|nothing\s+like|(?<![^a-z(]\s)no(?=\s+[\d$\\])|hardly|fails?\s+to|without|exclud\w+|except(?:\s+for)?|"
    r"(?:^|(?:any|every|all)(?:thing)?\s+)(?:but|other\s+than))\b|(?:[不非未]|没有|除[了非]?(?!以)|[小大低高]于|超过)[可能会必是等于为]*)"
)
WRONG = (
    rf"(?:{_VERB}\s+{NOT}|(?:{_VERB}\s+(?:be\s+)?(?:an?\s+|the\s+)?)?[-–(]?\s*(?:wrong|incorrect|false|impossible|invalid|"
    rf"rejected|excluded|ruled\s+out)\b|(?:cannot|nor|fails|(?<=\?\s)no\W*$|(?:{_VERB}|ca|wo)n['´]?t)\b)"
)
SIGN = (
    r"(?:\\neq?(?![A-Za-z])|\\not(?![A-Za-z])\s*=?|=/=|<>|\\(?:neg|lnot)(?![A-Za-z])|(?<!\S)!=|¬|[≮≯]|"
    r"^[\s$]*(?:[<>]=?|\\[lg]eq?(?![A-Za-z])))"
)
_OBJECT = (
    rf"(?:\s+(?!but\b)[a-z]+){{0,4}}?\s*(?:\\approx\s*)?{_TERM}"
    rf"(?:(?:\s*[-+*/=]\s*|,?\s*(?:or|nor|and)\s+){_TERM})*"
)
_DENIAL = re.compile(
    rf"(?i){_FIRST}\s+{WRONG}(?:{_OBJECT})?|{_FIRST}\s*[是也都]?(?:错|不对|不是|除外|以外)|{NOT}{_OBJECT}"
    rf"|(?:{_BEGIN}{_CHUNK})?(?<!\s)\s*{SIGN}\s*{_TERM}"
)
_UNEQUAL = re.compile(rf"(?i){NOT}|{SIGN}|[<>]|\\(?:cup|[lg](?:eq?|t))(?![A-Za-z])")
# What a number is only a part of: "twice 42", "the root of 42", "42 squared", "42 +", "42...", "41, 42, ..."
_PART_OF = re.compile(
    r"(?i)(?<![\\A-Za-z])(?:(?:half|twice|thrice|double|triple|mod(?:ulo)?|below|above|under|over|beyond|exceed(?:s|ing)?|divisible\s+by|"
    r"(?:root|square|cube|negative|opposite|reciprocal|inverse|factorial|log(?:arithm)?|multiple|divisor|factor|part|third|"
    r"quarter)\s+of)\s+(?:of\s+)?(?:the\s+)?(?:[-$({]*[\d\\√]|\$?[a-z]\b)|(?<=[\w)}\]$])\s(?:plus|minus)\s+\w)|"
    r"(?<=[\d)}\]$])\s*(?:(?:squared|cubed|factorial|halved|doubled|tripled|dozen|(?!rather|other)[a-z]+\s+than)\b|分之|(?<=\d)'+\W*$|(?:th|[nr]d)\s+(?:root|power)\b|(?:[-+/^]|,?\s*\\[lc]?dots)\s*\$?$)"
)
_DECIMAL = re.compile(r"(?:[A-Za-z]\s*=)?\s*-?\d*\.\d+")
# An ordered pair or an interval, and a set of numbers in an answer, which math-verify compares as if it were ordered
_ORDERED = re.compile(r"(?:[^=]*=)?\s*\((?=[^;]*,)(?:[^()]|\([^()]*\))*\)\s*")
_SET = re.compile(r"\\\{(?:(?!\\\}|[(=,]).)++,(?:(?!\\\}|[(=]).)++\\\}|^\{[^{}(=]+,[^{}(=]+\}$")
# Letters that may be symbols: math-verify takes those of "4t" and "2ab" for units, and leaves them out.
_VARIABLES = re.compile(
    r"(?<![\\A-Za-z])(?<!:\d\d )(?!(?:min|sec|deg|day|men|mph)(?![A-Za-z]))[A-Za-z]{1,3}(?![A-Za-z])"
)
_NUMBERS_APART = re.compile(r"(?<![\^_]\d)(?<=\d) +(?=\d+\$?$)")  # "3 4", of which it takes the sum
# Ends of the lines of a matrix, of which math-verify would read the last line alone.
_LINES = re.compile(r"(?<=\\\\)\n|\n(?=[^\n]*(?:&|\\\\)|\\end\{)")
_INNER_SIGN = re.compile(r"(?<!\\)[({][^(){}]*\\(?:pm|mp)(?![a-z])")
# The base in which a number is written: 42_8
_BASE = re.compile(r"\d[)}]*\s*_[\s{(]*(?:\\[a-z]+\s*\{)?\s*(?!(?:10|ten)\b)(\w+)")


def main(link: Connection, limit_seconds: float, memory_bytes: int) -> None:
    """Answer requests until their connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        grade = load_grader()
    except ImportError as error:
        _reply(link, {"missing": error.name or str(error)})
        return
    _reply(link, {"ready": True})
    for request in _requests(link, os.getppid()):
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = int(used.ru_utime + used.ru_stime + limit_seconds) + CPU_MARGIN
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        try:
            verdict: dict[str, Any] = {"right": grade(request["answer"], request["marked"], request["truth"])}
        except Exception as error:  # noqa: BLE001  the policy's text may cause any error
            verdict = {"error": type(error).__name__}
        # Not getrusage's ru_maxrss: a child inherits it, and a trainer's is gigabytes.
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        last = pages * resource.getpagesize() > RETIRE_BYTES
        _reply(link, {"last": last, **verdict})
        if last:
            return


def load_grader() -> Callable[[str, bool, str], bool]:
    """Import math-verify and warm it up.

    Returns:
        A function of the answer, whether it is marked as the answer, and the truth.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    from sympy import FiniteSet, I, Intersection, Union
    from sympy.logic.boolalg import Boolean

    with_units = LatexExtractionConfig()
    without = replace(with_units, normalization_config=replace(with_units.normalization_config, units=False))

    def read(text: str, *kinds: Any) -> list[Any]:
        """What math-verify reads; of relations that "or" or "and" joins the set of their solutions."""
        # Its timeouts are off: they work by SIGALRM, which cannot stop a big-integer power.
        parsed: list[Any] = parse(
            _NUMBERS_APART.sub(", ", _both_signs(_UNIT.sub("", _LINES.sub(" ", text)))),
            kinds,
            parsing_timeout=None,
        )
        if parsed and isinstance(parsed[0], FiniteSet):
            relations = parsed[0].args
            if len(parsed[0].free_symbols) == 1 and all(isinstance(each, Boolean) for each in relations):
                sets = [each.as_set() for each in relations]
                met = not _OR.search(text) and Intersection(*sets)
                # "x < 1, x > 3" is a union, since nothing is both
                parsed[0] = met or (parsed[0] if "and" in text else Union(*sets))
        with suppress(AttributeError, IndexError, TypeError, ValueError):  # nothing read; "i < 5"
            parsed[0] = parsed[0].xreplace({each: I for each in parsed[0].free_symbols if each.name == "i"})
        return parsed

    @lru_cache(maxsize=1024)
    def parsed_truth(truth: str) -> tuple[list[Any], Any]:
        latex = without if _VARIABLES.search(_TEXT.sub(" ", truth)) else with_units
        return read(f"\\boxed{{{_UNIT.sub('', truth)}}}", latex), latex

    def right(text: str, truth: str) -> bool:
        true, latex = parsed_truth(truth)
        given = read(text, ExprExtractionConfig(), latex)
        return bool(verify(true, given, allow_set_relation_comp=True, timeout_seconds=None)) and _of_one_size(
            true, given
        )

    def grade(answer: str, marked: bool, truth: str) -> bool:
        if not set(_BASE.findall(answer)) <= set(_BASE.findall(truth)):
            return False
        said = _asserted(answer, truth).strip("$ ")
        for ordered, other in ((truth, said), (said, truth)):
            if _ORDERED.fullmatch(ordered) and _SET.search(other):
                return False
        if re.search(r"[<>]|\\[lg]e", truth) and re.fullmatch(
            r"[-\d.,;/ ]+", said
        ):  # the ends of an interval
            return False
        names = re.findall(r"\b([x-zX-Z])\s*=", said)  # "y=3, x=4" is not (3,4); other letters have no order
        if _ORDERED.fullmatch(truth) and names != sorted(names):
            return False
        if marked and _PART_OF.search(answer) and not _PART_OF.search(truth):
            return False
        if not marked:
            return right(_asserted(answer, truth), truth)
        return all(
            any(all(right(text, truth) for text in texts) for texts in readings(part, truth))
            for part in alternatives(answer, truth)
        )

    for example in ("$\\frac{1}{2}$", "Answer: 0.5"):
        grade(example, True, "1/2")
    return grade


def _both_signs(text: str) -> str:
    """Both values of a formula with a \\pm in brackets, where math-verify does not read it."""
    if "," in text or not _INNER_SIGN.search(text):
        return text
    return ", ".join(text.replace("\\pm", plus).replace("\\mp", minus) for plus, minus in ("+-", "-+"))


def _of_one_size(true: list[Any], given: list[Any]) -> bool:
    """Whether two numbers that math-verify takes for equal are so in their first five digits: it compares six decimals,
    in which all small numbers are equal ("6.6e-33" and "6.6e-34"). A decimal of any length is no irrational number.
    """
    exact = true[0]
    if not getattr(exact, "is_number", False):
        return True
    if _DECIMAL.fullmatch(given[-1]) and not (exact.is_rational or "." in true[-1]):
        return False
    try:
        return bool(abs((given[0] / exact).evalf(15) - 1) < 1e-5)
    except Exception:  # noqa: BLE001  no number, or none that sympy can compute; math-verify's verdict stands
        return True


def alternatives(answer: str, truth: str) -> list[str]:
    """What a marked answer offers, without what it denies ("12 (not 13)") and with its number words in digits: all of
    it has to be right, so that offering several answers does not pay. Several, if the truth is a single one and words
    or signs that belong to no formula join them ("12 or x", "12 & 13", "12 -> 13").
    """
    answer = TEXT.sub(r" \1 ", answer)
    if re.search("[0-9]", answer):
        answer = _NAME.sub(_named, answer)
    answer = _asserted(answer, truth)
    single = not _LISTING.search(truth)
    if single:
        answer = _APART.sub(" or ", answer)
    answer = _BARE_ROOT.sub(r"\\sqrt{\1\2}", _FUNCTION.sub(r"\\\g<0>", answer))
    joint = _OR if _WORD.search(answer) else _JOINT  # "and" may join words
    parts = [
        text
        for part in joint.split(re.sub(r"\\[()\[\]]|\$", " ", answer))
        if (text := _balanced(_TRIMMED.sub("", part)))
    ]
    return parts if single and len(parts) > 1 else [answer]


def readings(answer: str, truth: str) -> list[list[str]]:
    """The forms in which an alternative is put to math-verify; it is right if the texts of a form are all right.

    math-verify finds LaTeX only between delimiters. Without delimiters, "\\frac12" is a formula, and "5 cm" either a
    number with its unit or a product of symbols: the product if the truth has these symbols, too. Every number between
    words has to be right ("12 cm, maybe 13 cm").
    """
    single = not _LISTING.search(truth)
    bare = _ENVIRONMENT.sub(" ", answer)
    outside = _FORMULA.sub(" ", _LABEL.sub("", bare, count=1))  # "41 $42$" gives both
    if not _WORD.search(bare) and (
        answer.count("$") > 2 or (outside != bare and re.search("[0-9]", outside))
    ):
        answer, bare = (_DELIMITER.sub(" ", text) for text in (answer, bare))
    whole = _delimited(answer)
    if not _WORD.search(bare) and not (single and _JOINT.search(bare)):
        twice = _TWICE.fullmatch(answer)
        again = [[_delimited(text) for text in twice.groups() if text]] if twice else []
        return again if twice and re.search(r"\([^a-z\\]*\)\s*$", answer) else [*again, [whole]]
    numbers, symbols = _between_words(bare), set("".join(_WORD.findall(_TEXT.sub(" ", bare))))
    readings = []
    letters = set(re.sub(r"\\[A-Za-z]+", "", _TEXT.sub("", truth)))  # that belong to no command of LaTeX
    if not numbers or (symbols <= letters and (symbols or len(numbers) == 1)):
        readings.append([whole])
    if 0 < len(numbers) <= _MOST_PIECES:
        readings.append([_delimited(number) for number in numbers])
        if not single:
            readings.append([_delimited(", ".join(numbers))])
    listed = single and re.search(r",\s", " ".join(numbers))  # "12, 13 apples"
    alone = len(numbers) == 1 and "^" not in numbers[0] and not listed
    return readings + ([[f"Answer: {answer}"]] if alone else [])


def _asserted(answer: str, truth: str) -> str:
    """An answer without what it denies; as it is if the truth may be a denial, as x \\neq 2 is."""
    if _UNEQUAL.search(truth) or not _DENIAL.search(answer):
        return answer
    return re.sub(r"\(\W*\)|\$\s*\$", " ", _DENIAL.sub(" ", answer))


def pieces(text: str) -> list[str]:
    """What stands between the words of a text and has a digit; of a text without words, the whole."""
    return _between_words(text) if _WORD.search(text) else [text]


def _between_words(text: str) -> list[str]:
    trimmed = (_TRIMMED.sub("", piece) for piece in _BETWEEN.split(text))
    return [_balanced(piece) for piece in trimmed if re.search("[0-9]", piece)]


def _named(match: "re.Match[str]") -> str:
    """A number word in digits, apart from the numbers beside it; as it is in "two solutions" and "this one"."""
    noun = _NOUN.match(match.string, match.end()) and not re.search(
        r"(?i)\b(?:and|or)\s$", match.string[: match.start()]
    )
    return match[0] if noun or match[0].lower() == "one" else f" and {_digits(match)} and "


def in_digits(text: str) -> str:
    """A text with its number words in digits."""
    return _NAME.sub(_digits, text)


def _digits(match: "re.Match[str]") -> str:
    whole, above, part, count = match.groups()
    if part is None:
        return str(_count(count))
    above, below = _count(above or "a"), _PARTS[part.lower()]
    return f"{_count(whole)}\\frac{{{above}}}{{{below}}}" if whole else f"{above}/{below}"


def _count(words: str) -> int:
    total = current = 0
    for word in re.findall("[a-z]+|[0-9]+", words.lower()):
        if word == "hundred":
            current = 100 * max(current, 1)
        elif word in SCALES:
            total, current = total + max(current, 1) * 10 ** SCALES[word], 0
        else:
            current += int(word) if word.isdigit() else _NUMBERS.get(word, 0)
    return total + current


def _balanced(piece: str) -> str:
    """Without brackets at its ends whose other half is behind a word."""
    if piece.count("(") != piece.count(")"):
        piece = piece.strip("() ")
    return piece if piece.count("{") == piece.count("}") else piece.strip("{} ")


def _delimited(text: str) -> str:
    return f"Answer: {text}" if any(mark in text for mark in _DELIMITERS) else f"${text}$"


def _requests(link: Connection, parent: int) -> Iterator[dict[str, Any]]:
    """What is asked, until the connection ends or the parent is gone."""
    while True:
        try:
            if link.poll(PARENT_CHECK_SECONDS):
                yield json.loads(link.recv_bytes())
            elif os.getppid() != parent:
                return
        except (EOFError, ConnectionError):
            return


def _reply(link: Connection, message: dict[str, Any]) -> None:
    link.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), float(sys.argv[2]), int(sys.argv[3]))
