"""Compares the two studies: the finished runs in their stores, point by point, and their reports, byte by byte."""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis.inputs import is_result
from cppo_lab.reports.saved import MARKER, RECORD
from cppo_lab.runs.recorder import OUTPUT
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.history import HISTORY, unpack
from cppo_lab.tracking.read import newest_runs

Point = tuple[str, int, str]  # metric, step, value to the last bit
SAME_FILES = ("config.json", "diagnostics/")  # artifacts whose bytes have to be the same
STORE = "the store"
WITH_NAMES = frozenset({".html", ".csv"})


@dataclass(frozen=True)
class Recorded:
    """A finished run: its points by where they are (STORE, HISTORY), and its artifacts, with fingerprints of those
    whose bytes must be the same in all stores.
    """

    points: Mapping[str, Counter[Point]]
    artifacts: Mapping[str, str]


@dataclass(frozen=True)
class Store:
    """The finished runs by run id (a list each, to find duplicates), MLflow's id of each, and how many MLflow runs
    have each status.
    """

    runs: Mapping[str, list[Recorded]]
    ids: Mapping[str, str] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)


def read_store(uri: str) -> Store:
    """All training runs of a store, whole."""
    client = open_client(uri)
    runs: dict[str, list[Recorded]] = {}
    ids: dict[str, str] = {}
    statuses: Counter[str] = Counter()
    for run in newest_runs(client, schema.experiment_name("mini")):
        run_id = run.data.tags.get(schema.TAG_RUN_ID)
        if run_id is None:
            continue  # the sweep's parent run
        statuses[run.info.status] += 1
        if run.info.status == "FINISHED":
            ids[run.info.run_id] = run_id
            runs.setdefault(run_id, []).append(_recorded(client, run.info.run_id, run.data.metrics))
    return Store(runs, ids, statuses)


def _recorded(client: MlflowClient, mlflow_id: str, metrics: Iterable[str]) -> Recorded:
    stored: Counter[Point] = Counter()
    for metric in filter(is_result, metrics):
        for point in client.get_metric_history(mlflow_id, metric):
            stored[metric, point.step, repr(float(point.value))] += 1
    in_file: Counter[Point] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        client.download_artifacts(mlflow_id, "", folder)
        paths = {
            path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*") if path.is_file()
        }
        artifacts = {
            name: hashlib.sha256(path.read_bytes()).hexdigest() if name.startswith(SAME_FILES) else ""
            for name, path in paths.items()
        }
        if HISTORY in paths:
            history = unpack(paths[HISTORY].read_bytes(), HISTORY)
            for metric in filter(is_result, history):
                rows = zip(*(column.tolist() for column in history[metric][:2]), strict=True)
                in_file.update((metric, int(step), repr(float(value))) for step, value in rows)
    return Recorded({STORE: stored, HISTORY: in_file}, artifacts)


@dataclass(frozen=True)
class Comparison:
    """`points`: the number of points of the control study; `lost`: those not found exactly once with equal value.
    `faults` describes all differences.
    """

    points: int
    lost: int
    faults: tuple[str, ...]


def compare(control: Store, disturbed: Store) -> Comparison:
    """Compare the disturbed study with the control study."""
    faults = []
    if running := disturbed.statuses.get("RUNNING"):
        faults.append(f"{running} MLflow runs are RUNNING still")
    faults += [
        f"run {run} is none of the control study's" for run in disturbed.runs.keys() - control.runs.keys()
    ]
    points = lost = 0
    nothing = Recorded({STORE: Counter(), HISTORY: Counter()}, {})
    for run_id, [expected] in control.runs.items():
        runs = disturbed.runs.get(run_id, [])
        if len(runs) != 1:
            faults.append(f"run {run_id} is done {len(runs)} times")
        run = runs[0] if runs else nothing
        points += expected.points[STORE].total()
        for where, counted in run.points.items():
            missing = [point for point in expected.points[where] if counted[point] != 1]
            more = [point for point in counted if point not in expected.points[where]]
            lost += len(missing) if where == STORE else 0
            for what, some in (("lacks, or has more than once,", missing), ("has besides", more)):
                if some:
                    metric, step, value = min(some)
                    first = f"{metric} at step {step} = {value}"
                    faults.append(f"run {run_id} {what} {len(some)} points in {where}: {first}, ...")
        for name, digest in expected.artifacts.items():
            # Output differs: an inline launch prints its progress, Slurm jobs print to other files.
            if run.artifacts.get(name) != digest and not name.startswith(f"{OUTPUT}/"):
                faults.append(
                    f"run {run_id} {'has another' if name in run.artifacts else 'lacks the'} artifact {name}"
                )
    return Comparison(points, lost, tuple(faults))


def read_report(folder: Path, ids: Mapping[str, str], address: str) -> dict[str, bytes]:
    """The files of a report by name; `ids`: MLflow's id -> the run's.

    Random names are replaced by the same names on both sides: MLflow's id of each run, and the `address` of the server.
    `report.json` has fingerprints of the files that contain them; these are recomputed after the replacement. The
    marker file, by which `cppo report` recognises its folder, is not part of the report.
    """
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != MARKER}
    named = dict(files)
    for name in files:
        if Path(name).suffix in WITH_NAMES:
            for mlflow_id, run_id in ids.items():
                named[name] = named[name].replace(mlflow_id.encode(), f"mlflow-{run_id}".encode())
            named[name] = named[name].replace(address.encode(), b"http://store")
    for name, digest in json.loads(files[RECORD])["files"].items():
        new = digest.replace(*(hashlib.sha256(side[name]).hexdigest() for side in (files, named)))
        named[RECORD] = named[RECORD].replace(digest.encode(), new.encode())
    return named


def differences(control: Mapping[str, bytes], disturbed: Mapping[str, bytes]) -> list[str]:
    """A description of each file of a report that differs."""
    different = [f"the report lacks {name}" for name in sorted(control.keys() - disturbed.keys())]
    different += [f"the report has {name} besides" for name in sorted(disturbed.keys() - control.keys())]
    for name in sorted(control.keys() & disturbed.keys()):
        ours, theirs = control[name], disturbed[name]
        if ours != theirs:
            at = next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
            bytes_there = f"{ours[at : at + 40]!r}, not {theirs[at : at + 40]!r}"
            different.append(f"{name} differs from byte {at} on: {bytes_there}")
    return different
