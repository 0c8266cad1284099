"""Everything that a report writes: display names and their order, the origin of results, numbers as text, and arbitrary
text (names of variants and models are the user's) escaped for LaTeX, Markdown, CSV and JSON.
"""

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache, partial

from cppo_lab import schema
from cppo_lab.analysis.inputs import Baseline
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.estimate import Estimate, Interval, score_limits
from cppo_lab.core_records import core_if_installed
from cppo_lab.rules import METHODS, known

METHOD_ORDER = tuple(rule.name for rule in METHODS)
OURS = "cppo"  # the row that the paper shades
ABSENT = "–"  # in place of a number
CENT = Decimal("0.01")
_MINUS = "\N{MINUS SIGN}"
# The paper's curves give fractions to 1e-6, so a percentage is known to 1e-4; further digits are rounding noise.
_KNOWN = Decimal("0.0001")

EDGE = (
    "a score of 0 or 100 % has Wilson's 95 % limit in place of an error of 0: the answers do not rule out a share up "
    "to it, or down to it."
)

_CONSTANTS = re.compile(r"cppo_db(?P<delta_b>[\d.]+)_w(?P<w_min>[\d.]+)")
_BENCHMARK = re.compile(r"(?P<letters>[A-Za-z]+)(?P<digits>\d+)")


def display_name(variant: str) -> str:
    """The display name of a variant, from its record in `cppo_lab.rules`; without a record, the name itself."""
    constants = _CONSTANTS.fullmatch(variant)
    if constants:
        return f"CPPO, delta_b {constants['delta_b']}, w_min {constants['w_min']}"
    record = known(variant)
    return record.title if record is not None and record.title else variant


def baseline_name(baseline: Baseline) -> str:
    """The baseline in headings and notes."""
    return display_name(baseline.name) + ("" if baseline.matched is None else " at the same values")


def benchmark_name(benchmark: str) -> str:
    """`aime24` -> `AIME24`; any other benchmark as it is logged."""
    match = _BENCHMARK.fullmatch(benchmark)
    return benchmark.upper() if match and match["letters"].lower() == "aime" else benchmark


def in_order(variants: Iterable[str]) -> tuple[str, ...]:
    """The paper's methods in the paper's order, then the others as declared."""
    declared = tuple(dict.fromkeys(variants))
    methods = tuple(name for name in METHOD_ORDER if name in declared)
    return methods + tuple(name for name in declared if name not in methods)


def origin(core: str) -> str:
    """One line on the origin of numbers. Numbers of different origins never share a table without a mark."""
    if core == schema.PAPER:
        return "the paper's own curves (arXiv 2606.10968), not trained here"
    miniature = core_if_installed(core).miniature
    return f"core={core}" + (f": {miniature}, not comparable with the paper's numbers" if miniature else "")


def score_name(board: Scoreboard) -> str:
    """What the scores of the runs are: `Avg@16`, or their core's name for them."""
    samples_of = board.curves.samples_of
    sizes = sorted({samples_of[run.mlflow_id] for run in board.runs if run.mlflow_id in samples_of})
    return core_if_installed(board.core).score or f"Avg@{' or '.join(map(str, sizes))}"


def joined(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def objective_name(objective: str) -> str:
    """The display name of a search objective: `final_score` -> `final score`."""
    return objective.replace("_", " ")


def value_text(value: float | str | bool | None) -> str:
    """A setting as text: four significant digits; `true`, `false`, `null` as in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else f"{value:.4g}"


def percent(fraction: float) -> Decimal:
    """A fraction as an exact decimal percent, to the four decimals that the curves carry."""
    return (Decimal(repr(float(fraction))) * 100).quantize(_KNOWN, ROUND_HALF_UP)


def round_half_up(value: Decimal) -> Decimal:
    """Two decimals, half rounded up (Python's rounding would turn 30.625 into 30.62)."""
    return value.quantize(CENT, ROUND_HALF_UP)


def points(fraction: float | None, signed: bool = False) -> str:
    """A fraction in percent, or a difference in points, with two decimals, half rounded up and never -0.00, and with a
    minus sign, not a hyphen; ABSENT for None and NaN. `signed`: with a plus, too.
    """
    if fraction is None or math.isnan(fraction):
        return ABSENT
    value = round_half_up(percent(fraction)) + 0
    return f"{value:{'+' if signed else ''}}".replace("-", _MINUS)


def number(value: float | None, form: str = ".2f") -> str:
    """A number in a format; ABSENT for None and NaN."""
    return ABSENT if value is None or math.isnan(value) else f"{value:{form}}"


def with_interval(value: Estimate | Interval | None, form: Callable[[float], str]) -> str:
    """`0.84 (0.78 to 0.91)`: a value and the ends of its 95 % interval, if known, each written by `form`."""
    if value is None:
        return ABSENT
    text = form(value.value)
    if value.low is None or value.high is None:
        return text
    return f"{text} ({form(value.low)} to {form(value.high)})"


def estimate_text(estimate: Estimate | Interval | None, signed: bool = False) -> str:
    """`51.00 (38.30 to 63.71)`: a fraction as percent with its 95 % interval, if known."""
    return with_interval(estimate, partial(points, signed=signed))


def score_text(estimate: Estimate | None) -> str:
    """The mean score of a cell like `estimate_text`, but within 0 to 100, and the range of two runs for an interval."""
    if estimate is None:
        return ABSENT
    return with_interval(Interval(estimate.value, *score_limits(estimate)), points)


def edge_text(edge: Interval) -> str:
    """`to 0.79` of a share of 0, `from 99.21` of a share of 1: Wilson's limit in percent."""
    low, high = edge.low or 0.0, edge.high or 0.0
    return f"to {points(high)}" if edge.value == 0 else f"from {points(low)}"


def p_text(value: float | None) -> str:
    """A p value with three decimals."""
    if value is None:
        return ABSENT
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# Arbitrary text, escaped.

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"{\ttfamily\char96}",
    '"': r"{\ttfamily\char34}",
    # After the end of a row LaTeX would read a bare bracket as an optional argument, and a bare star as `\\*`.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "—": "---",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "…": r"\ldots{}",
    "†": r"$^\dagger$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "∞": r"$\infty$",
    "ß": r"\ss{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "ı": r"\i{}",
    "\N{NO-BREAK SPACE}": "~",
}
_GREEK = (
    "αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta ιiota κkappa λlambda μmu µmu νnu ξxi πpi ρrho σsigma τtau "
    "υupsilon φphi χchi ψpsi ωomega ΓGamma ΔDelta ΘTheta ΛLambda ΞXi ΠPi ΣSigma ΥUpsilon ΦPhi ΨPsi ΩOmega"
)
_LATEX |= {entry[0]: f"$\\{entry[1:]}$" for entry in _GREEK.split()}
# Combining mark -> the LaTeX accent command for the preceding letter.
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}
_MARKDOWN = {symbol: "\\" + symbol for symbol in "\\`*_[]|~$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_NUMBER = re.compile(r"[+−-]?\d[\d.]*(e[+-]?\d+)?( ± [\d.]+| \([+−-]?[\d.]+ to [+−-]?[\d.]+\))?( [↑↓])?†?")
_FORMULA = tuple("=+-@\t\n＝＋－＠")  # the wide ones, too


def escape_latex(text: str) -> str:
    """ASCII that any LaTeX engine typesets as `text`, on one line.

    A character that the standard fonts lack is printed as its code point, such as [U+4E2D].
    """
    signs, commands = unicodedata.normalize("NFC", _one_line(text)), []
    for before, sign in zip(" " + signs, signs, strict=False):
        if sign == before and sign in "-',?!":  # two in a row would form a ligature
            commands.append("{}")
        letter, *marks = list(unicodedata.normalize("NFD", sign))
        command = sign if sign.isascii() else f"{{[}}U+{ord(sign):04X}{{]}}"
        if letter.isascii() and letter.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
            command = f"\\{_ACCENTS[marks[0]]}{{{letter}}}"
        commands.append(_LATEX.get(sign, command))
    return "".join(commands)


def escape_markdown(text: str) -> str:
    """Text that Markdown renders literally, on one line, also inside a table."""
    return "".join(_MARKDOWN.get(sign, sign) for sign in _one_line(text))


def escape_json(content: object) -> str:
    """JSON that is safe inside a <script> element: no text in it can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=1000)
def csv_cell(text: str) -> str:
    """A text that no spreadsheet interprets as a formula: what begins like a formula is prefixed with an apostrophe.

    Numbers stay numbers, negative ones with a hyphen. Line ends become `\\n`, since csv would leave a bare carriage
    return unquoted.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _NUMBER.fullmatch(text):
        return text.replace(_MINUS, "-")
    return "'" + text if text.startswith(_FORMULA) else text


def _one_line(text: str) -> str:
    """The text with line ends as spaces and without control characters, including bidirectional ones."""
    signs = (" " if sign in "\r\n\t\v\f\x85\u2028\u2029" else sign for sign in text)
    return "".join(sign for sign in signs if unicodedata.category(sign) not in ("Cc", "Cf", "Cs"))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with \n line ends on every platform; no cell is a formula (`csv_cell`)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_cell, header))
    writer.writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()
