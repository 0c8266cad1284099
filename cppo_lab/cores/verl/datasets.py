"""The datasets of a verl run, from the manifest of the prepared data. Imports no trainer."""

import hashlib
import os
from pathlib import Path

from cppo_lab import schema
from cppo_lab.cores.base import Resources
from cppo_lab.cores.mini.datasets import held_out_sets, training_set
from cppo_lab.errors import UserError
from cppo_lab.schema import Dataset
from cppo_lab.spec import MathData, PathsSpec, TaskData, VerlRun

DIGITS = 12  # of a checksum, in a digest
TAIL = 1 << 16  # bytes at the end of a parquet file: the metadata of its rows, including their bounds


def datasets(spec: VerlRun, resources: Resources) -> tuple[Dataset, ...]:
    """The prepared files that exist, or the problems of one of the product's own tasks."""
    if isinstance(spec.data, TaskData):
        problems = spec.training.t_stop * spec.batch.prompts
        drawn = {"stream": "file", "seed": spec.seed, "problems": problems}
        return (training_set(spec.data, drawn, problems), *held_out_sets(spec.data))
    assert resources.paths is not None
    train, validation = prepared_files(spec.data, resources.paths)
    found = [_of_file(spec.data.name, train, schema.TRAINING)]
    found += [_of_file(path.stem, path, schema.VALIDATION) for path in validation]
    return tuple(one for one in found if one is not None)


def prepared_files(data: MathData, paths: PathsSpec) -> tuple[Path, tuple[Path, ...]]:
    """The paths of prepared training data and benchmarks, whether or not they exist."""
    folder = Path(paths.data).resolve()
    return folder / "train.parquet", tuple(folder / f"{name}.parquet" for name in data.benchmarks)


def _of_file(name: str, path: Path, context: str) -> Dataset | None:
    try:
        digits, profile = _prepared(path) or _foreign(path)
    except OSError:
        return None
    return Dataset(name, digits[:DIGITS], str(path), schema.LOCAL, context, profile)


def _prepared(path: Path) -> tuple[str, dict[str, int | str]] | None:
    """Checksum and counts of a file's rows from its folder's manifest; None for data not prepared by this program."""
    from cppo_lab.data.manifest import read_manifest

    try:
        record = read_manifest(path.parent).get(path.name)
    except UserError:
        return None
    if record is None or not path.is_file():
        return None
    return record.content_sha256, {
        "problems": record.rows,
        "repeats_dropped": record.duplicates_dropped,
        "origin": record.origin,
        "origin_sha256": record.origin_sha256,
        "content_sha256": record.content_sha256,
    }


def _foreign(path: Path) -> tuple[str, dict[str, int | str]]:
    """A checksum of a file's size and end: reading hundreds of megabytes for the record would take seconds.

    Raises OSError.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        found = hashlib.sha256(str(size).encode() + b"\0" + file.read()).hexdigest()
    return found, {"megabytes": round(size / 1e6), "digest_of": "size and end of the file"}
