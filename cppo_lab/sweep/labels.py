"""Labels of a sweep's runs: the variant with its axis values."""

from collections import Counter
from collections.abc import Collection, Mapping

from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.groups import groups

UNNAMED = frozenset({"seed", "model"})  # shown in separate columns


def short_names(axes: Collection[str]) -> dict[str, str]:
    """The names of axes in labels: the last part of the key, or the whole key if two end alike; empty for groups."""
    counts = Counter(key.rpartition(".")[2] for key in axes)
    return {
        key: "" if key in groups() else last if counts[last] == 1 else key
        for key in axes
        if key not in UNNAMED
        for last in [key.rpartition(".")[2]]
    }


def label(variant: str, values: Mapping[str, Scalar], names: Mapping[str, str], otherwise: str) -> str:
    """The variant's name followed by its axis values, such as `cppo w_min=0.6`; `otherwise` if that is empty."""
    parts = [variant] if variant else []
    for key, value in values.items():
        if key in names:
            parts.append(f"{names[key]}={number(value)}" if names[key] else number(value))
    return " ".join(parts) or otherwise


def number(value: Scalar) -> str:
    """The shortest unambiguous text of a value."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
