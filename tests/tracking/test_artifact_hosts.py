"""The password of the tracking server goes to that server alone, whatever address a run's artifacts have."""

import base64
import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from cppo_lab import schema
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client, require_tracking_host
from cppo_lab.tracking.read import StoredFiles, histories, open_store, stored_run
from cppo_lab.tracking.upload import upload
from tests.conftest import FINISHED, Command, user_error
from tests.recorded import sent
from tests.tracking.conftest import Attempt
from tests.tracking.fake_server import RUN, FakeServer, fake_server

PASSWORD = "correct-horse"
BASIC = "Basic " + base64.b64encode(f"user:{PASSWORD}".encode()).decode()
PLACE = "/api/2.0/mlflow-artifacts/artifacts/1"
Servers = tuple[FakeServer, FakeServer]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """The tracking server, and another one that a run names."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "user")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._artifact_repos_cache", {})
    with fake_server() as tracking, fake_server() as other:
        yield tracking, other


Act = Callable[[MlflowClient, Path], object]
ACTS: dict[str, Act] = {
    "download": lambda client, file: client.download_artifacts(RUN, "config.json", str(file.parent)),
    "list": lambda client, file: client.list_artifacts(RUN),
    "read": lambda client, file: StoredFiles(client, RUN).names(),
    "upload": lambda client, file: client.log_artifact(RUN, str(file)),
    "upload text": lambda client, file: client.log_text(RUN, "x", "text.json"),
}
ADDRESSES = (
    "http://{}" + PLACE,
    "HTTP://{}" + PLACE,
    "http://tracking@{}" + PLACE,
    "mlflow-artifacts://{}/1",
)


def do(act: str, uri: str, folder: Path) -> None:
    (folder / "page.html").write_text("x")
    ACTS[act](open_store(uri) if act in ("list", "read") else open_client(uri), folder / "page.html")


@pytest.mark.parametrize(
    "address, header, act",
    [
        *((ADDRESSES[0], BASIC, act) for act in ACTS),
        *((address, BASIC, act) for address in ADDRESSES[1:] for act in ("download", "read")),
        (ADDRESSES[0], f"Bearer {PASSWORD}", "download"),
    ],
)
def test_another_server_is_refused_by_its_name_and_asked_nothing(
    servers: Servers, tmp_path: Path, address: str, header: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if header != BASIC:
        monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", PASSWORD)
    tracking, other = servers
    tracking.artifact_uri = address.format(other.netloc)
    with user_error(rf"artifacts at .*{other.netloc}.* not on the tracking server"):
        do(act, tracking.uri, tmp_path)
    assert (tracking.passwords, other.seen) == ({header}, [])


@pytest.mark.parametrize("act", ACTS)
def test_the_tracking_server_itself_is_asked_with_the_password_which_no_redirection_takes_along(
    servers: Servers, tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking, other = servers
    for address in ("mlflow-artifacts:/1", "mlflow-artifacts://{}/1", "http://{}" + PLACE):
        tracking.artifact_uri = address.format(tracking.netloc)
        tracking.seen.clear()
        do(act, tracking.uri, tmp_path)
        asked = [headers for path, headers in tracking.seen if "mlflow-artifacts" in path]
        assert asked and {headers["Authorization"] for headers in asked} == {BASIC}
    assert other.seen == []
    tracking.artifact_uri, tracking.redirect = "mlflow-artifacts:/1", other.uri
    for user in ("", f"user:{PASSWORD}@"):
        if user:
            monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
        do(act, f"http://{user}{tracking.netloc}", tmp_path)
        assert tracking.passwords == {BASIC}
        assert other.seen and PASSWORD not in repr(other.seen) and other.passwords == set()


def test_the_reader_of_histories_asks_the_tracking_server_in_its_place(
    servers: Servers, caplog: pytest.LogCaptureFixture, workspace: Path
) -> None:
    tracking, other = servers
    tracking.artifact_uri, client = other.uri + PLACE, open_store(tracking.uri)
    assert [name for name, _ in histories(client, [stored_run(client.get_run(RUN))])] == [RUN]
    assert other.netloc in caplog.text and other.seen == []
    assert any("get-history" in path for path, _ in tracking.seen)


def test_a_database_has_no_server_whose_password_could_go_anywhere(
    tiny_spec: RunSpec, folder: Path, attempt: Attempt, servers: Servers, cppo: Command
) -> None:
    """The commands that fetch and send a run's artifacts, with an address that another writer has put in the store."""
    _, other = servers
    attempt(1).finish(FINISHED)
    sent(folder)
    with contextlib.closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("UPDATE runs SET artifact_uri = ?", (f"http://{other.netloc}{PLACE}",))
        store.execute("DELETE FROM tags WHERE key = ?", (schema.TAG_FILES,))
    assert other.netloc in cppo("samples", tiny_spec.run_id[:8], code=2).err
    moved = folder.parent.rename("elsewhere") / folder.name
    (moved / "spool" / "shipped.json").unlink()
    with user_error(other.netloc):
        upload([moved], tracking_uri())
    assert other.seen == []


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
    "http://tra\tcking:5000/a",
    "mlflow-artifacts:\t//other/a",  # urllib drops the tab
    "mlflow-artifacts:/\n/other/a",
]


@pytest.mark.parametrize(
    "artifacts, tracking, refused",
    [
        *((artifacts, HOST, True) for artifacts in OTHERS),
        ("http://tracking/a", "https://tracking", True),
        ("http://tracking:5000/a", "postgresql://user:secret@tracking:5000/db", True),
        ("http://localhost:5000/a", "sqlite:////tmp/mlflow.db", True),
        ("http://tracking:5000/a", HOST, False),
        ("http://TRACKING:5000", f"{HOST}/", False),
        ("https://tracking:443/a", "https://user:secret@tracking/mlflow", False),
        ("http://[::1]:5000/a", "http://[::1]:5000", False),
        ("mlflow-artifacts:/1/a", HOST, False),
        ("mlflow-artifacts:/", "https://tracking", False),
        ("mlflow-artifacts:///1/a", HOST, False),
        ("mlflow-artifacts://tracking/1", "https://tracking", False),
    ],
)
def test_what_is_another_server(artifacts: str, tracking: str, refused: bool) -> None:
    says = "^(?!.*secret).* not on the tracking server"
    with user_error(says) if refused else contextlib.nullcontext():
        require_tracking_host(artifacts, tracking)
