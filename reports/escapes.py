"""Escapes arbitrary text (names of variants and models are the user's) for LaTeX, Markdown, CSV and JSON."""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

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
_NUMBER = re.compile(r"[+-]?\d[\d.]*(e[+-]?\d+)?( ± [\d.]+| \(-?[\d.]+ to -?[\d.]+\))?( [↑↓])?†?")
_FORMULA = tuple("=+-@\t\n＝＋－＠")  # the wide ones, too


def escape_latex(text: str) -> str:
    """ASCII that any LaTeX engine typesets as `text`, on one line.

    A character that the standard fonts lack is printed as its code point, such as [U+4E2D].
    """
    signs = unicodedata.normalize("NFC", _one_line(text))
    return "".join(
        # Two hyphens, apostrophes or the like in a row would form a ligature.
        ("{}" if sign == before and sign in "-',?!" else "") + _latex_sign(sign)
        for before, sign in zip(" " + signs, signs, strict=False)
    )


def escape_markdown(text: str) -> str:
    """Text that Markdown renders literally, on one line, also inside a table."""
    return "".join(_MARKDOWN.get(sign, sign) for sign in _one_line(text))


def escape_json(content: object) -> str:
    """JSON that is safe inside a <script> element: no text in it can end the element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=1000)
def csv_cell(text: str) -> str:
    """A text that no spreadsheet interprets as a formula: one that begins like it is prefixed with an apostrophe.

    Numbers stay numbers, including negative ones. Line ends become `\\n`, since csv would leave a bare carriage return
    unquoted.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "'" + text if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def _one_line(text: str) -> str:
    """The text with line ends as spaces and without control characters, including bidirectional ones."""
    signs = (" " if sign in "\r\n\t\v\f\x85\u2028\u2029" else sign for sign in text)
    return "".join(sign for sign in signs if unicodedata.category(sign) not in ("Cc", "Cf", "Cs"))


def _latex_sign(sign: str) -> str:
    command = _LATEX.get(sign)
    if command is not None:
        return command
    if sign.isascii():
        return sign
    letter, *marks = list(unicodedata.normalize("NFD", sign))
    if letter.isascii() and letter.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        return f"\\{_ACCENTS[marks[0]]}{{{letter}}}"
    return f"{{[}}U+{ord(sign):04X}{{]}}"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with \n line ends on every platform; no cell is a formula (`escapes.csv_cell`)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(csv_cell, header))
    writer.writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()
