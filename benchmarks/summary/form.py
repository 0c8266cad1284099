"""The format of a benchmark's last line: measured figures and targets.

    {"name": "plan", "quick": false, "skipped": "",
     "figures": {"seconds_10000": {"value": 4.1, "unit": "s", "at_most": 10.0, "met": true}, ...}}

`at_most` or `at_least` is the target; figures without one have neither, and no `met`. A figure that could not be
measured has `value` null and says in `absent` why; it has no `met` either. `skipped` says why nothing could be
measured; `figures` is then empty.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any, TypeVar

V = TypeVar("V")

FULL_ONLY = "only measured in the full run"


@dataclass(frozen=True)
class Figure:
    """One number with its unit ("" for counts and bare ratios), and its target if it has one."""

    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    absent: str = ""

    @property
    def judged(self) -> bool:
        """Whether there is a target."""
        return self.at_most is not None or self.at_least is not None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or a value."""
        if self.value is None or not self.judged:
            return None
        if self.at_most is not None and self.value > self.at_most:
            return False
        return self.at_least is None or self.value >= self.at_least


@dataclass(frozen=True)
class Result:
    """What a benchmark says at its end."""

    name: str
    figures: Mapping[str, Figure]
    quick: bool = False
    skipped: str = ""

    def line(self) -> str:
        """The last line."""
        return json.dumps(
            {
                "name": self.name,
                "quick": self.quick,
                "skipped": self.skipped,
                "figures": {name: _as_json(figure) for name, figure in self.figures.items()},
            }
        )


def result(
    name: str,
    values: Mapping[str, float | None],
    units: Mapping[str, str],
    *,
    at_most: Mapping[str, float] | None = None,
    at_least: Mapping[str, float] | None = None,
    absent: Mapping[str, str] | None = None,
    quick: bool = False,
) -> Result:
    """The result with these figures, rounded to six digits.

    Units and targets go to every figure whose name matches the pattern (as in a shell), the first that does. A target
    for one name that has no value becomes a figure that is absent: for the reason in `absent`, which is by pattern too,
    or because the run was quick.

    Raises:
        ValueError: a figure without a unit, or without a value and a reason.
    """
    most, least, reasons = at_most or {}, at_least or {}, absent or {}
    wanted = [target for target in (*most, *least) if "*" not in target and target not in values]
    figures = {}
    for key in (*values, *wanted):
        value = values.get(key)
        if (unit := _matching(units, key)) is None:
            raise ValueError(f"{name}: figure {key!r} has no unit: add one")
        reason = "" if value is not None else _matching(reasons, key) or (FULL_ONLY if quick else "")
        if value is None and not reason:
            raise ValueError(f"{name}: figure {key!r} has no value: say why")
        rounded = None if value is None else float(f"{value:.6g}")
        figures[key] = Figure(rounded, unit, _matching(most, key), _matching(least, key), reason)
    return Result(name, figures, quick)


def skipped(name: str, reason: str, quick: bool = False) -> Result:
    """The result of a benchmark that cannot run here."""
    return Result(name, {}, quick, reason)


def read(line: str) -> Result:
    """The result in a last line.

    Raises:
        ValueError: the line is not in this form.
    """
    try:
        fields = json.loads(line)
        figures = {str(key): _figure(value) for key, value in fields["figures"].items()}
        read = Result(str(fields["name"]), figures, bool(fields["quick"]), str(fields["skipped"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a benchmark's last line ({error!r:.80}): {line:.120}") from error
    if not read.skipped and not read.figures:
        raise ValueError(f"a benchmark's last line without figures and without a reason: {line:.120}")
    return read


def _figure(fields: Mapping[str, Any]) -> Figure:
    numbers = {key: _number(fields.get(key)) for key in ("value", "at_most", "at_least")}
    return Figure(
        numbers["value"],
        str(fields["unit"]),
        numbers["at_most"],
        numbers["at_least"],
        str(fields.get("absent", "")),
    )


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _as_json(figure: Figure) -> dict[str, object]:
    fields: dict[str, object] = {"value": figure.value, "unit": figure.unit}
    for key, target in (("at_most", figure.at_most), ("at_least", figure.at_least)):
        if target is not None:
            fields[key] = target
    if figure.met is not None:
        fields["met"] = figure.met
    if figure.absent:
        fields["absent"] = figure.absent
    return fields


def _matching(patterns: Mapping[str, V], key: str) -> V | None:
    return next((value for pattern, value in patterns.items() if fnmatchcase(key, pattern)), None)
