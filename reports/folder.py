"""The folder of a report, which is replaced atomically, and only if it is one of our reports."""

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from cppo_lab.errors import UserError

MARKER = ".cppo-report"  # marks a folder that we may replace
PAGE = "index.html"


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


def swap_in(out: Path, files: Mapping[str, bytes], about: str) -> None:
    """Write into a new folder beside `out` and rename it into place; a failure leaves the old report unchanged.
    `about`: one line on the report for its marker.
    """
    mark = uuid.uuid4().hex[:8]
    new, old = (out.with_name(f".{out.name}.{kind}-{mark}") for kind in ("new", "old"))
    try:
        new.mkdir(parents=True)
        for name, data in {**files, MARKER: f"{about}\n".encode()}.items():
            (new / name).write_bytes(data)
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
