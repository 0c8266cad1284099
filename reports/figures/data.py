"""Exports the numbers of a figure's info as CSV.

An info is a tree of frozen dataclasses: panels hold lines, lines hold equally long tuples of numbers. Every such group
of tuples becomes rows, one per index; the enclosing names (model, variant, metric, ...) come first in each row. So one
function serves all figures, and the columns follow from the info.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from cppo_lab.reports.csv_tables import csv_text

# Fields of appearance, and fields that are in other files: run ids and a run's best step are in runs.csv.
LEFT_OUT = frozenset(
    {
        "title",
        "source",
        "origin",
        "about",
        "palette",
        "run_ids",
        "keys",
        "scores",
        "stroke",
        "label",
        "heading",
    }
    | {"absent", "best", "top", "band"}
)
Scalar = str | int | float


@dataclass(frozen=True)
class DrawnLine:
    """One line of a figure: its path in the tree, the enclosing names, and its values by name, all equally long."""

    path: str
    names: Mapping[str, Scalar]
    values: Mapping[str, tuple[Any, ...]]


def figure_csv(info: Any) -> str:
    """The numbers of `info`, a dataclass, in the units of the info.

    `series` is a row's path in the tree (`panels.lines`); `place` counts the values of a line from 1.
    """
    found = list(_series(info, {}, ()))
    names = list(dict.fromkeys(name for one in found for name in one.names))
    # A line's own tuple may share its field name with a name elsewhere in the tree.
    columns = list(dict.fromkeys(name for one in found for name in one.values if name not in names))
    lines = (row for one in found for row in _lines(one, names, columns))
    return csv_text(["series", *names, "place", *columns], lines)


def _lines(series: DrawnLine, names: Sequence[str], columns: Sequence[str]) -> Iterator[list[Scalar]]:
    """A row for each place. There are tens of thousands, so what all of a line have is looked up once."""
    count = len(next(iter(series.values.values())))
    cells = {name: [_plain(one) for one in own] for name, own in series.values.items()}
    blank: list[Scalar] = [""] * count
    given = (
        [series.names[name]] * count if name in series.names else cells.get(name, blank) for name in names
    )
    own = (cells.get(name, blank) for name in columns)
    rows = zip([series.path] * count, *given, range(1, count + 1), *own, strict=True)
    return map(list, rows)


def _series(node: Any, names: Mapping[str, Scalar], path: tuple[str, ...]) -> Iterator[DrawnLine]:
    """The lines of a dataclass: its own, then those below it."""
    given = {one.name: getattr(node, one.name) for one in fields(node) if one.name not in LEFT_OUT}
    own = {**names, **{name: value for name, value in given.items() if isinstance(value, str | int | float)}}
    for group in _groups(given):
        yield DrawnLine(".".join(path), own, group)
    for name, value in given.items():
        for below in value if isinstance(value, tuple) else (value,):
            if is_dataclass(below):
                yield from _series(below, own, (*path, name))


def _groups(given: Mapping[str, Any]) -> Iterator[dict[str, tuple[Any, ...]]]:
    """The tuples of a dataclass grouped by length; only groups with numbers."""
    flat = {
        name: value
        for name, value in given.items()
        if isinstance(value, tuple) and value and all(_is_plain(one) for one in value)
    }
    for length in dict.fromkeys(len(value) for value in flat.values()):
        group = {name: value for name, value in flat.items() if len(value) == length}
        if any(isinstance(one, float) for value in group.values() for one in value):
            yield group


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _plain(value: Any) -> Scalar:
    """Empty for None; 0 and 1 for False and True."""
    return "" if value is None else int(value) if isinstance(value, bool) else value
