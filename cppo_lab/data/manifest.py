"""Prepared data: its rows in parquet, and `manifest.json`, which says what a folder has and that it is unchanged.

Rows as verl's trainer reads them, in parquet, and the checksum of their content.

One row: `data_source` (verl keeps validation scores apart by it), `prompt` (messages), `ability`,
`reward_model.ground_truth` (handed to the reward function), `extra_info` (`index`: place in the file; `id`: name of
the problem at its origin).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from cppo_lab import __version__
from cppo_lab.data.problem import Problem
from cppo_lab.data.sources import sha256_of
from cppo_lab.errors import UserError, printable

ABILITY = "MATH"
ROW_GROUP = 4096
_TEXT = pyarrow.string()
SCHEMA = pyarrow.schema(
    [
        ("data_source", _TEXT),
        ("prompt", pyarrow.list_(pyarrow.struct([("role", _TEXT), ("content", _TEXT)]))),
        ("ability", _TEXT),
        ("reward_model", pyarrow.struct([("style", _TEXT), ("ground_truth", _TEXT)])),
        ("extra_info", pyarrow.struct([("index", pyarrow.int64()), ("split", _TEXT), ("id", _TEXT)])),
    ]
)


def row_of(problem: Problem, index: int, split: str) -> dict[str, Any]:
    """A problem in verl's layout."""
    return {
        "data_source": problem.data_source,
        "prompt": [{"role": role, "content": text} for role, text in problem.messages],
        "ability": ABILITY,
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"index": index, "split": split, "id": problem.id},
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows in verl's layout. Equal rows and an equal pyarrow give equal bytes."""
    table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
    pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP)


def content_sha256(rows: Iterable[dict[str, Any]]) -> str:
    """SHA-256 of the rows as lines of JSON with sorted keys: what the file says, however pyarrow encodes it."""
    digest = hashlib.sha256()
    for row in rows:
        line = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode("utf-8") + b"\n")
    return digest.hexdigest()


# `manifest.json`: the contents of a folder of prepared data, and the check that they are unchanged.


MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class FileRecord:
    """One prepared file: its counts, its checksums and where its rows came from."""

    rows: int
    rows_read: int
    duplicates_dropped: int
    conflicting_rows_dropped: int
    conflicts: list[dict[str, Any]]  # id and answers of every prompt that was left out for having several
    origin: str
    origin_sha256: str
    sha256: str  # of the file
    content_sha256: str  # of its rows, see `layout.content_sha256`
    rows_skipped: int | None = None  # that could not be used; None: each would have been an error


def manifest_text(files: dict[str, FileRecord]) -> str:
    """The text of the manifest: no dates and no paths, so that equal data has an equal manifest."""
    body = {
        "format": FORMAT,
        "tool": f"cppo-lab {__version__}",
        "pyarrow": pyarrow.__version__,
        "files": {
            name: {key: value for key, value in asdict(record).items() if value is not None}
            for name, record in files.items()
        },
    }
    return _dumped(body | {"sha256": hashlib.sha256(_dumped(body).encode()).hexdigest()})


def check_folder(folder: Path) -> dict[str, FileRecord]:
    """Compare every file of a prepared folder with its manifest, byte by byte through their checksums.

    Returns:
        The records, by file name.

    Raises:
        UserError: names every file that is missing, changed or foreign.
    """
    records = read_manifest(folder)
    faults = []
    for name, record in records.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif (found := sha256_of(path)) != record.sha256:
            faults.append(f"{name} is changed (sha256 {found[:12]}, recorded {record.sha256[:12]})")
    foreign = sorted(path.name for path in folder.iterdir() if path.name not in {*records, MANIFEST})
    if foreign:
        faults.append(f"not part of the prepared data: {', '.join(foreign)}")
    if faults:
        raise UserError(f"{folder}: {'; '.join(faults)}: prepare it again with `cppo data prepare`")
    return records


def summary(records: dict[str, FileRecord]) -> str:
    """One line per file: its rows, what was left out, where it came from."""
    lines = []
    for name, record in records.items():
        left_out = [f"{record.rows_read} read"]
        if record.rows_skipped:
            left_out.append(f"{record.rows_skipped} damaged ones skipped")
        if record.duplicates_dropped:
            left_out.append(f"{record.duplicates_dropped} repeats dropped")
        if record.conflicts:
            rows, prompts = record.conflicting_rows_dropped, len(record.conflicts)
            left_out.append(f"{rows} rows of {prompts} prompts with several answers dropped")
        lines.append(
            f"{name:15} {record.rows:6} rows ({', '.join(left_out)}) from {printable(record.origin)}"
        )
    return "\n".join(lines)


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """The records of a prepared folder.

    Raises:
        UserError: there is no manifest, or its bytes are not those that were written.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{folder} holds no {MANIFEST}: prepare data with `cppo data prepare --out {folder}`")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        recorded = body.pop("sha256")
        whole = recorded == hashlib.sha256(_dumped(body).encode()).hexdigest()
        records = {name: FileRecord(**record) for name, record in body["files"].items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        whole, recorded = False, None
    if not whole or path.read_text(encoding="utf-8") != _dumped(body | {"sha256": recorded}):
        raise UserError(f"{path} is changed: it does not match its own checksum; prepare the data again")
    return records


def _dumped(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"
