"""Rows of runs as aligned columns that fit a terminal, and as CSV."""

import csv
import io
import unicodedata
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
_HALF = "\0"  # which no printable text has
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
    # Names and reasons may be anybody's.
    columns = {name: [_as_wide(one_line(row[place])) for row in rows] for place, name in enumerate(head)}
    if REASON in columns and not any(columns[REASON]):
        del columns[REASON]
    if width is not None:
        for name in filter(columns.__contains__, spare):
            reason = max(map(len, (REASON, *columns[REASON]))) if REASON in columns else 0
            if _line(_widths(columns)) + min(reason, SHORT_REASON) <= width:
                break
            if name != RUN_ID:
                del columns[name]
                continue
            keep = _distinct(columns[name])
            columns[name] = [cell[:keep] for cell in columns[name]]
        widths = _widths(columns)
        if (excess := _line(widths) - width) > 0:
            name = max(widths, key=widths.__getitem__)
            keep = max(widths[name] - excess, NARROWEST)
            columns[name] = [
                cell if len(cell) <= keep else f"{cell[: keep // 2]}…{cell[keep // 2 + 1 - keep :]}"
                for cell in columns[name]
            ]
    widths = _widths(columns)
    padded = [
        [cell.rjust(widths[name]) if name in right else cell.ljust(widths[name]) for cell in (name, *cells)]
        for name, cells in columns.items()
    ]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    if width is not None:
        lines = [line if len(line) <= width else line[: max(width - 1, 1)] + "…" for line in lines]
    if coloured and STATE in columns:
        start = sum(widths[name] + 2 for name in [*columns][: [*columns].index(STATE)])
        for i, state in enumerate(columns[STATE], start=1):
            line, end = lines[i], start + len(state)
            if state in _COLOURS and line[start:end] == state:  # else it was cut off
                lines[i] = f"{line[:start]}{_COLOURS[state]}{state}{_RESET}{line[end:]}"
    return "\n".join(lines).replace(_HALF, "")


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


def _as_wide(text: str) -> str:
    """With a _HALF before each sign that takes two columns of a terminal, as Chinese ones do: as long as it is wide."""
    return "".join(_HALF * (unicodedata.east_asian_width(sign) in "WF") + sign for sign in text)


def _distinct(ids: Sequence[str]) -> int:
    """The number of digits at which all ids are unique, at least SHORT_ID."""
    longest = max(map(len, ids), default=0)
    return next(
        (n for n in range(SHORT_ID, longest) if len({run_id[:n] for run_id in ids}) == len(ids)),
        max(longest, 1),
    )


def _widths(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The width of each column; a reason is the last, and needs no padding."""
    return {name: 0 if name == REASON else max(map(len, (name, *cells))) for name, cells in columns.items()}


def _line(widths: Mapping[str, int]) -> int:
    """The width of all columns together."""
    return sum(widths.values()) + 2 * (len(widths) - 1)
