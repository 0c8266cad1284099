"""The part of a response that is its answer, and the comparison of whole numbers.

Everything here runs in the trainer's process on text that a policy wrote: it takes time linear in the length of
the last `WINDOW` characters, with possessive quantifiers where a pattern could otherwise backtrack.
"""

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from cppo_lab.data.grader_child import NOT, SCALES, SIGN, TEXT, WRONG, in_digits, pieces

WINDOW = 4_000  # characters at the end of a response in which an answer is looked for
PROSE = 1_000  # characters of the end that are handed on when no answer is marked
MAX_ANSWER = 1_000  # characters; MATH's longest answer has 159, DAPO's are integers
THINK_START, THINK_END = "<think>", "</think>"
# "Answer: 5", "**Answer:** 5", "Answer**: 5", "answer：5", "答案：5"; the text may be on a following line.
_MARK = re.compile(r"(?i)answer\s*+\**+\s*+[:：]\s*+\**+\s*+(?=\S)")
# Apart from the above: with a choice of words both are slow.
_CHINESE_MARK = re.compile(
    rf"{_MARK.pattern.replace('answer', '(?<![解回问])答[案え]?[是为]?')}|【答案】\s*+(?=\S)"
)
_TAG = re.compile(r"(?i)<(?:final_)?answer>\s*+(?=[^\s<])")
_END_TAG = re.compile(r"(?i)</?(?:final_)?answer>")
_STATED = re.compile(r"(?i)\banswer\s++is\s*+[:：]?+\s*+(?=\S)|[故应]选[:：]?+\s*+(?=\(?[A-J]\b)")
_QUESTION = re.compile(r"(?i)(?:[^.?!\n]|\.(?=\d))*+\?\s+(?=no\b)")  # "Is it 12? No, it is 13."
_SENTENCE_END = re.compile(r"\.(?:\s|(?=[\u4e00-\u9fff]))|\n")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*+(\{|-?[0-9]+)")
# What changes a box from outside: "not \\boxed{42}", "-\\boxed{42}", "\\boxed{41} or \\boxed{42}", "\\boxed{42}^2".
# A number that ends the line before (`\Z`, which `$` is not) is none of it.
_BEFORE_BOX = re.compile(
    r"(?:\\(?:boxed|fbox)\{(?:[^{}]|\{[^{}]*\})*+\}[$ ]*(?:,|;|、|和|and|\\text\{ *and *\})?[$ ]*)+\Z"
    rf"|\S+ *(?:\bor|或|\\text\{{ *or *\}})[$\s]*\Z"
    rf"|(?i:(?:{NOT}|{SIGN})(?:\s+(?:be|equal\s+to|the\s+answer))*)[\s$({{\\]*$"
    r"|(?:[-+/^\d]|\\(?:cdot|times|div|pm|sqrt|[dt]?frac|log|ln)\s*\{?)[$({\\]*\Z"
)
_AFTER_BOX = re.compile(
    r"^(?:(?:\^|_(?=\{?\d)|\.?\d|/|\\(?:cdot\s*|times\s*|pi|sqrt|[dt]?frac)(?![A-Za-z]))\S*"
    r"|!(?=[$=]|\\[)\]])"
    # "\boxed{42} is not hard to find" denies nothing
    rf"|[$)\\]*\s{WRONG}(?!\s+(?!(?:the|right|correct|possible|valid|equal|an?|it|be|because|since|as|so|and|but|guess|answer|solution|value|choice|option|attempt|result)\b)\w)"
    r"| *(?:or|或).*)"
)
_REACH = 100  # characters beside a box
_OPENINGS = {"$$": "$$", "\\[": "\\]", "```": "```"}  # displayed formulas and code, which may span lines
_FENCES = (
    *((mark, mark) for mark in ("$$", "$", "**", "`", "__", "_", '"', "'")),
    *((r"\(", r"\)"), (r"\[", r"\]"), *zip("“‘「{", "”’」}", strict=True)),
)
_FONT = re.compile(
    r"^\\(?:underline|text|bf|textbf|mathbf|mathrm|bm|boldsymbol|pmb|hbox|ensuremath|small|[lL]arge|huge)(?=\{)"
)
_ALIGNED = re.compile(
    r"\\(?:begin|end)\{(?:(?:fl)?align|center|equation|gather|multline|split|eqnarray|math|displaymath)(?:ed)?\*?\}"
)
_ROW_END = re.compile(r"\\\\(\s*+(?==)|\s*+$)?")
_SPACE = r"(?:\\[,;:! >]|\\q?quad(?![A-Za-z])|~|\s)"
_LEADING = re.compile(rf"(?:{_SPACE}|[*#}}])++")
_TAILS = (
    *("\\,", "\\;", "\\:", "\\!", "\\>", "\\\\", "\\quad", "\\qquad", "\\square", "\\blacksquare", "\\qed"),
    *("Q.E.D", "QED", *"~*.,;\\∎■□✓✔"),
)
PERCENT = re.compile(
    r"(?i)(?<=[\d})\]$])\s*+(?:\\*+%|\\text\s*+\{\s*+(?:\\?%|per\s?cent)\s*+\}|per\s?cent\b|percentage\b|pct\b)|百分之"
)
CURRENCY = re.compile(
    r"\\text\s*+\{\s*+\\\$\s*+\}|(?:\bUS)?(?<!\\)\\\$|\A\$(?=[\d.,]++[^\w$]*\Z)"
    r"|\\(?:pounds|euro|textdollar)(?![A-Za-z])(?:\{\})?\s*+|[€£¥₩₹₽]"
)
_RELATION = r"(?:[=<>]|\\(?:[lg]eq?|neq?)(?![A-Za-z]))"
_CONDITION = (
    r"(?:(?:since|because)\b[^()]*+|(?:(?:where|for|when|with|if)\s++)?+\$?[A-Za-z]\s*+"
    rf"{_RELATION}[^()\[\]$]*+\$?)"
)
_CURRENCIES = re.compile(r"\$\d[^$]*+(?<=\s)\$\d")  # "$12 or $13"
_DEGREES = re.compile(
    r"^((?:[^A-Za-z]|\\circ)*\d)(\$?)\s*+(?:(?:\^\s*+(?:\\circ|\{\s*+\\circ\s*+\}|\{?o\}?))\s*+(?:\\(?:text|math)(?:rm)?\s*+\{)?"
    r"|(?:\\text\s*+\{)?\s*+deg(?:rees?)?)\s*+(?:C|F|[Cc]elsius|[Ff]ahrenheit|[Cc]entigrade)?\s*+\}?\s*+(\$?)$"
)
_MODULUS = re.compile(
    r"\$?(?:\b[A-Za-z] *\\equiv *|(?<![\w.^*/+]))(\d+)\$? *\(?(?:\\text\{ *)?\\?[pb]?mod(?![a-z]) *\}? *"
    r"(?:\{ *([1-9]\d*) *\}|\$?([1-9]\d*)\$?)\)?"
)
_TERM = r"(?:\d*+\\sqrt *+\{?\d++\}?|\d++(?:\.\d++)?|[a-z])"  # of a ratio
_NUMBER = r"-?(?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++)"
_POWER = (
    r"-?[0-9]*+\.[0-9]++|-[0-9]++"  # that math-verify reads without braces as something else, or as a float
)
# Units that are made of others, as m/s, kg m^2 or m s^{-1}: math-verify drops single ones and words.
_SI = (
    r"(?:(?:[kcdmnµμMG]|\\mu *)?(?:[mgsLlNJWVAKCFTΩ]|\\Omega|Hz|Pa|mol|eV|rad)|h|hr|min|ft|in|mi|lb|gal|yr)"
    r"\b\.?(?: *\$?\^\{?-?\d\}?)?"
)
_UNITS = re.compile(
    rf"(?<=[\d}})$])\$?{_SPACE}*+\$?(?:\\[dt]?frac *\{{{_SI}\}} *\{{{_SI}\}}|[(\[]?{_SI}"
    rf"(?:(?:\s*+(?:/|\\cdot(?![A-Za-z])|\*)\s*+|{_SPACE}++){_SI})*+[)\]]?)\$?$"
)
_SMALL = re.compile("([⁻⁺]?+[⁰¹²³⁴⁵⁶⁷⁸⁹]++)|[₀₁₂₃₄₅₆₇₈₉₍₎]++")
_OVERLINED = re.compile("(?:[0-9][\u0304\u0305])+")
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
_UNICODE = str.maketrans("\u3000。’′∶−–‒‐‑﹣⁻⁄∕÷", " .'':-------///") | str.maketrans(
    {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
    | {"×": "\\times ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "≡": "\\equiv ", "、": ", "}
    | {sign: f"\\mathbb{{{letter}}}" for sign, letter in zip("ℝℤℕℚ", "RZNQ", strict=True)}
    | dict.fromkeys(map(ord, "≤⩽≦"), "\\le ")
    | dict.fromkeys(map(ord, "≥⩾≧"), "\\ge ")
    | {"∪": "\\cup ", "∅": "\\emptyset ", "″": "''"}
    | {"⟨": "(", "⟩": ")", "∴": " ", "⇒": "\\Rightarrow "}
    | {
        **dict.fromkeys("°º˚", "^{\\circ}"),
        "¢": " cents",
        "℃": "^{\\circ}C",
        "℉": "^{\\circ}F",
        "‰": "\\cdot 10^{-3}",
        "∛": "\\sqrt[3]",
        "≈": "\\approx ",
        "±": "\\pm ",
        "≠": "\\ne ",
        "∈": "\\in ",
    }
    | {
        char: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", char).split("⁄"))
        for char in "½¼¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉"
    }
    | str.maketrans("壹贰叁肆伍陆柒捌玖拾佰仟萬億", "一二三四五六七八九十百千万亿")
)
_ROOT = re.compile(r"(?:√|根号)\s*+(?:\{([^{}]*+)\}|\(([^(){}]*+)\)|([0-9]++(?:\.[0-9]++)?|[A-Za-z]))")
_IDEOGRAPH = re.compile(r"(?<=[\u3040-\u30ff\u4e00-\u9fff])(?=[-+\d\\$])")
_WHOLE = re.compile(r"([+-]?)([0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)?\.[0-9]+")
_FRACTION = re.compile(
    r"([+-]?)(?:([0-9]*) *\\[dt]?frac *(?:\{([+-]?[0-9]+)\}|([0-9])) *(?:\{([0-9]+)\}|([0-9]))|([0-9]+)/([0-9]+))"
)
_SCIENTIFIC = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]+)?)\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*([+-]?[0-9]{1,3})\s*\}|([0-9]))"
)
_LIST = re.compile(r",|\b(?:and|or)\b")
# A choice: "A", "(A)", "A)", "Option A", "the answer is A"; not the numbers e and i
_CHOICE = re.compile(
    r"(?![ei]\Z)(?:(?i:(?:the\s++)?+(?:correct\s++)?+(?:answer|option|choice|letter)(?:\s++is)?+)\s*+:?+\s*+|[故应]?+选项?+\s*+:?+\s*+)*+"
    r"[(\[]?+\s*+([A-Ja-j])\s*+[)\].:]*+\s*+(?:选项)?(?:is\s+(?:the\s+)?correct(?:\s+(?:answer|choice|option))?)?"
)
# The letter of a choice or a point before its content: "A) 42", "(A) 42", "\\textbf{(A)}\\ 42", "P(2,3)"
_LABELLED = re.compile(
    rf"(?i:(?:option|choice)\s++)?+(?:\\(?:text|math)[a-z]*+\s*+\{{\s*+[(\[]?([A-J])\s*+[)\].:]{{1,2}}{_SPACE}*+\}}{_SPACE}*+"
    rf"|\(([A-J])\)[.:]?+{_SPACE}++|([A-J])[).:]{_SPACE}++|([ABD-Z])(?=\([^(),]*,[^()]*\)\Z))(\S.*)",
    re.DOTALL,
)
_LABEL = re.compile(r"(?<![A-Za-z\\(])\(?[A-J][).:](?!\S)|(?<![A-Za-z\\])\([A-J]\)")
_NOT_ALONE = re.compile(rf"(?i)\b(?:or|and)\b|{NOT}|{SIGN}|{WRONG}")
_EMPTY = re.compile(r"\$\s*+\$|\\\(\s*+\\\)|\\\[\s*+\\\]|\*\*\s*+\*\*")
_OPENING = re.compile(r"^\s*(?:(?:it(?:'s| is| was)|the answer is) +)?(?:(?:an?|the|on) +)?")
_WORDS = re.compile(r"(?i)\s*+(?:yes|no|(?=it |.*[a-z]{4})[a-z ,'-]++)\s*+")  # not "AB", which is no "ab"
_LAYOUT = re.compile(r"\\displaystyle(?![A-Za-z])|[$`]")


class Answer(NamedTuple):
    """What a response answers.

    text: the answer, or the end of the response if no answer is marked.
    marked: whether it stood after "Answer:" or in a \\boxed{}.
    written: the same with its signs of currency and percent, not tidied.
    """

    text: str
    marked: bool
    written: str


def answer_of(response: str) -> Answer | None:
    """Find the answer that a response gives.

    In this order: the text after the last "Answer:" (which the prompt asks for) or <answer>, the content of the last
    \\boxed{}, the end of the response. Only what follows the last </think> is looked at.

    Returns:
        None if there is none: the response is empty, or its last thought never ends.
    """
    thought = response.rfind(THINK_END)
    if response.rfind(THINK_START) > thought:
        # PAPER: not said. A response cut off while thinking has not answered; numbers in its thoughts are no answer.
        return None
    start = 0 if thought < 0 else thought + len(THINK_END)
    response = response.rstrip()
    final = _INVISIBLE.sub("", response[max(start, len(response) - WINDOW) :].replace("\0", " ")).strip()
    if not final:
        return None
    patterns = (_MARK, _TAG) if final.isascii() else (_MARK, _TAG, _CHINESE_MARK)
    marks = [match.end() for pattern in patterns for match in pattern.finditer(final)]
    if marks:
        marked = _END_TAG.split(final[max(marks) :], maxsplit=1)[0]
        written = _once(_first_formula_or_line(marked))
    elif (boxed := _last_boxed(final)) is not None:
        written = boxed
    else:
        written = _ascii(_QUESTION.sub("", final[-PROSE:]))
        return Answer(PERCENT.sub("", written), False, written)
    return Answer(tidy(written), True, _ascii(written))


def without_label(text: str, truth: str) -> str:
    """An answer without the letter of a choice before it, as in "(A) 42"; the letter alone if the truth is a letter. As
    it is if the truth has the letter, too, or the answer another choice.
    """
    match = _LABELLED.fullmatch(_bare(text))
    if match is None:
        return text
    *labels, content = match.groups()
    label = next(filter(None, labels))
    if _LABEL.search(content):
        return text
    choice = _CHOICE.fullmatch(_bare(truth))
    if choice and choice[1].isupper():  # not i or e
        alone = choice[1] != label or not (_CHOICE.fullmatch(content) or _NOT_ALONE.search(content))
        return label if alone else text
    return text if re.search(rf"(?<![\\A-Za-z]){label}(?![A-Za-z])", truth) else content


def stated(text: str) -> str | None:
    """What unmarked text says that the answer is; None if it does not say so."""
    places = [match.end() for match in _STATED.finditer(text)]
    return _SENTENCE_END.split(text[places[-1] :], maxsplit=1)[0] if places else None


def whole_number(text: str) -> str | None:
    """A whole number in one spelling ("+1,000" and "01000" are "1000"), or None for any other text."""
    match = _WHOLE.fullmatch(_bare(text))
    if match is None:
        return None
    sign, digits = match.groups()
    value = digits.replace(",", "").lstrip("0") or "0"
    return f"-{value}" if sign == "-" and value != "0" else value


def canonical(text: str) -> str:
    """One spelling of all texts that are equal answers on sight: 1,000 and $1000$; 0.5 and \\frac12; 50% and 50.

    What is equal only as an expression, as 2\\sqrt2 and \\sqrt8 are, has two spellings.
    """
    text = without_degrees(_bare(tidy(text)))
    whole = whole_number(text)
    if whole is not None:
        return whole
    number = _rational(text)
    if number is not None:
        return str(number)
    text = _LAYOUT.sub(" ", TEXT.sub(r" \1 ", re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)))
    text = re.sub(rf"(\\\\)|{_SPACE}", r"\1 ", text).replace("\\varnothing", "\\emptyset")
    text = re.sub(r"(\\[A-Za-z]+) +(?=\d)", r"\1", re.sub(r"(?<!\\)\{(\w)\}", r" \1 ", text))  # \pmod{4}
    if match := _CHOICE.fullmatch(text.strip()):
        return match[1].upper()
    if _WORDS.fullmatch(text):
        text = _OPENING.sub("", text.lower())
    # Spaces count between letters and digits only ("3 4" is not 34), and behind commas ("3, 125" is not 3,125).
    return re.sub(r"(?<![A-Za-z0-9]) +| +(?![A-Za-z0-9])", "", re.sub(" +", " ", text)).replace(",", ", ")


def _rational(text: str) -> Fraction | None:
    """The value of a decimal, a fraction, a mixed number, or a number with a power of ten."""
    if _DECIMAL.fullmatch(text):
        return Fraction(text.replace(",", ""))
    if match := _SCIENTIFIC.fullmatch(text):
        return Fraction(match[1]) * Fraction(10) ** int(match[2] or match[3])
    if match := _FRACTION.fullmatch(text):
        sign, whole, *parts = match.groups()
        above, below = (int(part) for part in parts if part is not None)
        if below and (not whole or 0 < above < below):
            number = int(whole or 0) + Fraction(above, below)
            return -number if sign == "-" else number
    return None


def without_units(text: str) -> str:
    """An answer without the units behind its number, such as m/s; for a truth that has no letters but in commands."""
    bare = _bare(text)
    number = _UNITS.sub("", TEXT.sub(r" \1 ", bare).strip())
    return (
        tidy(number)
        if number != bare
        and re.search(r"\d", number)
        and not re.search(r"(?<![\\A-Za-z])[A-Za-z]{2}", number)
        else text
    )


def without_degrees(text: str) -> str:
    """A number without the sign of degrees behind it."""
    return _DEGREES.sub(r"\1\2\3", text)


def residue(text: str) -> str:
    """An answer or a truth without the modulus behind its number."""
    return _MODULUS.sub(lambda match: str(int(match[1]) % int(match[2] or match[3])), text)


def value(text: str) -> str:
    """The canonical answer in a text that may have words around it, as unmarked answers have: its number."""
    text = without_units(tidy(stated(text) or text))
    numbers = pieces(text)
    if not numbers:
        return canonical(text)
    last = numbers[-1]
    return canonical(last if _LIST.search(last) else last.rpartition("=")[2])


def compiled(*rewrites: tuple[Any, Any]) -> list[tuple[re.Pattern[str], Any]]:
    """Patterns and what replaces them, for `rewritten`."""
    return [(re.compile(pattern), replacement) for pattern, replacement in rewrites]


def _value_of(chinese: str) -> Fraction:
    """Of a number in Chinese, with or without digits: 四十二 is 42, 3万 is 30,000."""
    for scale, size in zip("亿万千百十", (100_000_000, 10_000, 1_000, 100, 10), strict=True):
        before, sign, behind = chinese.rpartition(scale)
        if sign:
            return size * (_value_of(before) if before else 1) + _value_of(behind)
    return Fraction(chinese.translate(_CHINESE_DIGITS) or 0)


def _in_chinese(match: re.Match[str]) -> str:
    """A number in Chinese, in digits."""
    return str(_value_of(match[0]))


def _fraction(match: re.Match[str]) -> str:
    """A repeating decimal as a fraction."""
    whole, head, repeated = match[1], match[2], match[3] or match[4] or match[5]
    above = int(whole + head + repeated) - int(f"0{whole}{head}")
    return f"\\frac{{{above}}}{{{10 ** len(head) * (10 ** len(repeated) - 1)}}}"


def _ratio(match: re.Match[str]) -> str:
    """2:3:5, which math-verify takes for a quotient, as its terms by the last."""
    *terms, last = re.split(" *:+ *", match[0])
    shares = ",".join(f"\\frac{{{term}}}{{{last}}}" for term in terms)
    return f"({shares})"


_CHINESE_DIGITS = str.maketrans("零〇一二两三四五六七八九点", "001223456789.", ", ")
_HAN = "[0-9零〇一二两三四五六七八九十百千万亿]{1,20}+"
# "四分之三", "四十二", "二〇二四", "三点五", perhaps with a noun: not "唯一", "一样", "一半"
_OF_CHINESE = compiled(
    (rf"(?!百分)({_HAN})分之({_HAN})", r"\2/\1"),
    (r"^一半$", "1/2"),
    (
        rf"(?<![^\W是为于有共得负之])(?!一(?!{_HAN}|点{_HAN})[\u4e00-\u9fff]){_HAN}(?:点{_HAN})?+"
        r"(?=(?!半)[\u4e00-\u9fff]?(?![\u4e00-\u9fff]))",
        _in_chinese,
    ),
)
_START, _END = r"^(?:\$\$?|\\[(\[])?\s*+", r"\s*+(?:\$\$?|\\[)\]])?$"  # of a formula
# What math-verify cannot read or reads wrongly, and what it reads instead, in this order
_WITHIN = compiled(
    (
        r"\\(?:hspace\*?|[hv]?phantom) *+\{[^{}]*+\}|\\(?:(?:en|thin|med|thick)space|hfill?)(?![A-Za-z])",
        r"\\ ",
    ),
    (r"\\(?:text|math(?:ord|punct|rm))\{,\}", "{,}"),
    (r"\\(?:nice|s|x|c)frac(?![A-Za-z])", r"\\frac"),
    (r"(\\[dt]?frac) *\\pi *", r"\1{\\pi}"),
    (r"(\^|\\sqrt) *(\\[dt]?frac *(?:\d|\{[^{}]*+\}) *(?:\d|\{[^{}]*+\}))", r"\1{\2}"),
    (r"\\langle(?![A-Za-z])", "("),
    (r"\\rangle(?![A-Za-z])", ")"),
    (r"<\|\w+\|>|(?s:<(?!su[bp])(\w+)>([^<>]*+)</\1>)", r"\2"),
    (CURRENCY, ""),
    (r"(?s)^```[a-z]*+\s++(.*)```$", r"\1"),
    (r"\\(?:[bB]igg?[lrm]?|left|right|middle)(?![A-Za-z])", ""),
    (_BOX, r" \1"),
    (PERCENT, ""),
    ("`", " "),
    (r"(?i)(?:(?<![\w\\])(?:minus|negative)\s++|负\s*+)(?=[\d.$\\(])", "-"),
    (r"\\(?:mathrm|text|rm) *+\{ *+([ie]) *+\}", r"{\1}"),
    (r"(?<=\d) *+(?:\{i\}|i)(?!\w)", " i"),
    (
        rf"(?<=[\w)}}])(?:\*\*(?:({_NUMBER})|(?=\())|\^\s*+(?:\{{\s*+({_POWER})\s*+\}}|({_POWER})))",
        lambda match: f"^{{{Fraction(match[match.lastindex])}}}" if match.lastindex else "^",
    ),
    (  # "0.1666..." is 1/6. Dots behind other numbers leave them unfinished.
        r"(?:(?<=\.)([0-9]{0,9}?)([0-9]{1,6}?)\2+)?(?:\.{3,}|…|\\[lc]?dots(?![a-z]))",
        lambda match: f"{match[1]}\\overline{{{match[2]}}}" if match[2] else "\\dots ",
    ),
    (  # "0.1\overline{6}", of which math-verify reads "0.1", and "0.(6)"; "0.1(6)" may be a product.
        r"([0-9]*+)\.([0-9]*+)(?:\\(?:overline|bar|dot)\s*+(?:\{\s*+([0-9]++)\s*+\}|([0-9]))(?!\d)|(?<=\.)\(([0-9]++)\))",
        _fraction,
    ),
    (  # "C(10,3)", "C_{10}^{3}", "10C3", "{}_{10}C_3"
        r"(?<![\\A-Za-z])C(?:\(|_\{?)\s*(\d*[nkmr]?[+-]?\d*)\}?\s*[,^]\s*\{?(\d+|[nkmr])[)}]?"
        r"|(?<![\w.^{])(\d++|n)(?:C| choose )(\d++|[kr])(?!\w)"
        r"|(?<![\w)}])(?:\{\} *)?[_^] *\{?(\d+|n)\}? *C *_? *\{?(\d+|[kr])(?:\}|(?!\w))",
        r"\\binom{\1\3\5}{\2\4\6}",
    ),
    (_MODULUS, r"\1 \\pmod{\2\3}"),
    (r"(?<=\d)( *[kcdm]?m)([23])(?!\w)", r"\1^\2"),
    (r"(?<![A-Za-z])(ln|log) *+(\d++)(?= */ *\\?(?:ln|log)(?![a-z]))", r"\1(\2)"),
    (  # "3万", no "3千克"
        rf"[0-9][0-9,]{{0,99}}+(?:\.[0-9]{{1,99}}+)?+ ?(?=[十百千万亿]){_HAN}(?<![百千](?=[\u4e00-\u9fff]))",
        _in_chinese,
    ),
    (  # "42 million"
        rf"(?i)(?<=\d)\$?[\s~]*+(\\text\s*\{{)?\s*({'|'.join(SCALES)})(?![A-Za-z])(?(1)(\s*\}})?)",
        lambda match: f"\\cdot 10^{{{SCALES[match[2].lower()]}}} {'' if match[3] else match[1] or ''}",
    ),
    (r"(?i)(?<=\d)\s*+x\s*+(?=10\s*+\^)", r"\\times "),  # "6.02 x 10^23"
    (
        r"(?<![\w\\.])([0-9]++(?:\.[0-9]++)?|\.[0-9]++)[eE]([-+]?+)0*([0-9]{1,3})(?!\w)",
        r"\1 \\times 10^{\2\3}",
    ),
    (r"\\log *+_ *+(?:e|\{ *+e *+\})", r"\\ln "),
    (
        r"(?<=\d) *+_ *+(\{ *+)?(\\text *+\{ *+)?([a-z]{3,}+)(?(2) *+\})(?(1) *+\})",
        lambda match: f"_{{{in_digits(match[3])}}}",
    ),
    (r"(?<![\w\\])([a-z]) in (?=[(\[])", r"\1\\in "),
    (r"(?<=:\d\d) *+([AaPp])\.? ?[Mm]\b\.?", lambda match: f" {match[1].lower()}m"),
    ("或者?", " or "),
    (
        r"(\\?(?:sin|cos|tan|cot|sec|csc) *+(?:\^ *+\{?\d\}?)? *+[({]?) *+(\d++(?:\.\d++)?) *+"
        r"(?:°|\^ *+(?:\\circ(?![A-Za-z])|°|\{ *+\\circ *+\}))",
        r"\1\\frac{\2\\pi}{180}",
    ),
)
# The same for the whole of an answer
_OF_ALL = compiled(
    # Statements by their numbers: "(1)(3)", "\textcircled{1}\textcircled{3}"
    (
        r"\\textcircled *+\{? *+[1-9] *+\}?|^\W*(?:\([1-9]\) ?){2,}[^\w(]*$",
        lambda match: re.sub(
            r"(?:\\textcircled *\{? *|\()([1-9]) *[})]?", lambda n: chr(0x245F + int(n[1])), match[0]
        ),
    ),
    # Of two numbers beside each other it takes the sum.
    (
        r"(\\binom\{[^{}]*+\}\{[^{}]*+\}|(?<![\w.^_\\])(?:\d++|\(\d++\)))(?= *+\\binom|\(\d++\))",
        r"\1\\cdot ",
    ),
    (r"^(\$?-?[1-9]\d{0,2})\.(\d{3}),(\d\d?\$?)$", r"\1\2.\3"),  # 1.234,56
    # A thousands separator of LaTeX between digits: math-verify reads "1\,000" as 1 times 0. Plain commas it knows. A
    # space behind a comma ("3,\,125") separates two numbers.
    (
        r"(?<=\d)(?:\{,\}|,\\!|\\[,;:! ]|[~\u00a0\u2000-\u200a\u202f\u205f']|\.(?=\d{3}\.\d{3}(?!\d))|(?<=\.\d{3})\.)"
        r"(?=\d{3}(?!\d))",
        "",
    ),
    (rf",{_SPACE}++", ", "),
    (r"(?<![\\A-Za-z])(?:[Ii]nf(?:inity)?|oo)(?![A-Za-z])", r"\\infty "),
    (r"(?<=[\])]) *U *(?=[\[(])", r"\\cup "),
    (r"(?<=\w) *\(?base *(\d+)\)?$", r"_{\1}"),
    (  # Behind a comma with a space one without is a thousands separator: "(1,000, 2,000)"
        r"(?<=, )-?[1-9]\d{0,2}(?:,\d{3})++(?!,?\d)|(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})++(?=, )",
        lambda match: match[0].replace(",", ""),
    ),
    (  # "1 000", and nothing before it
        r"(?<![^$ ])[-+]?[1-9][0-9]{0,2}(?: [0-9]{3})++(?=\.?\d*\$?$)",
        lambda match: match[0].replace(" ", ""),
    ),
    (  # a remark
        rf"(?:(?<=[\d}})])|(?<=\$)(?=\s|~|\()){_SPACE}*+(?:\$\({_CONDITION}\)\$|\({_CONDITION}\)|\[{_CONDITION}\])(?=(?:\s|\$|\\[)\]]|\}})*$)"
        rf"|(?<=[\d}})$]),?{_SPACE}++(?:where|for|when|with|if|at)\s++\$?[A-Za-z]\s*+{_RELATION}(?:[^()\[\],;$A-Za-z]|\\[a-z]++)*\$?$",
        "",
    ),
    (r"(?s)(?<=\S)(?:,? +because|, +since)\b.*", ""),
    (  # "\frac{13}{29}, so m+n = 42"
        r"^.*,? (?:so|thus|hence|therefore),? +\$?[a-z](?: *[-+] *[a-z])+ *= *(?=-?\d++\$?$)",
        "",
    ),
    (  # 3 > x > -1
        rf"{_START}([^<>=$,;]+?)(>=?|\\geq?(?![a-z]))( *[A-Za-z] *)(>=?|\\geq?(?![a-z]))([^<>=$,;]+?){_END}",
        lambda match: re.sub(
            r">|(?<=\\)g", lambda sign: "<l"[sign[0] == "g"], "".join(match.group(5, 4, 3, 2, 1))
        ),
    ),
    (r"\b((?:Jan|Feb|Mar|Apr|May|Ju[nl]|Aug|Sep|Oct|Nov|Dec)[a-z]*\.? \d\d?)(?:st|nd|rd|th)\b", r"\1"),
    (r"^(\$?-?\d++ *)\\approx(?= *-?\d++\$?$)", r"\1 or "),  # two whole numbers
    (  # "2\sqrt{3} (approximately 3.46)", "2\sqrt{3}, about 3.46"
        rf"(?<=[\d}})$i]),?{_SPACE}*+(?:or|which\s+is)?\s*(?:about|approx[a-z]*|roughly)\s+[^\s,()]*\d\$?$"
        rf"|(?<=[\w}})$]){_SPACE}*+\(\$?(?:\\approx(?![A-Za-z])|~|(?:or\s+)?(?:about|approx[a-z]*|roughly)\b)[^()]*+\)"
        r"(?=(?:\s|\$|\\[)\]]|\})*$)",
        "",
    ),
    (r"(?<![\w/.^_}])(\d++) *+/ *+(\d++)(?= ++[A-Za-z])", r"\\frac{\1}{\2}"),  # "1/2 kg"
    (rf"(?<![\w/.^_}}])([0-9]++)(?:{_SPACE})+([0-9]++)/([0-9]++)(?![\w/.^])", r"\1\\frac{\2}{\3}"),
    (
        r"(?i)^\W*(?:\\text\W*)?(?:(?:the )?empty set|(?:there (?:is|are) )?no (?:real )?(?:solution|root)s?)\W*$"
        rf"|{_START}\\?\{{ *\\?\}}{_END}",
        r"\\emptyset",
    ),
    (
        r"(?i)^\W*(?:\\text\W*)?(?:the set of )?(?:all )?real(?: numbers|s)(?: x)?\W*$"
        rf"|{_START}(?:[a-zA-Z] *+\\in *+)?\\math(?:bb|bf) *+\{{? *+R *+\}}?{_END}",
        r"(-\\infty,\\infty)",
    ),
    (  # {x | x > 2}
        rf"{_START}\\?\{{ *+[A-Za-z] *+(?:\\in *+\\mathbb *+\{{?R\}}? *+)?(?:\\mid(?![a-z])|[|:])"
        rf"((?:[^{{}}|\\$]|\\[A-Za-z]++|\\[ ,;!]|\{{[^{{}}]*+\}})++)\\?\}}{_END}",
        r"\1",
    ),
    (
        rf"^(?i:(?:the )?ratio is )?(\$?{_TERM}\$?(?: to \$?{_TERM}\$?)++)$",
        lambda match: re.sub(r"\$? to \$?", ":", match[1]),
    ),
    (rf"(?<![\w.:/^)}}]){_TERM}(?: *:++ *{_TERM}){{2,}}+(?! *:|[\w.])", _ratio),
    # Several choices: "A, C and D"
    (
        r"^(?:[故应]?选:? *)?\(?([A-J])(?:[,; ()和]|and)*([A-J])(?:(?:[,; ()和]|and)*([A-J]))?"
        r"(?:(?:[,; ()和]|and)*([A-J]))?\)?$",
        r"\1\2\3\4",
    ),
    (  # [[1,0],[0,1]]
        r"^\$?\[\[([^\[\]]*+(?:\], *\[[^\[\]]*+)*+)\]\]\$?$",
        lambda match: (
            "\\begin{pmatrix}" + re.sub(r"\], *\[", r"\\\\", match[1]).replace(",", "&") + "\\end{pmatrix}"
        ),
    ),
    (  # [0,1[ and (0;1)
        r"(?:(?<![\w)}\]\\])|(?<=\\cup)|(?<=\\in))([\[\](])([^\[\](),;]++)[,;]([^\[\](),;]++)(?<!\\)(?<!sqrt)([\[\])])",
        lambda match: f"{'(['[match[1] == '[']}{match[2]},{match[3]}{')]'[match[4] == ']']}",
    ),
    (
        r"(?: *+, *+\(?| *+\() *+([a-z]) *+\\in *+\\math(?:bb|bf|rm) *+\{? *+([ZN]) *+\}? *+\)?(\$?)$",
        r", \1\\in\\mathbb{\2}\3",
    ),
)


def tidy(text: str) -> str:
    """An answer or a truth as math-verify reads it: without space and full stop around it, percent and currency signs,
    thousands separators and a remark such as (n=5).
    """
    text = text.strip()
    if text.isascii() and text.isdigit():  # nearly every answer and truth
        return text
    text = _ascii(text)
    if "\\begin{" in text and (formula := _ALIGNED.sub("", text)) != text and "\\begin{" not in formula:
        text = _ROW_END.sub(lambda match: ", " if match[1] is None else " ", formula.replace("&", ""))
    if not re.search("[0-9]", text):
        text = in_digits(rewritten(text, _OF_CHINESE))
    text = rewritten(text, _WITHIN)
    if text.count("$") == 1 or _CURRENCIES.search(text):  # of currency, or cut off
        text = text.replace("$", "")
    return _trimmed(rewritten(_trimmed(text), _OF_ALL))


def rewritten(text: str, rewrites: list[tuple[re.Pattern[str], Any]]) -> str:
    """A text after replacements in their order."""
    for pattern, replacement in rewrites:
        text = pattern.sub(replacement, text)
    return text


def _ascii(text: str) -> str:
    """The text with LaTeX or ASCII for full-width characters and signs that math-verify does not read."""
    if text.isascii():
        return text
    text = "".join(str(unicodedata.decimal(char, char)) for char in _INVISIBLE.sub("", text))
    text = _SMALL.sub(
        lambda match: f"{'^' if match[1] else '_'}{{{unicodedata.normalize('NFKC', match[0])}}}", text
    )
    text = _OVERLINED.sub(lambda match: f"\\overline{{{match[0][::2]}}}", text)
    text = re.sub(r"—(?=[\d.$\\(])", "-", text).replace("—", " ")  # a minus, or a pause
    text = _ROOT.sub(r"\\sqrt{\1\2\3}", text.translate(_UNICODE))
    return _IDEOGRAPH.sub(" ", text)


def _trimmed(text: str) -> str:
    """Without space, emphasis and punctuation around it, in LaTeX's forms, too."""
    if match := _LEADING.match(text):
        text = text[match.end() :]
    text = text.rstrip()
    while text.endswith(_TAILS):
        tail = next(tail for tail in _TAILS if text.endswith(tail))
        text = text.removesuffix(tail).rstrip()
    return text[:-1] if text.endswith("}") and _depth(text) < 0 else text


def _first_formula_or_line(text: str) -> str:
    """The displayed formula or code that the text starts with, or its first line with what is open at its end."""
    closing = _OPENINGS.get(text[:2]) or _OPENINGS.get(text[:3])
    if closing is not None:
        end = text.find(closing, len(closing))
        if end >= 0:
            return text[: end + len(closing)]
    lines = text.split("\n")
    starts = ("\n".join(lines[:count]) for count in range(1, len(lines) + 1))
    return next((start for start in starts if not _is_open(start)), lines[0])


def _is_open(text: str) -> bool:
    """Whether a formula, an environment or a brace has no end in the text; a dollar before a number is a currency's."""
    return (
        text.count("\\(") > text.count("\\)")
        or text.count("\\begin{") > text.count("\\end{")
        or (text.count("$") % 2 > 0 and bool(re.match(r"\$(?!\s*[-+]?\d)", text)))
        or _depth(text) > 0
    )


def _once(text: str) -> str:
    """A line without a box that repeats what stands before or behind it: "42 \\boxed{42}"."""
    boxes = list(_BOX.finditer(text))
    if len(boxes) != 1 or boxes[0][1] != "{":
        return text
    before, inside = text[: boxes[0].start()], text[boxes[0].end() :]
    end = next((end for end, depth in _braces(inside) if depth < 0), None)
    if end is None or before[-1:].isalnum():  # "42\\boxed{42}" may be a product
        return text
    beside = _EMPTY.sub(" ", f"{before} {inside[end:]}")
    return beside if canonical(beside) == canonical(inside[: end - 1]) else text


def _braces(text: str) -> Iterator[tuple[int, int]]:
    """The end of each brace that is not `\\{` or `\\}`, and how many are open there."""
    depth = 0
    for match in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if match[0] in "{}":
            yield match.end(), depth


def _depth(text: str) -> int:
    """How many braces are open at the end of the text; below 0 if more are closed than opened."""
    braces = _BRACE.findall(text)
    return braces.count("{") - braces.count("}")


def _last_boxed(text: str) -> str | None:
    """The content of the last \\boxed{} with what changes it from outside, or None if there is none or its braces do
    not close.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    box = boxes[-1]
    if box[1] != "{":
        return box[1]
    content, before = text[box.end() :], "".join(_BEFORE_BOX.findall(text[: box.start()][-_REACH:]))
    before = re.sub(r"(\\[a-z]+)\s+\Z", r"\1", re.sub(r"\\(?:boxed|fbox|text)|[{}$]", " ", before))
    ends = (end for end, depth in _braces(content) if depth < 0)
    return next(
        (before + content[: end - 1] + "".join(_AFTER_BOX.findall(content[end:][:_REACH])) for end in ends),
        None,
    )


def _bare(text: str) -> str:
    """The text without dollars, boxes, environments and emphasis around the whole of it."""
    for _ in range(6):
        text = _trimmed(text)
        plain = _FONT.sub("", text)
        fence = next(
            (pair for pair in _FENCES if plain.startswith(pair[0]) and plain.endswith(pair[1])), None
        )
        if fence is None or len(plain) <= len(fence[0]) + len(fence[1]):
            return text
        inner = plain[len(fence[0]) : -len(fence[1])]
        if min((depth for _, depth in _braces(inner)), default=0) < 0:  # two boxes beside each other
            return text
        text = inner
    return text
