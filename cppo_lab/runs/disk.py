"""What runs take on the disk, how to free what neither a result nor an unfinished run needs, and archives of runs."""

import contextlib
import json
import os
import re
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from cppo_lab import schema
from cppo_lab.cores.base import BEST_CHECKPOINT, BEST_MODEL, CHECKPOINT, CHECKPOINTS
from cppo_lab.errors import UserError
from cppo_lab.files import open_below
from cppo_lab.runs.folder import ASIDE, AlreadyRunning, held, read_status

# What can be freed of a finished run, by the name of its option: `cppo export` needs the first, nothing the second.
PARTS = {
    "checkpoints": (CHECKPOINT, CHECKPOINTS, BEST_MODEL, BEST_CHECKPOINT),
    "superseded": (ASIDE,),
}
# Besides these, archives lack what belongs to this machine: locks, launchers' files, progress of uploads and messages.
_NOT_ARCHIVED = re.compile(
    "|".join(map(re.escape, sum(PARTS.values(), ())))
    + r"|attempts|cancelled|lock|notified-\w+|shipped\.json.*|.*\.(lock|partial)"
)

ABOUT = "archive.json"  # in an archive
_RUN = re.compile(r"runs/[0-9a-f]{12}/")


def usage(folder: Path) -> Counter[str]:
    """Bytes of a run's folder (`disk`), and of its PARTS, as far as they can be freed."""
    return Counter(
        disk=size_of(folder), **{part: sum(map(size_of, _paths(folder, [part]))) for part in PARTS}
    )


def remove(folder: Path, parts: Collection[str]) -> int:
    """Free PARTS of a run unless it has not finished or a process trains it; returns the bytes. Follows no link."""
    removed = 0
    with contextlib.suppress(AlreadyRunning), held(folder):
        for path in _paths(folder, parts):
            size = size_of(path)
            with contextlib.suppress(OSError):  # another account's
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
                removed += size
    return removed


def _paths(folder: Path, parts: Collection[str]) -> list[Path]:
    """What there is of the parts of a run that has finished."""
    if folder.is_symlink() or read_status(folder).get("status") not in schema.FINISHED:
        return []
    paths = [folder / name for part in parts for name in PARTS[part]]
    return [path for path in paths if path.exists() and not path.is_symlink()]


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [Path(at, name) for at, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):  # it is gone
            total += file.lstat().st_size
    return total


def archive(roots: Mapping[str, Path], about: Mapping[str, Any], out: BinaryIO) -> None:
    """Write a ZIP archive of folders by their names in it, and `about` as ABOUT. The same files give
    the same bytes. Of runs it has configurations, packages, spools, outcomes, answers and output.

    Raises UserError for a link among the files.
    """
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(_member(ABOUT), json.dumps(about, indent=1))
        for name, root in roots.items():
            for path in sorted(_archived(root)):
                parts = path.relative_to(root).parts
                if (source := open_below(root, *parts)) is not None:
                    with source, archive.open(_member("/".join((name, *parts))), "w") as target:
                        shutil.copyfileobj(source, target)


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.compress_type = zipfile.ZIP_DEFLATED  # which it does not take from its archive
    return member


def unpack(path: Path, into: Path) -> dict[str, Any]:
    """Write the runs of an archive, and its sweep file, into a folder; returns what it is about.

    Raises UserError for any other file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            about: dict[str, Any] = json.loads(archive.read(ABOUT))
            runs = [name for name in archive.namelist() if _RUN.match(name)]
            archive.extractall(into, runs)  # never outside of it, and no links
            if "text" in about:  # of the sweep's file
                about["sweep"] = f"./{Path(about['sweep']).name}"
                (into / about["sweep"]).write_text(about["text"], encoding="utf-8")
            return {"sweep": str(about["sweep"]), "overrides": list(map(str, about["overrides"]))}
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        LookupError,
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:
        raise UserError(f"{path} cannot be read as a file of `cppo archive` ({error}): name one") from None


def _archived(root: Path) -> Iterable[Path]:
    for at, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _NOT_ARCHIVED.fullmatch(name)]
        yield from (Path(at, name) for name in names if not _NOT_ARCHIVED.fullmatch(name))
