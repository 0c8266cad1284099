"""No password of a store is printed, recorded or written to a file, whatever becomes of the store."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from urllib3.util import connection

from cppo_lab.errors import UserError
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import address
from cppo_lab.tracking.address import absolute_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import find
from cppo_lab.tracking.ui import where_to_look
from cppo_lab.tracking.upload import upload
from cppo_lab.tracking.uploader import upload_last
from dev.servers.postgres import Postgres
from tests.jobs import job
from tests.recorded import upload_ended
from tests.servers.test_postgres_search import files_with

SECRET = "s3cret"
AWAY = [
    f"http://me:{SECRET}@127.0.0.1:1",
    f"postgresql+psycopg2://me:{SECRET}@127.0.0.1:1/db",
    f"postgresql+psycopg2://127.0.0.1:1/db?user=me&password={SECRET}",
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is away stays away."""
    monkeypatch.setattr("cppo_lab.tracking.uploader.PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.mark.parametrize("uri", AWAY)
def test_a_store_that_is_away_is_said_in_one_line_and_after_one_more_try_at_most(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    tries: list[str] = []
    connect, new_connection = psycopg2.connect, connection.create_connection

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            tries.append(uri)
            return real(*arguments, **named)

        return call

    monkeypatch.setattr(psycopg2, "connect", counted(connect))
    monkeypatch.setattr(connection, "create_connection", counted(new_connection))  # for http
    with pytest.raises(UserError) as caught:
        open_client(uri)
    assert 1 <= len(tries) <= 2
    [line] = str(caught.value).splitlines()
    assert "refused" in line
    assert "***" in line
    assert SECRET not in line


@pytest.mark.parametrize("uri", AWAY)
def test_a_run_whose_store_is_away_says_and_keeps_no_password(
    uri: str, workspace: Path, tiny_spec: RunSpec, capfd: pytest.CaptureFixture[str], impatient: None
) -> None:
    pytest.importorskip("psycopg2")
    folder = workspace / "runs" / tiny_spec.run_id
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.log(0, {"train/reward": 0.5})
    recorder.finish(Outcome(DONE, 0))
    upload_last([folder], uri)
    upload_ended()
    for ask in (lambda: find(uri, "mini", [tiny_spec.run_id]), lambda: upload([folder], uri)):
        with pytest.raises(UserError) as caught:
            ask()
        assert SECRET not in str(caught.value)
    said = capfd.readouterr()
    assert said.err.count("tracking store does not answer") == 1
    assert "`cppo sync` uploads it" in said.err
    assert SECRET not in said.out + said.err + str(caught.value)
    assert files_with(SECRET, workspace) == []


def test_a_run_in_postgres_has_no_password(
    workspace: Path, tiny_spec: RunSpec, postgres: Postgres, new_database: Callable[[], str]
) -> None:
    uri = absolute_uri(new_database())
    folder = workspace / "runs" / tiny_spec.run_id
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.log(0, {"train/reward": 0.5})
    recorder.finish(Outcome(DONE, 0))
    upload_last([folder], uri)
    client = open_client(uri)
    experiment = client.get_experiment_by_name("cppo-mini")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.data.metrics == {"train/reward": 0.5}
    assert postgres.password not in str(run.to_dictionary())
    assert files_with(postgres.password, workspace) == []
    assert postgres.password not in where_to_look(uri, "cppo-mini")


@pytest.mark.parametrize("uri", AWAY)
def test_a_job_on_file_has_no_password_and_finds_it_again(
    uri: str, workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = job(tiny_spec, workspace / "runs", uri)
    written = pickle.dumps(attempt)
    assert SECRET.encode() not in written
    with address.in_the_environment(uri):
        assert pickle.loads(written) == attempt
    assert address.VARIABLE not in os.environ
    with pytest.raises(
        UserError, match=r"the password of tracking store .* is not known here: set MLFLOW_TRACK"
    ):
        pickle.loads(written)
    monkeypatch.setenv(address.VARIABLE, uri.replace("127.0.0.1", "elsewhere"))
    with pytest.raises(UserError, match="is not known here"):
        pickle.loads(written)


def test_a_job_of_a_store_without_password_needs_no_environment(workspace: Path, tiny_spec: RunSpec) -> None:
    attempt = job(tiny_spec, workspace / "runs", "sqlite:////tmp/x.db")
    assert pickle.loads(pickle.dumps(attempt)) == attempt


@pytest.mark.parametrize(
    ("driver", "meant"), [("psycopg2", "postgresql+psycopg2"), ("psycopg", "postgresql+psycopg"), ("", "")]
)
def test_the_driver_that_is_installed_is_used(
    monkeypatch: pytest.MonkeyPatch, driver: str, meant: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in (driver, "asyncpg") or None)
    if driver:
        assert absolute_uri("postgresql://me:pw@host/db") == f"{meant}://me:pw@host/db"
    else:
        with pytest.raises(UserError, match=r"me:\*\*\*@host/db: no driver .*: pip install psycopg2-binary"):
            absolute_uri("postgresql://me:pw@host/db")
    assert absolute_uri("postgresql+asyncpg://host/db") == "postgresql+asyncpg://host/db"
