"""The file that a run's metrics go to first: one line per training step, in the run's folder.

It outlives the attempt that wrote it. One that continues the run adds to it, so that the points that a dead attempt
could not send are sent by the next, with the times that they were measured at: sent twice, they are the same points.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAME = "metrics.jsonl"


@dataclass(frozen=True)
class Row:
    """The metrics of one training step, and when they were measured."""

    step: int
    time_ms: int
    metrics: Mapping[str, float]


class Spool:
    """Rows of a run, on file. `earlier` are those that past attempts left."""

    def __init__(self, folder: Path, keep: bool) -> None:
        """`keep` what is there, but for a line that a kill has cut off; or begin anew."""
        path = folder / NAME
        self.earlier: list[Row] = _whole_rows(path) if keep else []
        self._file = path.open("a" if keep else "w", encoding="utf-8")

    def add(self, row: Row) -> None:
        """Append a row."""
        values = {"step": row.step, "time_ms": row.time_ms, "metrics": dict(row.metrics)}
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more rows."""
        self._file.close()


def read_rows(folder: Path) -> list[Row]:
    """The whole rows of a run's file, which another process may be writing; none if it has no file. Changes nothing."""
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return []
    return _parse(content)[0]


def _whole_rows(path: Path) -> list[Row]:
    """The rows of a file; whatever follows the last whole one is cut off."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    rows, end = _parse(content)
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
    return rows


def _parse(content: bytes) -> tuple[list[Row], int]:
    """The rows up to the first that is not whole, and where they end."""
    rows, end = [], 0
    for line in content.splitlines(keepends=True):
        try:
            values = json.loads(line)
            row = Row(values["step"], values["time_ms"], values["metrics"])
        except (ValueError, LookupError, TypeError):
            break
        if not line.endswith(b"\n"):
            break
        rows.append(row)
        end += len(line)
    return rows, end
