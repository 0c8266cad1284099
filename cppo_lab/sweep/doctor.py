"""Checks what this machine has and lacks for a run: `cppo doctor`, and every launch before it starts a run.

Each line has a verdict and, if something is missing, the remedy. Nothing is written or downloaded, and a missing
package is a finding, not an error. What a core or a launcher needs is checked by its list (core_records.py, its
`CoreChecks`; cores/verl/checks.py, launch/slurm/submit.py).
"""

import os
import platform
import shlex
import shutil
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

from packaging.specifiers import SpecifierSet

from cppo_lab.core_records import BUILT_IN, checks_of, core_of
from cppo_lab.errors import UserError, in_time, printable, together
from cppo_lab.files import runs_folder
from cppo_lab.launch.launchers import launcher_of, load_launcher
from cppo_lab.plugins import (
    MISSING,
    OK,
    UNNEEDED,
    WARNING,
    Check,
    Requirement,
    install_extra,
    lacking,
    load,
    snapshot,
)
from cppo_lab.spec import HubModel, LayoutSpec, MathData, PathsSpec, RunSpec
from cppo_lab.spec.job import estimate, estimate_disk
from cppo_lab.spec.run import TRAIN
from cppo_lab.sweep.compose import Composed
from cppo_lab.sweep.plan import Plan
from cppo_lab.tracking.address import sqlite_file

PATIENCE = 10.0  # seconds for a server to answer
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
TRAINING = f"{TRAIN}.parquet"
LEAST_DISK = 1e9


def examine(composed: Composed, uri: str, runs: Path, interfaces: bool = True) -> list[Check]:
    """Check everything that the run needs from this machine, the store at `uri` and the folder `runs`.

    Checking a core's `interfaces` and a server may take seconds; a launch does without (`interfaces=False`).
    """
    run, layout, paths, launcher = composed.run, composed.layout, composed.paths, composed.launcher
    record = launcher_of(launcher.name)
    elsewhere = record.load("doctor")
    return [
        # The packages of a container are in its image.
        *(() if launcher.contained else check_packages(run, layout)),
        Requirement(
            "submitit",
            ">=1.5.2,<2",
            f"launcher={launcher.name}" if record.submitit else "",
            extra="train",
        ).check(),
        *(checks_of(run.core).interfaces() if interfaces and not launcher.contained else ()),
        # A cluster's nodes have the devices; this machine only submits.
        *(elsewhere(composed.resources, runs, launcher) if elsewhere else check_devices(run, layout)),
        *checks_of(run.core).machine(run, layout),
        _disk(run, layout, runs),
        check_model(run, paths),
        check_data(run, paths),
        # A launch asks a server itself, and goes on with what it can without it.
        *((check_store(uri),) if interfaces or sqlite_file(uri) else ()),
    ]


def lines(checks: Sequence[Check]) -> list[str]:
    """The checks as lines of text."""
    return [printable(check.line) for check in checks]


def ready(checks: Sequence[Check]) -> bool:
    """Whether nothing that the run needs is missing."""
    return all(check.status != MISSING for check in checks)


def require_plan(plan: Plan, uri: str) -> None:
    """See that what the runs of a plan need is here, before any of them is started.

    Raises UserError naming everything that is missing, ModuleNotFoundError for a package that every run needs.
    """
    load_launcher(plan.launcher.name)
    # A queue's nodes have other packages, and what another package's core needs it says itself.
    one_machine = launcher_of(plan.launcher.name).one_machine
    if plan.core in BUILT_IN and one_machine and find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    kinds = {
        (run.spec.model.name, run.layout.name): Composed(
            run.spec, run.layout, plan.paths, plan.launcher, plan.tracking, run.resources, plan.notify
        )
        for run in plan.runs
    }
    require_machine(list(kinds.values()), uri)


def require_machine(kinds: Sequence[Composed], uri: str) -> None:
    """See that what these kinds of runs need is here, if their core uses a layout.

    Raises UserError naming everything that is missing.
    """
    if not core_of(kinds[0].run.core).uses_layout or not launcher_of(kinds[0].launcher.name).one_machine:
        return  # a cluster's nodes are other machines than this
    where, missing = "runs of this sweep cannot start here (see `cppo doctor`): ", []
    for composed in kinds:
        checks = examine(composed, uri, runs_folder(), interfaces=False)
        missing += [where + check.text for check in checks if check.status == MISSING]
    if missing:
        raise together(missing, where)


def check_packages(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """Check Python, then every package of the run's core."""
    checks, python = checks_of(run.core), platform.python_version()
    built_for = checks.gpu_python if layout.device == "cuda" else ""
    if not SpecifierSet(checks.python).contains(python, prereleases=True):
        yield Check("Python", MISSING, f"{python} is outside {checks.python}", "use a Python within it")
    elif built_for and not python.startswith(f"{built_for}."):
        yield Check("Python", WARNING, python, f"{checks.gpu_builds}, are for Python {built_for}")
    else:
        yield Check("Python", OK, python)
    for requirement in checks.requirements(run, layout):
        yield requirement.check()


def check_data(run: RunSpec, paths: PathsSpec) -> Check:
    """Prepared data is there and unchanged, or the user's files and reward can be used; a batch can be made of it."""
    data = run.data
    if not isinstance(data, MathData):
        return Check("data", UNNEEDED, f"data={data.name} is made by the run itself")
    try:
        from cppo_lab.data.prepare import check_folder, prepare
    except ModuleNotFoundError as error:
        return Check("data", MISSING, f"cannot be checked without {error.name}", install_extra("data"))
    prepared = Path(paths.data)
    remedy = f"cppo data prepare --from hub --out {shlex.quote(str(prepared))}"
    text = f"{prepared}, unchanged"
    try:
        if data.reward is not None and not callable(load(data.reward, "data.reward")):
            raise UserError(f"data.reward={data.reward!r} cannot be called: name a function")
        if data.files is None:
            records = check_folder(prepared)
        else:
            sets = {name: Path(file.path) for name, file in data.files.items()}
            prepared, remedy = sets.pop(TRAIN), "lower batch.prompts"
            text = ", ".join(map(str, (prepared, *sets.values())))
            with TemporaryDirectory() as folder:
                records = prepare(str(prepared), Path(folder) / "data", validation=sets)
    except UserError as error:
        return Check("data", MISSING, str(error))
    files = (TRAINING, *(f"{benchmark}.parquet" for benchmark in data.benchmarks))
    if missing := [name for name in files if name not in records]:
        chosen = "choose data.benchmarks among those prepared"
        return Check("data", MISSING, f"{prepared} has no {', '.join(missing)}", chosen)
    rows = records[TRAINING].rows
    if rows < run.batch.prompts:
        text = f"{prepared} has {rows} training problems, a batch takes {run.batch.prompts}"
        return Check("data", MISSING, text, remedy)
    return Check("data", OK, f"{text}, {rows} training problems")


def check_model(run: RunSpec, paths: PathsSpec) -> Check:
    """A published model is in `paths.models`, or in the hub's cache, or can be downloaded."""
    model = run.model
    if not isinstance(model, HubModel):
        return Check("model", UNNEEDED, f"model={model.name} is made by the run itself")
    remedy = f"hf download {model.repository} --revision {model.revision}"
    if paths.models is not None:
        folder = Path(paths.models) / model.repository
        remedy += f" --local-dir {folder}"
    else:
        folder = snapshot(model.repository, model.revision)
    cache, status = folder.parents[1], MISSING
    if paths.models is not None or folder.is_dir():
        missing = lacking(folder)
        if not missing:
            return Check("model", OK, str(folder))
        named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        text = f"{folder} lacks {named}"
    elif others := sorted(path.name[:8] for path in cache.glob("snapshots/*")):
        text = f"{cache} has {', '.join(others)}, not revision {model.revision}"
    elif os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        text = f"{model.repository} is not in {cache.parent}, and HF_HUB_OFFLINE is set"
    else:
        status, size = WARNING, f"{model.parameters * 2:.0f} GB"
        text = f"{model.repository} ({size}) will be downloaded to {cache.parent}"
    return Check("model", status, text, remedy)


def check_store(uri: str) -> Check:
    """The tracking store can be written (a file) or answers (a server). Names no password."""
    file = sqlite_file(uri)
    if file is not None:
        for place in (file, file.parent):  # SQLite's journal is beside the file
            if (place.exists() or place != file) and not os.access(place, os.W_OK):
                remedy = "set MLFLOW_TRACKING_URI to another store"
                return Check("MLflow store", MISSING, f"{place} cannot be written", remedy)
        return Check("MLflow store", OK, f"{file}{'' if file.exists() else ' (the first launch makes it)'}")
    parts = urlsplit(uri)
    if host := parts.hostname:
        port = parts.port or PORTS[parts.scheme.split("+")[0]]
        text = f"{parts.scheme}://{host}:{port}"
    else:
        named = (
            "that its query names" if "host" in parse_qs(parts.query) else "of this machine, by its socket"
        )
        text = f"{parts.scheme}: the server {named}"
    try:
        from cppo_lab.tracking.client import open_client, require_answer

        if host:  # a port that is closed is said at once
            socket.create_connection((host, port), timeout=PATIENCE).close()
        # In an empty database MLflow would make its tables.
        ask = open_client if parts.scheme in ("http", "https") else require_answer
        in_time(partial(ask, uri), PATIENCE)
    except (UserError, ImportError) as error:
        return Check("MLflow store", MISSING, str(error))
    except Exception as error:  # noqa: BLE001  drivers of databases have errors of their own
        reason, remedy = (
            str(error).partition("\n")[0],
            "start the server, or set MLFLOW_TRACKING_URI to another store",
        )
        return Check("MLflow store", MISSING, f"{text} does not answer ({reason})", remedy)
    return Check("MLflow store", OK, f"{text} answers")


def check_devices(run: RunSpec, layout: LayoutSpec) -> Iterator[Check]:
    """GPUs in number and memory, their CPUs, and the library by which they exchange gradients."""
    if not core_of(run.core).gpus(layout):
        yield Check("GPUs", UNNEEDED, "the run needs none")
        return
    if find_spec("torch") is None:
        yield Check("GPUs", MISSING, "torch, which would find them, is not installed", "install torch first")
        return
    import torch

    if not torch.cuda.is_available():
        yield Check(
            "GPUs",
            MISSING,
            f"torch {torch.__version__} sees no CUDA device",
            f"layout={layout.name} needs {layout.devices_per_node} on this node; install a CUDA build of torch and its "
            "driver, or choose a small model with layout=cpu",
        )
        return
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    names = ", ".join(sorted({device.name for device in devices}))
    smallest = min(device.total_memory for device in devices)
    text = f"{len(devices)} x {names}, {smallest / 1e9:.0f} GB"
    few = f"layout={layout.name} needs {layout.devices_per_node} on each node: choose another layout"
    status, remedy = (MISSING, few) if len(devices) < layout.devices_per_node else (OK, "")
    yield Check("GPUs", status, text, remedy)
    cpus, asked = len(os.sched_getaffinity(0)), layout.devices_per_node * (layout.cpus_per_gpu or 0)
    status = MISSING if cpus < layout.least_cpus else WARNING if cpus < asked else OK
    most = max(asked, layout.least_cpus)
    remedy = f"layout={layout.name} wants {most}: layout.cpus_per_gpu, or resources.cpus"
    yield Check("CPUs", status, f"{cpus} for this process", remedy if status != OK else "")
    if layout.nodes > 1:
        yield Check(
            "nodes",
            WARNING,
            f"layout={layout.name} has {layout.nodes}, of which this is one",
            "run `cppo doctor` on every node",
        )
    if (cost := estimate(run, layout, available=smallest)) is not None:
        less = "an estimate: more nodes, a smaller layout.tokens_per_device or layout.offload=true take less"
        status, remedy = (OK, "") if cost.memory.fits else (WARNING, less)
        yield Check("memory of a GPU", status, cost.memory.verdict, remedy)
    if torch.distributed.is_nccl_available():
        yield Check("NCCL", OK, ".".join(map(str, torch.cuda.nccl.version())))
    else:
        yield Check("NCCL", MISSING, "this torch is built without it", "install a CUDA build of torch")


def _disk(run: RunSpec, layout: LayoutSpec, runs: Path) -> Check:
    """Check the disk of the folder, for checkpoints; if it does not exist yet, that of the nearest existing parent."""
    place = next(folder for folder in (runs, *runs.parents) if folder.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        remedy = "work in a folder that you can write to"
        return Check("runs folder", MISSING, f"{runs} cannot be made or written", remedy)
    disk = estimate_disk(run, layout)
    needed = disk.training if disk else LEAST_DISK
    free = shutil.disk_usage(place).free
    text = f"{runs}: {free / 1e9:.0f} GB free"
    if free >= needed:
        return Check("runs folder", OK, text)
    stays = f", of which {disk.recorded / 1e9:.0f} GB stay; `cppo plan SWEEP` has the sum" if disk else ""
    return Check(
        "runs folder", WARNING, text, f"checkpoints of one run take about {needed / 1e9:.0f} GB{stays}"
    )
