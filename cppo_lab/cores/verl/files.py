"""Locates the files that a verl run reads, and creates or reports missing ones."""

from dataclasses import dataclass
from pathlib import Path

from cppo_lab.cores.mini.warm_start import warm_start_file
from cppo_lab.cores.verl.datasets import prepared_files
from cppo_lab.errors import UserError
from cppo_lab.spec import HubModel, MathData, PathsSpec, TaskData, VerlRun


@dataclass(frozen=True)
class Files:
    """The inputs of a run, and its folder."""

    model: str  # a folder, or a repository of the hub
    train: Path
    validation: tuple[Path, ...]
    folder: Path  # of the run
    resume: Path | None = None  # the checkpoint to continue from


def planned_files(
    spec: VerlRun, paths: PathsSpec, shared: Path, folder: Path, resume: Path | None = None
) -> Files:
    """The paths of a run's files, whether or not they exist. Nothing is read."""
    if isinstance(spec.model, HubModel):
        assert isinstance(spec.data, MathData)
        train, validation = prepared_files(spec.data, paths)
        model = (
            spec.model.repository
            if paths.models is None
            else str(Path(paths.models).resolve() / spec.model.repository)
        )
        return Files(model, train, validation, folder, resume)
    assert isinstance(spec.data, TaskData)
    # The weights do not depend on the context length, but the model's configuration does.
    context = spec.data.prompt_length + spec.rollout.max_response_length
    made = spec.model.for_seed(spec.seed)
    model = str(shared / "made_models" / f"{warm_start_file(made, spec.data, shared).stem}-{context}")
    own = folder / "data"
    return Files(model, own / "train.parquet", (own / "validation.parquet",), folder, resume)


def require_files(spec: VerlRun, files: Files, shared: Path) -> None:
    """Make sure that the files exist; our own models and tasks are created.

    Raises UserError for prepared data or a downloaded model that is missing.
    """
    if not isinstance(spec.model, HubModel):
        from cppo_lab.cores.verl.export_hf import make_model, write_task

        make_model(spec, Path(files.model), shared)
        write_task(spec, files.train, files.validation[0])
        return
    for path in (files.train, *files.validation):
        if not path.is_file():
            raise UserError(
                f"{path} does not exist: run `cppo data prepare --out {path.parent}`, or set paths.data"
            )
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
