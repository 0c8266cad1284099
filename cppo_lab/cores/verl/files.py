"""The files of a verl run: its datasets, as the manifest of the prepared data has them, and where it reads data and
model. Imports no trainer.
"""

import hashlib
import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cppo_lab import schema
from cppo_lab.core_records import Resources
from cppo_lab.cores.base import held_out_sets, training_set
from cppo_lab.errors import UserError
from cppo_lab.plugins import code_digest, digest_of, lacking, snapshot
from cppo_lab.schema import Dataset
from cppo_lab.spec import HubModel, MathData, PathsSpec, TaskData, VerlRun, fingerprint
from cppo_lab.spec.run import TRAIN

DIGITS = 12  # of a checksum, in a digest
TAIL = 1 << 16  # bytes at the end of a parquet file: the metadata of its rows, including their bounds


def datasets(spec: VerlRun, resources: Resources) -> tuple[Dataset, ...]:
    """The prepared files that exist, or the problems of a task of the product."""
    if isinstance(spec.data, TaskData):
        problems = spec.training.t_stop * spec.batch.prompts
        drawn = {"stream": "file", "seed": spec.seed, "problems": problems}
        return (training_set(spec.data, drawn, problems), *held_out_sets(spec.data))
    if spec.data.files is not None:
        return tuple(
            Dataset(
                name,
                file.digest,
                file.path,
                schema.LOCAL,
                schema.TRAINING if name == TRAIN else schema.VALIDATION,
                {},
            )
            for name, file in spec.data.files.items()
        )
    assert resources.paths is not None
    train, validation = prepared_files(spec.data, Path(resources.paths.data))
    held_out = [(path.stem, path, schema.VALIDATION) for path in validation]
    sets = []
    for name, path, context in ((spec.data.name, train, schema.TRAINING), *held_out):
        with suppress(OSError):  # it does not exist
            digits, profile = _prepared(path) or _foreign(path)
            sets.append(Dataset(name, digits[:DIGITS], str(path), schema.LOCAL, context, profile))
    return tuple(sets)


def prepared_files(data: MathData, folder: Path) -> tuple[Path, tuple[Path, ...]]:
    """The paths of prepared training data and benchmarks in a folder, whether or not they exist."""
    folder = folder.resolve()
    return folder / "train.parquet", tuple(folder / f"{name}.parquet" for name in data.benchmarks)


def _prepared(path: Path) -> tuple[str, dict[str, int | str]] | None:
    """Checksum and counts of a file's rows from its folder's manifest; None for data not prepared by this program."""
    from cppo_lab.data.prepare import read_manifest

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
        digest = hashlib.sha256(str(size).encode() + b"\0" + file.read()).hexdigest()
    return digest, {"megabytes": round(size / 1e6), "digest_of": "size and end of the file"}


# Locates the files that a verl run reads, and creates or reports missing ones.


class Files(NamedTuple):
    """The inputs of a run, and its folder."""

    model: str  # a folder, or a repository of the hub
    train: Path
    validation: tuple[Path, ...]
    folder: Path  # of the run
    resume: Path | None = None  # the checkpoint to continue from


def planned_files(
    spec: VerlRun, paths: PathsSpec, shared: Path, folder: Path, resume: Path | None = None
) -> Files:
    """The paths of a run's files, whether or not they exist. Only the hub's cache is looked into."""
    written = folder / "data"
    if isinstance(spec.data, MathData):
        train, validation = prepared_files(
            spec.data, Path(paths.data) if spec.data.files is None else written
        )
    else:
        train, validation = written / "train.parquet", (written / "validation.parquet",)
    if isinstance(spec.model, HubModel):
        if paths.models is not None:
            model = str(Path(paths.models).resolve() / spec.model.repository)
        else:
            cached = snapshot(spec.model.repository, spec.model.revision)
            # By its folder, for which no library asks the hub: nodes without a route to it would wait for time-outs.
            model = spec.model.repository if lacking(cached) else str(cached.absolute())
    else:
        seeded = spec.model.for_seed(spec.seed)
        if isinstance(spec.data, TaskData):
            from cppo_lab.cores.mini.warm_start import warm_start_file

            name = warm_start_file(seeded, spec.data, shared).stem
        else:
            name = f"{seeded.name}-bytes-{fingerprint(seeded)}"
        # The weights do not depend on the context length, but the model's configuration does.
        context = spec.longest_prompt + spec.rollout.max_response_length
        model = str(shared / "made_models" / f"{name}-{context}")
    return Files(model, train, validation, folder, resume)


def require_files(spec: VerlRun, files: Files, shared: Path) -> None:
    """Make sure that the files exist; models and tasks of the product are created.

    Raises UserError for prepared data or a downloaded model that is missing, and for too few problems for a batch,
    of which verl would make none.
    """
    data = spec.data
    if not isinstance(spec.model, HubModel):
        from cppo_lab.cores.verl.hf_models import make_model, write_task

        make_model(spec, Path(files.model), shared)
        if isinstance(data, TaskData):
            write_task(spec, files.train, files.validation[0])
            return
    assert isinstance(data, MathData)
    changed = "has changed since the run was planned, and the id says what it was: launch again"
    if data.reward is not None and code_digest(data.reward, "data.reward") != data.reward_code:
        raise UserError(f"data.reward={data.reward!r} {changed}")
    if data.files is not None:
        from cppo_lab.data.prepare import prepare

        paths = {name: Path(file.path) for name, file in data.files.items()}
        for name, path in paths.items():
            if digest_of(path) != data.files[name].digest:
                raise UserError(f"{path} {changed}")
        prepare(str(paths.pop(TRAIN)), files.train.parent, validation=paths)
    for path in (files.train, *files.validation):
        if not path.is_file():
            command = f"cppo data prepare --out {shlex.quote(str(path.parent))}"
            raise UserError(f"{path} does not exist: run `{command}`, or set paths.data")
    prepared = _prepared(files.train)
    if prepared and int(prepared[1]["problems"]) < spec.batch.prompts:
        raise UserError(
            f"{files.train} has {prepared[1]['problems']} problems, fewer than batch.prompts={spec.batch.prompts}: "
            "prepare a larger training set (`cppo data prepare --from hub`), or lower batch.prompts"
        )
    if not isinstance(spec.model, HubModel):
        return
    from_hub = files.model == spec.model.repository
    if from_hub and spec.model.revision != "main":
        raise UserError(
            f"model.revision={spec.model.revision!r}: verl takes a repository's main from the hub; download that "
            f"revision of {spec.model.repository} and set paths.models"
        )
    if not from_hub and not (Path(files.model) / "config.json").is_file():
        raise UserError(
            f"{files.model} holds no model: download {spec.model.repository} ({spec.model.revision}) there, or "
            "set paths.models=null to take it from the hub's cache"
        )
