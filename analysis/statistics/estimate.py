"""An estimate with its standard error and 95 % interval, or the reason why there is none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

LEVEL = 0.95
ONE_RUN = "a single run does not show how much seeds differ"
NO_SPREAD = "without any spread between runs there is no standard error"
_SAME = 1e-9  # fractions closer than this differ by rounding alone


@dataclass(frozen=True)
class Estimate:
    """`value` over `n` runs (or pairs of runs), with `error` and `degrees` of freedom of Student's t.

    If the runs do not determine a standard error, `error` and `degrees` are None and `unknown` says why.
    """

    value: float
    n: int
    error: float | None = None
    degrees: float | None = None
    unknown: str = ""

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval."""
        if self.error is None or self.degrees is None:
            return None
        return float(stdtrit(self.degrees, (1 + LEVEL) / 2)) * self.error

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval."""
        return None if self.half is None else self.value - self.half

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval."""
        return None if self.half is None else self.value + self.half

    def p_above(self, null: float = 0.0) -> float | None:
        """One-sided p-value against "the true value is `null` or less"; below 0.025 iff `low` > `null`."""
        if self.error is None or self.degrees is None:
            return None
        return float(stdtr(self.degrees, -(self.value - null) / self.error))

    def p_below(self, null: float = 0.0) -> float | None:
        """One-sided p-value against "the true value is `null` or more"."""
        above = self.p_above(null)
        return None if above is None else 1 - above

    def p_value(self, null: float = 0.0) -> float | None:
        """Two-sided p-value against "the true value is `null`"; below 0.05 iff the interval excludes `null`."""
        above = self.p_above(null)
        return None if above is None else min(1.0, 2 * min(above, 1 - above))


@dataclass(frozen=True)
class SlopeEstimate(Estimate):
    """A slope over `n` models, with the error and the degrees of freedom of the wider of two intervals: by the spread
    over `seeds` alone, and by the scatter of the `models` around the line.
    """

    seeds: Estimate | None = None
    models: Estimate | None = None


def estimate(value: float, n: int, error: float, degrees: float) -> Estimate:
    """An estimate with this error; without one if the error is zero up to rounding."""
    return Estimate(value, n, unknown=NO_SPREAD) if error < _SAME else Estimate(value, n, error, degrees)


def mean_estimate(values: Sequence[float]) -> Estimate | None:
    """The mean, with error s / sqrt n and n - 1 degrees of freedom; None for no values."""
    n = len(values)
    if not n:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, 1, unknown=ONE_RUN)
    return estimate(mean, n, math.sqrt(variance(values) / n), n - 1)


def combine(parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate | None:
    """The weighted sum of independent estimates; its degrees of freedom are Satterthwaite's.

    A part without spread adds no error. There is no interval if any part is a single run; None for no parts.
    """
    if not parts:
        return None
    value = math.fsum(weight * part.value for weight, part in zip(weights, parts, strict=True))
    n = sum(part.n for part in parts)
    if any(part.unknown == ONE_RUN for part in parts):
        return Estimate(value, n, unknown=ONE_RUN)
    known = [
        ((weight * part.error) ** 2, part.degrees)
        for weight, part in zip(weights, parts, strict=True)
        if part.error is not None and part.degrees is not None and weight
    ]
    total = math.fsum(square for square, _ in known)
    if not total:
        return Estimate(value, n, unknown=NO_SPREAD)
    degrees = total**2 / math.fsum(square**2 / degrees for square, degrees in known)
    return estimate(value, n, math.sqrt(total), degrees)


def variance(values: Sequence[float]) -> float:
    """Sample variance of at least two values."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
