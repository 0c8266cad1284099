"""The password of the tracking server goes to that server alone, whatever address a run's artifacts have."""

import base64
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import upload as upload_module
from cppo_lab.tracking.client import open_client, require_tracking_host
from cppo_lab.tracking.read import histories, open_store, stored_run
from tests.launch.test_launch import mlflow_runs
from tests.recorded import sent
from tests.tracking.fake_server import RUN, FakeServer, fake_server

PASSWORD = "correct-horse"
BASIC = "Basic " + base64.b64encode(f"user:{PASSWORD}".encode()).decode()
PLACE = "/api/2.0/mlflow-artifacts/artifacts/1"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeServer, FakeServer]]:
    """The tracking server, and another one that a run names."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "user")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._artifact_repos_cache", {})
    with fake_server() as tracking, fake_server() as other:
        yield tracking, other


def download(uri: str, folder: Path) -> None:
    open_client(uri).download_artifacts(RUN, "config.json", str(folder))


def list_with_reader(uri: str, folder: Path) -> None:
    open_store(uri).list_artifacts(RUN)


def upload(uri: str, folder: Path) -> None:
    (folder / "page.html").write_text("x")
    open_client(uri).log_artifact(RUN, str(folder / "page.html"))


def upload_text(uri: str, folder: Path) -> None:
    open_client(uri).log_text(RUN, "x", "text.json")


ADDRESSES = (
    "http://{}" + PLACE,
    "HTTP://{}" + PLACE,
    "http://tracking@{}" + PLACE,
    "mlflow-artifacts://{}/1",
)


@pytest.mark.parametrize("act", [download, list_with_reader, upload, upload_text])
@pytest.mark.parametrize(
    ("address", "header"),
    [*((address, BASIC) for address in ADDRESSES), (ADDRESSES[0], f"Bearer {PASSWORD}")],
)
def test_another_server_is_refused_by_its_name_and_asked_nothing(
    servers: tuple[FakeServer, FakeServer],
    tmp_path: Path,
    address: str,
    header: str,
    act: Callable[[str, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if header != BASIC:
        monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", PASSWORD)
    tracking, other = servers
    tracking.artifact_uri = address.format(other.netloc)
    with pytest.raises(UserError, match=rf"artifacts at .*{other.netloc}.* not on the tracking server"):
        act(tracking.uri, tmp_path)
    assert (tracking.passwords, other.seen) == ({header}, [])


@pytest.mark.parametrize("address", ["mlflow-artifacts:/1", "mlflow-artifacts://{}/1", "http://{}" + PLACE])
@pytest.mark.parametrize("act", [download, list_with_reader, upload])
def test_the_tracking_server_itself_is_asked_with_the_password(
    servers: tuple[FakeServer, FakeServer], tmp_path: Path, address: str, act: Callable[[str, Path], None]
) -> None:
    tracking, other = servers
    tracking.artifact_uri = address.format(tracking.netloc)
    act(tracking.uri, tmp_path)
    asked = [headers for path, headers in tracking.seen if "mlflow-artifacts" in path]
    assert asked and {headers["Authorization"] for headers in asked} == {BASIC}
    assert other.seen == []


@pytest.mark.parametrize("user", ["", f"user:{PASSWORD}@"])
@pytest.mark.parametrize("act", [download, list_with_reader, upload])
def test_a_redirection_takes_no_password_along(
    servers: tuple[FakeServer, FakeServer],
    tmp_path: Path,
    act: Callable[[str, Path], None],
    user: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if user:
        monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    tracking, other = servers
    tracking.artifact_uri, tracking.redirect = "mlflow-artifacts:/1", other.uri
    act(f"http://{user}{tracking.netloc}", tmp_path)
    assert tracking.passwords == {BASIC}
    assert other.seen and PASSWORD not in repr(other.seen) and other.passwords == set()


def test_the_reader_of_histories_asks_the_tracking_server_in_its_place(
    servers: tuple[FakeServer, FakeServer], caplog: pytest.LogCaptureFixture, workspace: Path
) -> None:
    tracking, other = servers
    tracking.artifact_uri, client = other.uri + PLACE, open_store(tracking.uri)
    assert [name for name, _ in histories(client, [stored_run(client.get_run(RUN))])] == [RUN]
    assert other.netloc in caplog.text and other.seen == []
    assert any("get-history" in path for path, _ in tracking.seen)


def test_a_database_has_no_server_whose_password_could_go_anywhere(
    tiny_spec: RunSpec,
    workspace: Path,
    servers: tuple[FakeServer, FakeServer],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands that fetch and send a run's artifacts, with an address that another writer has put in the store."""
    _, other = servers
    folder = workspace / "runs" / tiny_spec.run_id
    recorder = Recorder(tiny_spec, {}, folder)
    recorder.begin(None)
    recorder.log(1, {"train/reward": 0.5})
    recorder.finish(Outcome(schema.DONE, 4))
    sent(folder)
    with contextlib.closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("UPDATE runs SET artifact_uri = ?", (f"http://{other.netloc}{PLACE}",))
    assert main(["samples", tiny_spec.run_id[:8]]) == 2
    assert other.netloc in capsys.readouterr().err
    folder.rename(workspace / "elsewhere")
    moved = workspace / "elsewhere"
    (moved / "spool" / "shipped.json").unlink()
    with contextlib.closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("DELETE FROM tags WHERE key = ?", (schema.TAG_FILES,))
    with pytest.raises(UserError, match=other.netloc):
        upload_module.upload([moved], f"sqlite:///{workspace}/mlflow.db")
    assert len(mlflow_runs()) == 1 and other.seen == []


HOST = "http://tracking:5000"
# Of a backslash, urllib reads `tracking`, urllib3 `other`.
OTHERS = [
    "http://other:5000/a",
    "http://tracking:5001/a",
    "https://tracking:5000/a",
    "http://tracking:5000@other/a",
    "http://:5000/a",
    "http://tracking:5000.other/a",
    "http://tracking:99999/a",
    "http://[tracking:5000/a",
    "mlflow-artifacts://other:5000/a",
    "https:a",
    "mlflow-artifacts://tracking/a",
    "mlflow-artifacts://other\\@tracking:5000/a",
    "MLFLOW-ARTIFACTS://other/a",
    "http://other\\@tracking:5000/a",
    "http://other#@tracking:5000/a",
]


@pytest.mark.parametrize(
    ("artifacts", "tracking"),
    [
        *((artifacts, HOST) for artifacts in OTHERS),
        ("http://tra\tcking:5000/a", HOST),
        ("mlflow-artifacts:\t//other/a", HOST),  # urllib drops the tab
        ("mlflow-artifacts:/\n/other/a", HOST),
        ("http://tracking/a", "https://tracking"),
        ("http://tracking:5000/a", "postgresql://user:secret@tracking:5000/db"),
        ("http://localhost:5000/a", "sqlite:////tmp/mlflow.db"),
    ],
)
def test_what_is_another_server(artifacts: str, tracking: str) -> None:
    with pytest.raises(UserError, match="not on the tracking server") as refused:
        require_tracking_host(artifacts, tracking)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("artifacts", "tracking"),
    [
        ("http://tracking:5000/a", HOST),
        ("http://TRACKING:5000", f"{HOST}/"),
        ("https://tracking:443/a", "https://user:secret@tracking/mlflow"),
        ("http://[::1]:5000/a", "http://[::1]:5000"),
        ("mlflow-artifacts:/1/a", HOST),
        ("mlflow-artifacts:/", "https://tracking"),
        ("mlflow-artifacts:///1/a", HOST),
        ("mlflow-artifacts://tracking/1", "https://tracking"),
    ],
)
def test_what_is_the_same_server(artifacts: str, tracking: str) -> None:
    require_tracking_host(artifacts, tracking)
