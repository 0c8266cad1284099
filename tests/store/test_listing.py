"""Which runs an experiment has: all of them, whatever the size of a page and the name of a sweep."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from cppo_lab.tracking import read as listing
from cppo_lab.tracking.read import all_runs, experiment_runs


@pytest.fixture(params=["database", "server"])
def client(
    empty_store: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> MlflowClient:
    """Of a store with pages of two runs; as a server's it has an address with a scheme of its own."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setattr(listing, "PAGE" if request.param == "database" else "SERVER_PAGE", 2)
    if request.param == "server":
        monkeypatch.setattr(MlflowClient, "tracking_uri", "http://host")
    return client


def test_pages(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, search = list[int](), MlflowClient.search_runs

    def counted(client: MlflowClient, *args: Any, **named: Any) -> Any:
        asked.append(named["max_results"])
        return search(client, *args, **named)

    monkeypatch.setattr(MlflowClient, "search_runs", counted)
    number = client.create_experiment("e")
    ids = [client.create_run(number, start_time=time).info.run_id for time in (5, 5, 5, 3, 4)]
    client.create_run(client.create_experiment("another"))
    found = [run.info.run_id for run in all_runs(client, number)]
    assert sorted(found) == sorted(ids)
    assert found[:2] == [ids[3], ids[4]]
    assert asked == [2, 2, 2]
    assert [run.info.run_id for run in experiment_runs(client, "e")][-2:] == [ids[4], ids[3]]
    assert list(experiment_runs(client, "none")) == []


def test_a_run_that_starts_meanwhile_hides_none(client: MlflowClient) -> None:
    number = client.create_experiment("e")
    ids = [client.create_run(number, start_time=time).info.run_id for time in range(1, 6)]
    found = []
    for run in all_runs(client, number):
        found.append(run.info.run_id)
        if len(found) < 4:
            client.create_run(number, start_time=100 + len(found))
    assert found[:5] == ids
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("tag", ["cppo.sweep.main", "cppo.sweep.a b", "cppo.sweep.a/b:c", "cppo.sweep.100%"])
def test_by_a_tag(client: MlflowClient, tag: str) -> None:
    number = client.create_experiment("e")
    client.create_run(number, tags={"other": tag})
    kept = client.create_run(number, tags={tag.removesuffix("%"): ""}).info.run_id
    found = [run.info.run_id for run in all_runs(client, number, tag)]
    assert found == ([] if tag.endswith("%") else [kept])


@pytest.mark.parametrize("tag", ["cppo.sweep.`x` = '%", 'cppo.sweep."', "cppo.sweep.'", ""])
def test_a_tag_that_no_run_can_have(client: MlflowClient, tag: str) -> None:
    number = client.create_experiment("e")
    client.create_run(number, tags={"x": "1"})
    assert not list(all_runs(client, number, tag))
