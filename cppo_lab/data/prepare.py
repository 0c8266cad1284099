"""Training and validation sets in verl's layout, written once and the same every time."""

import filecmp
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from cppo_lab.data.deduplicate import distinct_problems
from cppo_lab.data.layout import content_sha256, row_of, write_rows
from cppo_lab.data.manifest import MANIFEST, FileRecord, manifest_text
from cppo_lab.data.sources import BENCHMARKS, SPLITS, Source, sha256_of, sources_of
from cppo_lab.errors import UserError

PROBLEMS_OF_AIME = 30  # AIME I and II of a year


def prepare(source: str, out: Path, say: Callable[[str], None] = lambda _: None) -> dict[str, FileRecord]:
    """Write `train.parquet`, `aime24.parquet`, `aime25.parquet`, `aime26.parquet` and `manifest.json`.

    The folder appears whole or not at all. Prepared data that is already there is replaced if it would differ,
    and left alone, to the byte, if it would not.

    Args:
        source: `sample`, `hub` or a path, see `sources.sources_of`.
        out: folder to write; must be empty, absent, or hold prepared data and nothing else.
        say: takes a line of progress.

    Returns:
        What the manifest says of each file, by file name.

    Raises:
        UserError: the source or one of its rows cannot be used, or `out` holds something else.
    """
    _require_ours_or_free(out)
    sources = sources_of(source, say)
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        made = work / "made"
        made.mkdir()
        records = {f"{split}.parquet": _write_split(split, sources[split], made, say) for split in SPLITS}
        (made / MANIFEST).write_text(manifest_text(records), encoding="utf-8")
        if _equal(made, out):
            say(f"{out}: unchanged")
        else:
            if out.exists():
                out.rename(work / "old")
            made.rename(out)
    finally:
        shutil.rmtree(work)
    return records


def _write_split(split: str, source: Source, folder: Path, say: Callable[[str], None]) -> FileRecord:
    benchmark = split if split in BENCHMARKS else None
    found = distinct_problems(source.path, benchmark, say)
    if benchmark and len(found.problems) != PROBLEMS_OF_AIME:
        raise UserError(
            f"{source.path} has {len(found.problems)} problems, {benchmark} has {PROBLEMS_OF_AIME} (both papers "
            "of the year): complete the file, or remove it to use the shipped problems"
        )
    if not found.problems:
        raise UserError(f"{source.path} holds no row to train on: pass another file with --from")
    rows = [row_of(problem, index, split) for index, problem in enumerate(found.problems)]
    path = folder / f"{split}.parquet"
    write_rows(path, rows)
    return FileRecord(
        rows=len(rows),
        rows_read=found.rows_read,
        duplicates_dropped=found.duplicates,
        conflicting_rows_dropped=found.conflicting_rows,
        conflicts=[{"id": name, "answers": answers} for name, answers in found.conflicts],
        origin=source.origin,
        origin_sha256=source.sha256,
        sha256=sha256_of(path),
        content_sha256=content_sha256(rows),
    )


def _require_ours_or_free(out: Path) -> None:
    """Refuse to replace a folder that holds anything but prepared data."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: name a folder")
    if not out.exists() or not any(out.iterdir()):
        return
    ours = {MANIFEST, *(f"{split}.parquet" for split in SPLITS)}
    foreign = sorted(path.name for path in out.iterdir() if path.name not in ours)
    if foreign or not (out / MANIFEST).is_file():
        what = ", ".join(foreign[:5]) or f"data without {MANIFEST}"
        raise UserError(f"--out {out} is in use ({what}): name a new folder, or move that away")


def _equal(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files with the same bytes."""
    if not other.is_dir():
        return False
    names = sorted(path.name for path in one.iterdir())
    if names != sorted(path.name for path in other.iterdir()):
        return False
    return filecmp.cmpfiles(one, other, names, shallow=False)[0] == names
