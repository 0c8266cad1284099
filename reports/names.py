"""Display names for identifiers, the order of rows, the origin of results, and numbers as text."""

import math
import re
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Decimal

from cppo_lab import schema
from cppo_lab.analysis.inputs import Baseline
from cppo_lab.analysis.statistics.estimate import Estimate, Share, score_limits
from cppo_lab.core_records import core_if_installed
from cppo_lab.rules import METHODS, known

METHOD_ORDER = tuple(rule.name for rule in METHODS)
OURS = "cppo"  # the row that the paper shades
ABSENT = "–"  # in place of a number
CENT = Decimal("0.01")
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


def score_name(core: str, samples: int) -> str:
    """What the scores of a core are: `Avg@16`, or its name for them."""
    return core_if_installed(core).score or f"Avg@{samples}"


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


def points(fraction: float | None) -> str:
    """A fraction as percent with two decimals, as in the tables."""
    return ABSENT if fraction is None else str(round_half_up(percent(fraction)))


def number(value: float | None, form: str = ".2f") -> str:
    """A number in a format; ABSENT for None and NaN."""
    return ABSENT if value is None or math.isnan(value) else f"{value:{form}}"


def with_interval(value: Estimate | Share | None, form: Callable[[float], str]) -> str:
    """`0.84 (0.78 to 0.91)`: a value and the ends of its 95 % interval, if it has one, each written by `form`."""
    if value is None:
        return ABSENT
    text = form(value.value)
    if value.low is None or value.high is None:
        return text
    return f"{text} ({form(value.low)} to {form(value.high)})"


def estimate_text(estimate: Estimate | None, signed: bool = False) -> str:
    """`51.00 (38.3 to 63.7)`: a fraction as percent with its 95 % interval, if it has one; `signed` adds a plus."""
    if estimate is None:
        return ABSENT
    sign = "+" if signed and estimate.value > 0 else ""
    limits = None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
    return f"{sign}{points(estimate.value)}{_limits(limits)}"


def score_text(estimate: Estimate | None) -> str:
    """The mean score of a cell like `estimate_text`, but with the range in place of the interval of two runs."""
    return ABSENT if estimate is None else f"{points(estimate.value)}{_limits(score_limits(estimate))}"


def _limits(limits: tuple[float, float] | None) -> str:
    return "" if limits is None else f" ({100 * limits[0]:.1f} to {100 * limits[1]:.1f})"


def edge_text(edge: Share) -> str:
    """`to 0.79` of a share of 0, `from 99.21` of a share of 1: Wilson's limit in percent."""
    low, high = edge.low or 0.0, edge.high or 0.0
    return f"to {points(high)}" if edge.value == 0 else f"from {points(low)}"


def p_text(value: float | None, absent: str = "none") -> str:
    """A p value with three decimals."""
    if value is None:
        return absent
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def signed_points(fraction: float) -> str:
    """A difference of fractions in points, as in `+2.35`, with a minus sign and not a hyphen."""
    return f"{100 * fraction:+.2f}".replace("-", "\N{MINUS SIGN}")
