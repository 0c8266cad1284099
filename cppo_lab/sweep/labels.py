"""How the runs of a sweep are named: by variant, and by the values of its axes."""

from collections import Counter
from collections.abc import Collection, Mapping

from cppo_lab.sweep.declared import Scalar
from cppo_lab.sweep.groups import groups

UNNAMED = frozenset({"seed", "model"})  # they have columns of their own


def short_names(axes: Collection[str]) -> dict[str, str]:
    """What axes are called in labels: the last part of the key, or the whole where two end alike; groups: nothing."""
    counts = Counter(key.rpartition(".")[2] for key in axes)
    return {
        key: "" if key in groups() else last if counts[last] == 1 else key
        for key in axes
        if key not in UNNAMED
        for last in [key.rpartition(".")[2]]
    }


def label(variant: str, values: Mapping[str, Scalar], names: Mapping[str, str], otherwise: str) -> str:
    """The variant's name followed by its axis values, such as `cppo w_min=0.6`; `otherwise` where that is nothing."""
    parts = [variant] if variant else []
    for key, value in values.items():
        if key in names:
            parts.append(f"{names[key]}={number(value)}" if names[key] else number(value))
    return " ".join(parts) or otherwise


def number(value: Scalar) -> str:
    """A value as short as it can be without being another's."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
