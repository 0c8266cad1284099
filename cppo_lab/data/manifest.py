"""`manifest.json`: the contents of a folder of prepared data, and the check that they are unchanged."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow

from cppo_lab import __version__
from cppo_lab.data.layout import content_sha256, read_rows
from cppo_lab.data.sources import sha256_of
from cppo_lab.errors import UserError, printable

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


def manifest_text(files: dict[str, FileRecord]) -> str:
    """The text of the manifest: no dates and no paths, so that equal data has an equal manifest."""
    body = {
        "format": FORMAT,
        "tool": f"cppo-lab {__version__}",
        "pyarrow": pyarrow.__version__,
        "files": {name: asdict(record) for name, record in files.items()},
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
            faults.append(f"{name} is changed ({_what_changed(path, record)}; sha256 {found[:12]}, recorded "
                          f"{record.sha256[:12]})")  # fmt: skip
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


def _what_changed(path: Path, record: FileRecord) -> str:
    try:
        same = content_sha256(read_rows(path)) == record.content_sha256
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError):
        return "unreadable"
    return "the same rows in another encoding" if same else "other rows"


def _dumped(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"
