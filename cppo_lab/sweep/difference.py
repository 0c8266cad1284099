"""The differences between two runs."""

import json
from collections.abc import Mapping
from typing import Any

from cppo_lab.sweep.find import Found

ABSENT = "-"


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under dotted keys, without values that do not apply (None)."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def differences(left: Found, right: Found) -> dict[str, tuple[Any, Any]]:
    """Dotted keys with different values; None if a run does not have the key."""
    ours, theirs = dotted(left.config), dotted(right.config)
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def to_text(left: Found, right: Found) -> str:
    """The differences side by side, or a line if there are none."""
    found = differences(left, right)
    if not found:
        same = "is the same run" if left.run_id == right.run_id else "has the same configuration"
        return f"{left.run_id} ({left.source}) {same} as {right.run_id} ({right.source}): no key differs"
    rows = [("", left.run_id, right.run_id)]
    rows += [(_plain(key), _text(ours), _text(theirs)) for key, (ours, theirs) in found.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += ["", *(f"{one.run_id}: from {one.source}" for one in (left, right))]
    return "\n".join(lines)


def as_values(left: Found, right: Found) -> dict[str, Any]:
    """For JSON: the two runs, and the values of each differing key (None if a run lacks it)."""
    return {
        "runs": [{"run_id": one.run_id, "source": one.source} for one in (left, right)],
        "identical": not differences(left, right),
        "differences": differences(left, right),
    }


def _text(value: Any) -> str:
    if value is None:
        return ABSENT
    return _plain(value if isinstance(value, str) else json.dumps(value))


def _plain(text: str) -> str:
    """Text without terminal control characters."""
    return text if text.isprintable() else json.dumps(text)
