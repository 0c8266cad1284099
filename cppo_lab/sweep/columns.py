"""Rows of runs as aligned columns that fit a terminal, and as CSV."""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from cppo_lab import schema
from cppo_lab.errors import one_line, printable
from cppo_lab.runs.folder import variants_text

SHORT_ID = 8  # digits of a shortened run id, if they are unique
NARROWEST = 12  # characters of a column that is cut
SHORT_REASON = 14  # characters of a reason, for which columns are left out
RUN_ID, STATE, REASON = "run id", "state", "reason"
_RESET = "\x1b[0m"
_COLOURS = {
    schema.DONE: "\x1b[32m",
    schema.COLLAPSED: "\x1b[35m",
    schema.RUNNING: "\x1b[36m",
    schema.QUEUED: "\x1b[2m",
    schema.MISSING: "\x1b[2m",
    schema.FAILED: "\x1b[31m",
    schema.PARTIAL: "\x1b[33m",
    schema.STOPPED: "\x1b[35m",
}


def aligned(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    width: int | None = None,
    spare: Sequence[str] = (),
    coloured: bool = False,
) -> str:
    """Rows under their header, a line each; the columns in `right` are right-aligned.

    If they are wider than `width` (None: no limit), columns of `spare` are left out in order (RUN_ID is shortened),
    then the middles of the widest column's cells, then lines are cut. A last column `reason` gets the remaining width.
    `coloured`: colour the states.
    """
    table = [list(map(one_line, row)) for row in (head, *rows)]  # names and reasons may be anybody's
    if head[-1] == REASON and not any(row[-1] for row in rows):
        table = [row[:-1] for row in table]
    left_out = [name for name in spare if name in head]
    while width is not None and left_out and _needed(table) > width:
        name = left_out.pop(0)
        at = table[0].index(name)
        keep = _distinct([row[at] for row in table[1:]]) if name == RUN_ID else 0
        table[1:] = [[*row[:at], *([row[at][:keep]] if keep else []), *row[at + 1 :]] for row in table[1:]]
        table[0] = table[0] if keep else table[0][:at] + table[0][at + 1 :]
    widths = _widths(table)
    if width is not None and (excess := sum(widths) + 2 * (len(widths) - 1) - width) > 0:
        at = widths.index(widest := max(widths))
        keep = max(widest - excess, NARROWEST)
        for row in table[1:]:
            if len(row[at]) > keep:
                row[at] = f"{row[at][: keep // 2]}…{row[at][keep // 2 + 1 - keep :]}"
    names, widths = table[0], _widths(table)
    lines = [
        "  ".join(
            cell.rjust(size) if name in right else cell.ljust(size)
            for cell, size, name in zip(row, widths, names, strict=True)
        ).rstrip()
        for row in table
    ]
    if width is not None:
        lines = [line if len(line) <= width else line[: max(width - 1, 1)] + "…" for line in lines]
    if coloured and STATE in names:
        place = names.index(STATE)
        start = sum(widths[:place]) + 2 * place
        for i, row in enumerate(table[1:], start=1):
            line, state = lines[i], row[place]
            end = start + len(state)
            if state in _COLOURS and line[start:end] == state:  # else it was cut off
                lines[i] = f"{line[:start]}{_COLOURS[state]}{state}{_RESET}{line[end:]}"
    return "\n".join(lines)


def to_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """One line per row below a header; `variants` as `sweep=variant`, separated by `;`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {**row, "variants": variants_text(row["variants"])}
        writer.writerow(
            {name: printable(cell) if isinstance(cell, str) else cell for name, cell in cells.items()}
        )
    return text.getvalue()


def _distinct(ids: Sequence[str]) -> int:
    """The number of digits at which all ids are unique, at least SHORT_ID."""
    longest = max(map(len, ids), default=0)
    return next(
        (n for n in range(SHORT_ID, longest) if len({run_id[:n] for run_id in ids}) == len(ids)),
        max(longest, 1),
    )


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if table[0][-1] == REASON:
        widths[-1] = 0  # the last column needs no padding
    return widths


def _needed(table: Sequence[Sequence[str]]) -> int:
    """The terminal width of the table, with at most SHORT_REASON for a reason."""
    widths = _widths(table)
    reason = max(len(row[-1]) for row in table) if table[0][-1] == REASON else 0
    return sum(widths) + 2 * (len(widths) - 1) + min(reason, SHORT_REASON)
