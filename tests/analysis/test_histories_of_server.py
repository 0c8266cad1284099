"""Runs that our recorder brought to a real MLflow server and to a SQLite file, read back in bulk: what was logged is
what comes out, and a run that has ended costs one file.
"""

import math
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.analysis.points import SweepData
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.upload import ship
from tests.servers.conftest import server, sqlite_tables

__all__ = ["server", "sqlite_tables"]  # fixtures, of the one server that a session has
STEPS = 12
TAGS = {schema.sweep_tag("demo"): "cppo"}


def metrics(step: int) -> dict[str, float]:
    """What is logged at a step."""
    values = {"train/loss": 1 / step, "train/grad_norm": math.nan if step == 3 else step * math.pi}
    values["rule/divergence_max"] = math.inf if step == STEPS else 0.1
    return values | ({"val/a/avg_at_16": step / 100} if step % 4 == 0 else {})


def points(data: SweepData) -> list[tuple[str, int, str]]:
    """The rows of a single run."""
    return [(row.metric, row.step, repr(float(row.value))) for row in data.metrics.itertuples(index=False)]


def expected(steps: int) -> list[tuple[str, int, str]]:
    """What the rows have to be."""
    names = sorted({name for step in range(1, steps + 1) for name in metrics(step)})
    every = range(1, steps + 1)
    return [
        (name, step, repr(metrics(step)[name])) for name in names for step in every if name in metrics(step)
    ]


@pytest.fixture(params=["sqlite", "server"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, empty_store: Path) -> str:
    if request.param == "server":
        return str(request.getfixturevalue("server").uri)
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which metrics and artifacts were asked for."""
    found: list[str] = []
    asked, fetched = MlflowClient.get_metric_history, MlflowClient.download_artifacts

    def counted(self: MlflowClient, run_id: str, key: str) -> Any:
        found.append(key)
        return asked(self, run_id, key)

    def counted_artifact(*args: Any, **kwargs: Any) -> Any:
        found.append("artifact")
        return fetched(*args, **kwargs)

    monkeypatch.setattr(MlflowClient, "get_metric_history", counted)
    monkeypatch.setattr(MlflowClient, "download_artifacts", counted_artifact)
    return found


def test_a_run_from_its_first_steps_to_its_end(
    uri: str, requests: list[str], tiny_spec: RunSpec, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / tiny_spec.run_id
    recorder = Recorder(tiny_spec, TAGS, folder)
    for step in range(1, STEPS + 1):
        recorder.log(step, metrics(step))
        if step == STEPS // 2:
            ship(folder, uri, open_client(uri))
            half = read_sweep(uri, schema.experiment_name("mini"), "demo")
            assert points(half) == expected(STEPS // 2)
            assert sorted(requests) == sorted(metrics(4))
            requests.clear()
    recorder.finish(Outcome(schema.DONE, STEPS))
    ship(folder, uri, open_client(uri))
    requests.clear()  # the end of an upload looks up the points, too
    whole = read_sweep(uri, schema.experiment_name("mini"), "demo")
    assert points(whole) == expected(STEPS)
    assert list(whole.runs["status"]) == [schema.DONE]
    again = read_sweep(uri, schema.experiment_name("mini"), "demo", "train/loss".__eq__)
    assert points(again) == [point for point in expected(STEPS) if point[0] == "train/loss"]
    assert requests == (["artifact", "artifact"] if uri.startswith("http") else [])
