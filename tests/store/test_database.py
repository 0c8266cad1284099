"""The runs that are read from a database's tables, held against those that MLflow's own search gives."""

import math
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag

from cppo_lab.store import database
from cppo_lab.store.client import open_client
from cppo_lab.store.database import database_runs, is_database


@pytest.fixture
def client(tmp_path: Path) -> MlflowClient:
    return open_client(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture
def experiment(client: MlflowClient) -> str:
    """Seven runs, of which one is deleted, and one of another experiment."""
    number = str(client.create_experiment("mine"))
    for index in range(7):
        tags = {"odd": "yes"} if index % 2 else {}
        run = client.create_run(number, start_time=1000 + index // 2, tags=tags, run_name=f"run {index}")
        params = [Param("rule.delta", str(index)), Param("a name", "'; -- " * 60)]
        metrics = [Metric("a", 0.5 * index, 10, 0), Metric("a", 0.25, 20, 1), Metric("b", math.nan, 5, 2)]
        metrics.append(Metric("c", math.inf, 7, -3))
        client.log_batch(run.info.run_id, metrics, params, [RunTag("note", "é\n'\"")])
        if index == 3:
            client.delete_run(run.info.run_id)
        elif index < 5:
            client.set_terminated(run.info.run_id, "FAILED", 2000)
    client.create_run(client.create_experiment("other"), tags={"odd": "yes"})
    return number


def content(run: Run) -> tuple[Any, ...]:
    """All of a run that anything of ours reads; NaN as text, since it is not equal to itself."""
    points = [(one.key, repr(one.value), one.step, one.timestamp) for one in run.data.to_proto().metrics]
    values = {name: repr(value) for name, value in run.data.metrics.items()}
    return vars(run.info), run.data.tags, run.data.params, values, sorted(points)


@pytest.mark.parametrize("page", [2, 500])
@pytest.mark.parametrize("newest_first", [False, True])
def test_they_are_those_of_mlflow(
    client: MlflowClient, experiment: str, newest_first: bool, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PAGE", page)
    order = f"attributes.start_time {'DESC' if newest_first else 'ASC'}"
    expected = client.search_runs([experiment], order_by=[order])
    found = list(database_runs(client.tracking_uri, experiment, newest_first=newest_first))
    assert len(found) == 6
    assert [content(run) for run in found] == [content(run) for run in expected]


def test_those_with_a_tag(client: MlflowClient, experiment: str) -> None:
    expected = client.search_runs([experiment], "tags.odd LIKE '%'", order_by=["attributes.start_time ASC"])
    found = list(database_runs(client.tracking_uri, experiment, "odd"))
    assert [content(run) for run in found] == [content(run) for run in expected]
    assert len(found) == 2
    assert list(database_runs(client.tracking_uri, experiment, "odd' OR '1' = '1")) == []


def test_tags_alone(client: MlflowClient, experiment: str) -> None:
    whole = list(database_runs(client.tracking_uri, experiment))
    lean = list(database_runs(client.tracking_uri, experiment, tags_alone=True))
    assert [run.data.tags for run in lean] == [run.data.tags for run in whole]
    assert all(not run.data.params and not run.data.metrics for run in lean)


def test_an_experiment_without_runs(client: MlflowClient) -> None:
    assert list(database_runs(client.tracking_uri, client.create_experiment("empty"))) == []


def test_only_what_this_process_opens_itself_is_a_database() -> None:
    assert is_database("sqlite:////tmp/mlflow.db")
    assert is_database("postgresql+psycopg2://user:word@host/base")
    assert not is_database("http://host:5000")
    assert not is_database("https://host")
