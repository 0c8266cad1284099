"""The records of a study in a store, and the differences between two stores."""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from cppo_lab import schema
from cppo_lab.analysis.points import is_result
from cppo_lab.runs.recorder import OUTPUT
from cppo_lab.tracking import history
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import newest_runs

Point = tuple[str, int, str]  # metric, step, value to the last bit
SAME_FILES = ("config.json", "diagnostics/")  # artifacts whose bytes have to be the same


@dataclass(frozen=True)
class Recorded:
    """A finished run: counts of its points in the store and in its history, and its artifacts, with fingerprints of
    those whose bytes must be the same in all stores."""

    mlflow_id: str
    points: Counter[Point]
    in_file: Counter[Point]
    artifacts: Mapping[str, str]


@dataclass(frozen=True)
class Store:
    """The finished runs by run id (a list each, to find duplicates), and the number of MLflow runs with each status."""

    runs: Mapping[str, list[Recorded]]
    statuses: Mapping[str, int] = field(default_factory=dict)


def read_store(uri: str) -> Store:
    """All training runs of a store, whole."""
    client = open_client(uri)
    runs: dict[str, list[Recorded]] = {}
    statuses: Counter[str] = Counter()
    for run in newest_runs(client, schema.experiment_name("mini")):
        run_id = run.data.tags.get(schema.TAG_RUN_ID)
        if run_id is None:
            continue  # the sweep's parent run
        statuses[run.info.status] += 1
        if run.info.status == "FINISHED":
            runs.setdefault(run_id, []).append(_recorded(client, run))
    return Store(runs, statuses)


def _recorded(client: MlflowClient, run: Run) -> Recorded:
    points: Counter[Point] = Counter()
    for metric in filter(is_result, run.data.metrics):
        found = client.get_metric_history(run.info.run_id, metric)
        points.update((metric, point.step, repr(float(point.value))) for point in found)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: _fetch(client, run, name, Path(folder)) for name in sorted(_files(client, run, ""))}
    whole = files.get(history.HISTORY)
    kept = {
        name: hashlib.sha256(data).hexdigest() if name.startswith(SAME_FILES) else ""
        for name, data in files.items()
    }
    return Recorded(run.info.run_id, points, _of_file(whole) if whole else Counter(), kept)


def _files(client: MlflowClient, run: Run, folder: str) -> Iterator[str]:
    for one in client.list_artifacts(run.info.run_id, folder or None):
        if one.is_dir:
            yield from _files(client, run, one.path)
        else:
            yield one.path


def _fetch(client: MlflowClient, run: Run, name: str, folder: Path) -> bytes:
    if not name.startswith((*SAME_FILES, history.HISTORY)):
        return b""
    return Path(client.download_artifacts(run.info.run_id, name, str(folder))).read_bytes()


def _of_file(data: bytes) -> Counter[Point]:
    whole = history.unpack(data, history.HISTORY)
    return Counter(
        (name, int(step), repr(float(value)))
        for name, place in whole.points()
        if is_result(name)
        for step, value in zip(whole.step[place], whole.value[place], strict=True)
    )


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
    faults = [
        f"{count} MLflow runs are {status} still"
        for status, count in disturbed.statuses.items()
        if status == "RUNNING"
    ]
    points = lost = 0
    for run_id, [expected] in control.runs.items():
        points += expected.points.total()
        found = disturbed.runs.get(run_id, [])
        if len(found) != 1:
            faults.append(f"run {run_id} is done {len(found)} times")
        if not found:
            lost += expected.points.total()
            continue
        missing, more = _differ(expected.points, found[0].points)
        lost += len(missing)
        faults += _named(run_id, "in the store", missing, more)
        faults += _named(run_id, f"in {history.HISTORY}", *_differ(expected.points, found[0].in_file))
        for name, digest in expected.artifacts.items():
            if name.startswith(f"{OUTPUT}/"):
                continue  # output differs: an inline launch prints its progress, Slurm jobs print to other files
            if name not in found[0].artifacts:
                faults.append(f"run {run_id} lacks the artifact {name}")
            elif found[0].artifacts[name] != digest:
                faults.append(f"run {run_id} has another artifact {name}")
    faults += [
        f"run {run_id} is none of the control study's"
        for run_id in disturbed.runs.keys() - control.runs.keys()
    ]
    return Comparison(points, lost, tuple(faults))


def _differ(expected: Counter[Point], found: Counter[Point]) -> tuple[list[Point], list[Point]]:
    """The points that do not appear exactly once, and those that should not appear."""
    missing = [point for point in expected if found[point] != 1]
    return missing, [point for point in found if point not in expected]


def _named(run_id: str, where: str, missing: list[Point], more: list[Point]) -> list[str]:
    found = []
    for what, points in (("lacks, or has more than once,", missing), ("has besides", more)):
        if points:
            metric, step, value = min(points)
            first = f"{metric} at step {step} = {value}"
            found.append(f"run {run_id} {what} {len(points)} points {where}: {first}, ...")
    return found
