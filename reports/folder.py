"""The folder of a report: replaced as a whole or not at all, and only if it is one of ours."""

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cppo_lab.errors import UserError
from cppo_lab.reports.fingerprint import of_bytes
from cppo_lab.safe_open import read_plain

MARKER = ".cppo-report"  # a folder with this file is ours to replace
PAGE = "index.html"
LARGEST_MARKER = 2**20  # bytes


@dataclass(frozen=True)
class Marker:
    """What the marker says of its folder: the report and where its numbers come from, the fingerprint of all
    that it was made of (`inputs`), and that of every file.

    `asked` and `store`: what the command line noted of its last call, see `cli.unchanged`; empty if nothing.
    """

    report: str
    origin: str
    inputs: str
    files: Mapping[str, str]
    asked: str = ""
    store: tuple[str | int, ...] = field(default=())


@dataclass(frozen=True)
class Built:
    """A report: its page, and whether it was rebuilt; else it was up to date."""

    page: Path
    anew: bool


def require_ours(out: Path) -> None:
    """Refuses to replace what is no report of ours."""
    if not out.exists() and not out.is_symlink():
        return
    if out.is_dir() and not out.is_symlink() and ((out / MARKER).is_file() or not any(out.iterdir())):
        return
    raise UserError(
        f"{out} exists and is not a report of ours (it has no {MARKER}): choose another folder with --out, "
        "or remove it yourself"
    )


def is_current(out: Path, inputs: str) -> bool:
    """Whether the folder holds the report that these inputs give, whole and as it was written."""
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
    except (OSError, ValueError):  # ValueError: a name that is none
        return False


def read_marker(out: Path) -> Marker | None:
    """What the folder's marker says; None if there is none, or one that cannot be read."""
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
    """Put another marker into the folder."""
    part = out / f"{MARKER}.{uuid.uuid4().hex[:8]}"
    try:
        part.write_bytes(_packed(marker))
        part.replace(out / MARKER)
    finally:
        part.unlink(missing_ok=True)


def _packed(marker: Marker) -> bytes:
    return json.dumps(asdict(marker), indent=1, sort_keys=True).encode() + b"\n"


def swap_in(out: Path, files: Mapping[str, bytes], about: tuple[str, str], inputs: str) -> None:
    """Writes into a new folder beside `out` and renames it into place; a failure leaves the old report as it
    was. `about`: the report's name and the origin of its numbers.
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
