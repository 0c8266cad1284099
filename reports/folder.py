"""The folder of a report, which is replaced atomically, and only if it is one of our reports."""

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError
from cppo_lab.files import read_plain
from cppo_lab.reports.fingerprint import of_bytes

MARKER = ".cppo-report"  # marks a folder that we may replace
PAGE = "index.html"
LARGEST_MARKER = 2**20  # bytes


@dataclass(frozen=True)
class Marker:
    """The marker of a folder: the report and the origin of its numbers, the fingerprint of all its inputs (`inputs`),
    and that of every file.

    `asked` and `store`: noted by the command line about its last call, see `cli.unchanged`; empty without a note.
    """

    report: str
    origin: str
    inputs: str
    files: Mapping[str, str]
    asked: str = ""
    store: tuple[str | int, ...] = field(default=())


@dataclass(frozen=True)
class Built:
    """The page of a report, and whether it was rebuilt or already up to date."""

    page: Path
    rebuilt: bool


def require_ours(out: Path) -> None:
    """Raise UserError if `out` exists and is not one of our reports."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_dir() and not out.is_symlink() and ((out / MARKER).is_file() or not any(out.iterdir())):
        return
    raise UserError(
        f"{out} exists and is not a report of ours (it has no {MARKER}): choose another folder with --out, "
        "or remove it yourself"
    )


def is_current(out: Path, inputs: str) -> bool:
    """Whether the folder has the complete, unmodified report of these inputs."""
    marker = read_marker(out)
    return marker is not None and marker.inputs == inputs and is_whole(out, marker)


def is_whole(out: Path, marker: Marker) -> bool:
    """Whether every file of the report is as it was written."""
    if not marker.files:
        return False
    try:
        return all(
            (out / name).is_file() and of_bytes((out / name).read_bytes()) == digest
            for name, digest in marker.files.items()
        )
    except (OSError, ValueError):  # ValueError: an invalid file name
        return False


def read_marker(out: Path) -> Marker | None:
    """The folder's marker; None if it is missing or unreadable."""
    path = out / MARKER
    try:
        found = json.loads(read_plain(path, LARGEST_MARKER) or b"")
        return _marker(found) if isinstance(found, dict) else None
    except (OSError, ValueError, RecursionError):
        return None


def _marker(found: Mapping[str, Any]) -> Marker | None:
    files, seen = found.get("files"), found.get("store")
    names = [found.get(name) for name in ("report", "origin", "inputs", "asked")]
    if not isinstance(files, dict) or not isinstance(seen, list):
        return None
    plain = all(Path(name).name == name and isinstance(digest, str) for name, digest in files.items())
    if not plain or not all(isinstance(name, str) for name in names):
        return None
    report, origin, inputs, asked = (str(name) for name in names)
    return Marker(report, origin, inputs, files, asked, tuple(seen))


def write_marker(out: Path, marker: Marker) -> None:
    """Replace the folder's marker."""
    part = out / f"{MARKER}.{uuid.uuid4().hex[:8]}"
    try:
        part.write_bytes(_packed(marker))
        part.replace(out / MARKER)
    finally:
        part.unlink(missing_ok=True)


def _packed(marker: Marker) -> bytes:
    return json.dumps(asdict(marker), indent=1, sort_keys=True).encode() + b"\n"


def swap_in(out: Path, files: Mapping[str, bytes], about: tuple[str, str], inputs: str) -> None:
    """Write into a new folder beside `out` and rename it into place; a failure leaves the old report unchanged.
    `about`: the report's name and the origin of its numbers.
    """
    mark = uuid.uuid4().hex[:8]
    new, old = (out.with_name(f".{out.name}.{kind}-{mark}") for kind in ("new", "old"))
    try:
        new.mkdir(parents=True)
        for name, data in files.items():
            (new / name).write_bytes(data)
        marker = Marker(*about, inputs, {name: of_bytes(data) for name, data in sorted(files.items())})
        (new / MARKER).write_bytes(_packed(marker))
        replaced = out.exists()
        if replaced:
            out.rename(old)
        try:
            new.rename(out)
        except OSError:
            if replaced:
                old.rename(out)
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
