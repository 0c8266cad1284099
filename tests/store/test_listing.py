"""Which runs an experiment has: all of them, whatever the size of a page and the name of a sweep."""

import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab.store import database, listing
from cppo_lab.store.listing import all_runs


@pytest.fixture(params=["database", "server"])
def client(
    empty_store: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> MlflowClient:
    """Of a store that is read from its tables, or page by page as a server's."""
    monkeypatch.setattr(database, "is_database", lambda uri: request.param == "database")
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")


def test_pages(client: MlflowClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "WHOLE_PAGE", 2)
    number = client.create_experiment("e")
    ids = [client.create_run(number, start_time=time).info.run_id for time in (5, 5, 5, 3, 4)]
    client.create_run(client.create_experiment("another"))
    found = [run.info.run_id for run in all_runs(client, number)]
    assert sorted(found) == sorted(ids)
    assert found[:2] == [ids[3], ids[4]]


def test_a_run_that_starts_meanwhile_hides_none(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "WHOLE_PAGE", 2)
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
