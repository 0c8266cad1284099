"""Units of measure behind numbers: whether an answer has another one than its truth, which math-verify leaves out."""

import re

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
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"°|\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-zµ]+|\S")


def other_unit(answer: str, truth: str) -> bool:
    """Whether the truth is a number with a unit, and the answer has units instead of it: "5 kg" for "5 cm".

    An answer without units has no other one. "5 km" for "5 km/h" has a part of them. Units that nobody lists, such as
    apples, do not count.
    """
    true = _of_truth(truth)
    if not true:
        return False
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
    plain = _TEXT.split(_DEGREE.sub(r"\\text{deg}", truth))[::2]
    if any(len(token) == 1 and token.isalpha() for part in plain for token in _TOKEN.findall(part)):
        return set()
    found: set[str] = set()
    for token in _tokens(truth):
        if token[0].isalpha() and token not in _BESIDE:
            if not (units := _units(token)):
                return set()
            found |= units
    return set() if found & {"$", "cent"} else found  # an answer's sign of a currency is dropped before


def _of_answer(answer: str) -> set[str]:
    """The units behind the numbers of an answer."""
    found: set[str] = set()
    behind = False
    for piece in _tokens(answer):
        if piece.isdigit() or piece in ")}":
            behind = True
        elif piece[0].isalpha() and piece not in _BESIDE:
            units = _units(piece) if behind else set()
            behind = bool(units)
            found |= units
        elif piece in "=+,;:<>":
            behind = False
    return found


def _tokens(text: str) -> list[str]:
    text = _TEXT.sub(r" \1 ", _DEGREE.sub(r" deg ", text)).replace("μ", "µ")
    return _TOKEN.findall(text)


def _units(word: str) -> set[str]:
    unit = _UNIT_OF.get(word) or _UNIT_OF.get(word.lower())
    return {unit} if unit else _RATES.get(word, set())
