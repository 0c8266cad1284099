"""Exports everything that a figure shows, numbers and labels, as CSV.

An info is a tree of frozen dataclasses: panels hold lines, lines hold equally long tuples
of numbers. Every such group of tuples becomes rows, one per index; the enclosing names (model, variant, metric, ...)
come first in each row. A part without tuples is a row by itself. So one function serves all figures, and the columns
follow from the info.

Every field is written, unless its metadata is `APPEARANCE`. A field that is neither a value, nor a tuple of values,
nor a part, is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from types import NoneType
from typing import Any

from cppo_lab.reports.names import csv_text

Scalar = str | int | float
_PLAIN = (str, int, float, NoneType)


# The metadata of a dataclass's field that the CSV leaves out: how something looks, or run ids, which are in runs.csv;
# and of a text about the whole figure, which it has once and not in every row.
APPEARANCE = {"kind": "appearance"}
HEADING = {"kind": "heading"}


@dataclass(frozen=True)
class Info:
    """What every figure shows: its title, and where its numbers come from; and the runs behind it."""

    title: str = field(metadata=HEADING)
    source: str = field(metadata=HEADING)
    run_ids: tuple[str, ...] = field(metadata=APPEARANCE)


@dataclass(frozen=True)
class DrawnLine:
    """One line of a figure: its path in the tree, the enclosing names, and its values by name, all equally long."""

    path: str
    names: Mapping[str, Scalar]
    values: Mapping[str, tuple[Any, ...]]


def figure_csv(info: Any) -> str:
    """Everything that `info`, a dataclass, shows, in its units.

    `series` is a row's path in the tree; `place` counts the values of a line from 1. Raises TypeError
    for a field that cannot be written, or whose name one of a part above it has.
    """
    lines = list(_series(info, {}, ()))
    names = list(dict.fromkeys(name for line in lines for name in line.names))
    # A line's tuple may share its field name with a name elsewhere in the tree.
    columns = list(dict.fromkeys(name for line in lines for name in line.values if name not in names))
    rows = (row for line in lines for row in _rows(line, names, columns))
    return csv_text(["series", *names, "place", *columns], rows)


def _rows(line: DrawnLine, names: Sequence[str], columns: Sequence[str]) -> Iterator[list[Scalar]]:
    """A row for each place, with 0 and 1 for False and True. There are tens of thousands, so what all of a line have is
    looked up once.
    """
    count = len(next(iter(line.values.values()), (None,)))
    cells: dict[str, list[Scalar]] = {
        name: ["" if value is None else int(value) if isinstance(value, bool) else value for value in values]
        for name, values in line.values.items()
    }
    blank: list[Scalar] = [""] * count
    given = ([line.names[name]] * count if name in line.names else cells.get(name, blank) for name in names)
    places: Sequence[Scalar] = range(1, count + 1) if line.values else blank
    values = (cells.get(name, blank) for name in columns)
    return map(list, zip([line.path] * count, *given, places, *values, strict=True))


def _series(node: Any, names: Mapping[str, Scalar], path: tuple[str, ...]) -> Iterator[DrawnLine]:
    """The lines of a dataclass: the texts about it, its values, then those of its parts."""
    named, groups, parts = dict(names), dict[int, dict[str, tuple[Any, ...]]](), list[tuple[str, Any]]()
    for each in fields(node):
        value = getattr(node, each.name)
        if each.metadata == APPEARANCE or value is None or value == ():
            continue
        if each.metadata == HEADING:
            yield DrawnLine(".".join((*path, each.name)), {"text": str(value)}, {})
        elif isinstance(value, Scalar):
            if names.get(each.name, value) != value:
                raise TypeError(f"{each.name} of {type(node).__name__} would replace that of a part above it")
            named[each.name] = value
        elif isinstance(value, tuple) and all(issubclass(kind, _PLAIN) for kind in set(map(type, value))):
            groups.setdefault(len(value), {})[each.name] = value
        elif all(map(is_dataclass, below := value if isinstance(value, tuple) else (value,))):
            parts += [(each.name, part) for part in below]
        else:
            raise TypeError(
                f"field {each.name} of {type(node).__name__} cannot be written to the figure's CSV"
            )
    for group in groups.values():
        yield DrawnLine(".".join(path), named, group)
    for name, part in parts:
        yield from _series(part, named, (*path, name))
    if not groups and not parts and named != names:
        yield DrawnLine(".".join(path), named, {})
