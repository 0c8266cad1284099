"""The password of the tracking server goes to that server alone, whatever address a run's artifacts have."""

import base64
import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

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

PASSWORD = "correct-horse"
BASIC = "Basic " + base64.b64encode(f"user:{PASSWORD}".encode()).decode()
PLACE = "/api/2.0/mlflow-artifacts/artifacts/1"
RUN = "0123456789abcdef0123456789abcdef"


class Server(ThreadingHTTPServer):
    """Answers as a tracking server does that has one run, and remembers every request's headers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, dict[str, str]]] = []  # path and headers
        self.artifact_uri, self.redirect, self.tags = "", "", {schema.TAG_STATUS: schema.DONE}

    @property
    def netloc(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def passwords(self) -> set[str]:
        return {headers["Authorization"] for _, headers in self.seen if "Authorization" in headers}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.path, dict(self.headers)))
        if self.server.redirect and "mlflow-artifacts" in self.path:
            self.send_response(307)
            self.send_header("Location", f"{self.server.redirect}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = json.dumps(self.body()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = answer

    def body(self) -> dict[str, Any]:
        run = {
            "info": {"run_id": RUN, "experiment_id": "1", "artifact_uri": self.server.artifact_uri}
            | {"status": "FINISHED", "lifecycle_stage": "active", "start_time": 1},
            "data": {
                "tags": [{"key": key, "value": value} for key, value in self.server.tags.items()],
                "metrics": [{"key": "m", "value": 1.0, "timestamp": 1, "step": 1}],
            },
        }
        experiment = {"experiment_id": "1", "name": "cppo-mini", "lifecycle_stage": "active"}
        answers = {
            "runs/search": {"runs": [run]},
            "runs/get": {"run": run},
            "experiments/search": {"experiments": [experiment]},
            "experiments/get-by-name": {"experiment": experiment},
        }
        return next((body for end, body in answers.items() if f"/{end}" in self.path), {})

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Server]]:
    """The tracking server, and another one that a run names."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "user")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._artifact_repos_cache", {})
    with Server() as tracking, Server() as other:
        for one in (tracking, other):
            threading.Thread(target=one.serve_forever, daemon=True).start()
        yield tracking, other
        for one in (tracking, other):
            one.shutdown()


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
@pytest.mark.parametrize("address", ADDRESSES)
def test_another_server_is_refused_by_its_name_and_asked_nothing(
    servers: tuple[Server, Server], tmp_path: Path, address: str, act: Callable[[str, Path], None]
) -> None:
    tracking, other = servers
    tracking.artifact_uri = address.format(other.netloc)
    with pytest.raises(UserError, match=rf"artifacts at .*{other.netloc}.* not on the tracking server"):
        act(f"http://{tracking.netloc}", tmp_path)
    assert tracking.passwords == {BASIC}
    assert other.seen == []


def test_a_token_goes_nowhere_else(
    servers: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", PASSWORD)
    tracking, other = servers
    tracking.artifact_uri = f"http://{other.netloc}{PLACE}"
    with pytest.raises(UserError, match=other.netloc):
        download(f"http://{tracking.netloc}", tmp_path)
    assert (tracking.passwords, other.seen) == ({f"Bearer {PASSWORD}"}, [])


@pytest.mark.parametrize("address", ["mlflow-artifacts:/1", "mlflow-artifacts://{}/1", "http://{}" + PLACE])
@pytest.mark.parametrize("act", [download, list_with_reader, upload])
def test_the_tracking_server_itself_is_asked_with_the_password(
    servers: tuple[Server, Server], tmp_path: Path, address: str, act: Callable[[str, Path], None]
) -> None:
    tracking, other = servers
    tracking.artifact_uri = address.format(tracking.netloc)
    act(f"http://{tracking.netloc}", tmp_path)
    asked = [headers for path, headers in tracking.seen if "mlflow-artifacts" in path]
    assert asked and {headers["Authorization"] for headers in asked} == {BASIC}
    assert other.seen == []


@pytest.mark.parametrize("user", ["", f"user:{PASSWORD}@"])
@pytest.mark.parametrize("act", [download, list_with_reader, upload])
def test_a_redirection_takes_no_password_along(
    servers: tuple[Server, Server],
    tmp_path: Path,
    act: Callable[[str, Path], None],
    user: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if user:
        monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    tracking, other = servers
    tracking.artifact_uri, tracking.redirect = "mlflow-artifacts:/1", f"http://{other.netloc}"
    act(f"http://{user}{tracking.netloc}", tmp_path)
    assert tracking.passwords == {BASIC}
    assert other.seen and PASSWORD not in repr(other.seen) and other.passwords == set()


def test_the_reader_of_histories_asks_the_tracking_server_in_its_place(
    servers: tuple[Server, Server], caplog: pytest.LogCaptureFixture, workspace: Path
) -> None:
    tracking, other = servers
    tracking.artifact_uri, uri = f"http://{other.netloc}{PLACE}", f"http://{tracking.netloc}"
    run: Run = open_store(uri).get_run(RUN)
    assert [name for name, _ in histories(open_store(uri), [stored_run(run)])] == [RUN]
    assert other.netloc in caplog.text and other.seen == []
    assert any("get-history" in path for path, _ in tracking.seen)


def recorded(spec: RunSpec, folder: Path) -> None:
    recorder = Recorder(spec, {}, folder)
    recorder.begin(None)
    recorder.log(1, {"train/reward": 0.5})
    recorder.finish(Outcome(schema.DONE, 4))


def test_a_database_has_no_server_whose_password_could_go_anywhere(
    tiny_spec: RunSpec, workspace: Path, servers: tuple[Server, Server], capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that fetch and send a run's artifacts, with an address that another writer has put in the store."""
    _, other = servers
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    recorded(tiny_spec, folder)
    sent(folder)
    with contextlib.closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("UPDATE runs SET artifact_uri = ?", (f"http://{other.netloc}{PLACE}",))
    assert main(["samples", tiny_spec.run_id[:8]]) == 2
    assert other.netloc in capsys.readouterr().err
    folder.rename(workspace / "elsewhere")
    main(["samples", tiny_spec.run_id])
    assert other.netloc in capsys.readouterr().err
    moved = workspace / "elsewhere"
    (moved / "spool" / "shipped.json").unlink()
    with contextlib.closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("DELETE FROM tags WHERE key = ?", (schema.TAG_FILES,))
    with pytest.raises(UserError, match=other.netloc):
        upload_module.upload([moved], f"sqlite:///{workspace}/mlflow.db")
    assert len(mlflow_runs()) == 1 and other.seen == []


TRACKING = "http://tracking:5000"


@pytest.mark.parametrize(
    ("artifacts", "tracking"),
    [
        ("http://other:5000/a", TRACKING),
        ("http://tracking:5001/a", TRACKING),
        ("https://tracking:5000/a", TRACKING),
        ("http://tracking/a", "https://tracking"),
        ("http://other\\@tracking:5000/a", TRACKING),  # urllib reads `tracking`, urllib3 `other`
        ("http://other#@tracking:5000/a", TRACKING),
        ("http://tracking:5000@other/a", TRACKING),
        ("http://tracking:5000.other/a", TRACKING),
        ("http://tra\tcking:5000/a", TRACKING),
        ("http://:5000/a", TRACKING),
        ("http://tracking:99999/a", TRACKING),
        ("http://[tracking:5000/a", TRACKING),
        ("mlflow-artifacts://other:5000/a", TRACKING),
        ("mlflow-artifacts://tracking/a", TRACKING),
        ("mlflow-artifacts://other\\@tracking:5000/a", TRACKING),
        ("http://tracking:5000/a", "postgresql://user:secret@tracking:5000/db"),
        ("http://localhost:5000/a", "sqlite:////tmp/mlflow.db"),
        ("https:a", TRACKING),
        ("mlflow-artifacts:\t//other/a", TRACKING),  # urllib drops the tab
        ("mlflow-artifacts:/\n/other/a", TRACKING),
        ("MLFLOW-ARTIFACTS://other/a", TRACKING),
    ],
)
def test_what_is_another_server(artifacts: str, tracking: str) -> None:
    with pytest.raises(UserError, match="not on the tracking server") as refused:
        require_tracking_host(artifacts, tracking)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("artifacts", "tracking"),
    [
        ("http://tracking:5000/a", TRACKING),
        ("http://TRACKING:5000", f"{TRACKING}/"),
        ("https://tracking:443/a", "https://user:secret@tracking/mlflow"),
        ("http://[::1]:5000/a", "http://[::1]:5000"),
        ("mlflow-artifacts:/1/a", TRACKING),
        ("mlflow-artifacts:/", "https://tracking"),
        ("mlflow-artifacts:///1/a", TRACKING),
        ("mlflow-artifacts://tracking/1", "https://tracking"),
    ],
)
def test_what_is_the_same_server(artifacts: str, tracking: str) -> None:
    require_tracking_host(artifacts, tracking)
