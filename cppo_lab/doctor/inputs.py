"""Checks of prepared data, models and the tracking store."""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from cppo_lab.doctor.check import MISSING, OK, UNNEEDED, WARNING, Check
from cppo_lab.errors import UserError
from cppo_lab.hub import lacking, snapshot
from cppo_lab.installed import install_extra
from cppo_lab.spec import HubModel, MathData, PathsSpec, RunSpec
from cppo_lab.tracking import address

PATIENCE = 5.0  # seconds for a server to answer
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
TRAINING = "train.parquet"


def check_data(run: RunSpec, paths: PathsSpec) -> Check:
    """Prepared data is there, unchanged, and has the run's benchmarks."""
    data = run.data
    if not isinstance(data, MathData):
        return Check("data", UNNEEDED, f"data={data.name} is made by the run itself")
    try:
        from cppo_lab.data.manifest import check_folder
    except ModuleNotFoundError as error:
        return Check("data", MISSING, f"cannot be checked without {error.name}", install_extra("data"))
    folder = Path(paths.data)
    try:
        records = check_folder(folder)
    except UserError as error:
        return Check("data", MISSING, str(error))
    lacking = [
        name for name in (TRAINING, *(f"{one}.parquet" for one in data.benchmarks)) if name not in records
    ]
    if lacking:
        remedy = "choose data.benchmarks among those prepared"
        return Check("data", MISSING, f"{folder} has no {', '.join(lacking)}", remedy)
    rows = records[TRAINING].rows
    if rows < run.batch.prompts:
        remedy = f"cppo data prepare --from hub --out {folder}"
        return Check(
            "data",
            MISSING,
            f"{folder} has {rows} training problems, a batch takes {run.batch.prompts}",
            remedy,
        )
    return Check("data", OK, f"{folder}, unchanged, {rows} training problems")


def check_model(run: RunSpec, paths: PathsSpec) -> Check:
    """A published model is in `paths.models`, or in the hub's cache, or can be downloaded."""
    model = run.model
    if not isinstance(model, HubModel):
        return Check("model", UNNEEDED, f"model={model.name} is made by the run itself")
    if paths.models is not None:
        folder = Path(paths.models) / model.repository
        remedy = f"hf download {model.repository} --revision {model.revision} --local-dir {folder}"
        return _model_folder(folder, remedy)
    remedy = f"hf download {model.repository} --revision {model.revision}"
    folder = snapshot(model.repository, model.revision)
    if folder.is_dir():
        return _model_folder(folder, remedy)
    cache = folder.parents[1]
    if others := sorted(path.name[:8] for path in cache.glob("snapshots/*")):
        text = f"{cache} has {', '.join(others)}, not revision {model.revision}"
        return Check("model", MISSING, text, remedy)
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return Check(
            "model",
            MISSING,
            f"{model.repository} is not in {cache.parent}, and HF_HUB_OFFLINE is set",
            remedy,
        )
    size = f"{model.parameters * 2:.0f} GB"
    return Check(
        "model", WARNING, f"{model.repository} ({size}) will be downloaded to {cache.parent}", remedy
    )


def _model_folder(folder: Path, remedy: str) -> Check:
    """Whether a download is whole."""
    missing = lacking(folder)
    if not missing:
        return Check("model", OK, str(folder))
    named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return Check("model", MISSING, f"{folder} lacks {named}", remedy)


def check_store(uri: str) -> Check:
    """The tracking store can be written (a file) or answers (a server). Names no user and no password."""
    file = address.sqlite_file(uri)
    if file is not None:
        place = file if file.exists() else file.parent
        if os.access(place, os.W_OK):
            return Check(
                "MLflow store", OK, f"{file}{'' if file.exists() else ' (the first launch makes it)'}"
            )
        return Check(
            "MLflow store", MISSING, f"{place} cannot be written", "set MLFLOW_TRACKING_URI to another store"
        )
    parts = urlsplit(uri)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme.split("+")[0]]
    text = f"{parts.scheme}://{host}:{port}"
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        remedy = "start the server, or set MLFLOW_TRACKING_URI to another store"
        return Check("MLflow store", MISSING, f"{text} does not answer ({error})", remedy)
    return Check("MLflow store", OK, f"{text} answers")
