"""No password of a store is printed, recorded or written to a file, whatever becomes of the store."""

import os
import pickle
from pathlib import Path
from unittest.mock import Mock

import pytest
from urllib3.util import connection

from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import DONE, Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import address
from cppo_lab.tracking.address import absolute_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import find
from cppo_lab.tracking.upload import upload
from cppo_lab.tracking.uploader import upload_last
from tests.conftest import user_error
from tests.jobs import job
from tests.recorded import upload_ended
from tests.servers.conftest import found_in

SECRET = "s3cret"
AWAY = [
    f"http://me:{SECRET}@127.0.0.1:1",
    f"postgresql+psycopg2://me:{SECRET}@127.0.0.1:1/db",
    f"postgresql+psycopg2://127.0.0.1:1/db?user=me&password={SECRET}",
]


@pytest.mark.parametrize("uri", AWAY)
def test_a_store_that_is_away_is_named_without_its_password_after_one_more_try_at_most(
    uri: str,
    workspace: Path,
    tiny_spec: RunSpec,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    psycopg2 = pytest.importorskip("psycopg2")
    tries = [Mock(side_effect=psycopg2.connect), Mock(side_effect=connection.create_connection)]
    monkeypatch.setattr(psycopg2, "connect", tries[0])
    monkeypatch.setattr(connection, "create_connection", tries[1])  # for http
    with user_error(r"\*\*\*.*refused") as refused:
        open_client(uri)
    assert 1 <= sum(counted.call_count for counted in tries) <= 2
    monkeypatch.setattr("cppo_lab.tracking.uploader.PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    folder, errors = workspace / "runs" / tiny_spec.run_id, [refused]
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.log(0, {"train/reward": 0.5})
    recorder.finish(Outcome(DONE, 0))
    upload_last([folder], uri)
    upload_ended()
    for ask in (lambda: find(uri, "mini", [tiny_spec.run_id]), lambda: upload([folder], uri)):
        with user_error(r"\*\*\*") as caught:
            ask()
        errors.append(caught)
    printed = capfd.readouterr()
    assert printed.err.count("tracking store does not answer") == 1
    assert "`cppo sync` uploads it" in printed.err
    assert SECRET not in printed.out + printed.err + "".join(str(error.value) for error in errors)
    assert found_in(SECRET, workspace) == []


@pytest.mark.parametrize("uri", [*AWAY, "sqlite:////tmp/x.db"])
def test_a_job_on_file_has_no_password_and_finds_it_again(
    uri: str, workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = job(tiny_spec, workspace / "runs", uri)
    written = pickle.dumps(attempt)
    assert SECRET.encode() not in written
    with address.in_the_environment(uri):
        assert pickle.loads(written) == attempt
    assert address.VARIABLE not in os.environ
    if uri not in AWAY:  # it has no password, and needs no environment
        assert pickle.loads(written) == attempt
        return
    for elsewhere in ("", uri.replace("127.0.0.1", "elsewhere")):
        monkeypatch.setenv(address.VARIABLE, elsewhere)
        message = r"the password of tracking store .* is not known here: set MLFLOW_TRACK"
        with user_error(message):
            pickle.loads(written)


@pytest.mark.parametrize(
    "driver, meant", [("psycopg2", "postgresql+psycopg2"), ("psycopg", "postgresql+psycopg"), ("", "")]
)
def test_the_driver_that_is_installed_is_used(
    monkeypatch: pytest.MonkeyPatch, driver: str, meant: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in (driver, "asyncpg") or None)
    if driver:
        assert absolute_uri("postgresql://me:pw@host/db") == f"{meant}://me:pw@host/db"
    else:
        with user_error(r"me:\*\*\*@host/db: no driver .*: pip install psycopg2-binary"):
            absolute_uri("postgresql://me:pw@host/db")
    assert absolute_uri("postgresql+asyncpg://host/db") == "postgresql+asyncpg://host/db"
