"""`cppo ui`: where it listens, what it says, and that nothing of it stays behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.store import tracking_uri
from cppo_lab.tracking import page_server
from cppo_lab.tracking.client import ensure_experiment, open_client, where_to_look
from tests.waiting import CEILING_SECONDS


def processes_of(text: str) -> list[str]:
    """Command lines that contain `text`, or whose environment does."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in line:
            found.append(folder.name)
    return found


def empty_store() -> str:
    uri = tracking_uri()
    ensure_experiment(open_client(uri), uri, "cppo-mini")
    return uri


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_ended_and_leaves_nothing(workspace: Path, number: int) -> None:
    uri = empty_store()
    with subprocess.Popen(
        [sys.executable, "-m", "cppo_lab.cli", "ui"],
        env=os.environ | {"MLFLOW_TRACKING_URI": uri},
        stdout=subprocess.PIPE,
        text=True,
        # Children inherit it: the tests may be in the background of a script, where SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as served:
        assert served.stdout is not None
        title, link = served.stdout.readline(), served.stdout.readline().strip()
        assert title.startswith("cppo-mini")
        found = re.match(r"(http://127\.0\.0\.1:\d+)/#/experiments/1/runs\?", link)
        assert found, link
        with urllib.request.urlopen(found[1], timeout=CEILING_SECONDS) as answer:
            assert b"<title>MLflow</title>" in answer.read()
        assert len(processes_of(uri)) > 1
        served.send_signal(number)
        assert served.wait(CEILING_SECONDS) == 0
    assert processes_of(uri) == []


@pytest.mark.slow
def test_two_that_start_at_once_take_two_ports(workspace: Path) -> None:
    served = []
    for name in ("one", "two"):
        uri = f"sqlite:///{workspace}/{name}.db"
        ensure_experiment(open_client(uri), uri, f"cppo-{'mini' if name == 'one' else 'verl'}")
        served.append(
            subprocess.Popen(
                [sys.executable, "-m", "cppo_lab.cli", "ui"],
                env=os.environ | {"MLFLOW_TRACKING_URI": uri},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        titles, links = zip(
            *((one.stdout.readline(), one.stdout.readline().strip()) for one in served), strict=True
        )
        assert (titles[0].split()[0], titles[1].split()[0]) == ("cppo-mini", "cppo-verl")
        assert len({link.partition("/#")[0] for link in links}) == 2
        assert [one.poll() for one in served] == [None, None]
    finally:
        for one in served:
            one.terminate()
        assert [one.wait(CEILING_SECONDS) for one in served] == [0, 0]


def test_a_server_is_only_pointed_at(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = empty_store()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@host:5000/")
    monkeypatch.setattr("cppo_lab.tracking.client.open_client", lambda _, real=open_client: real(uri))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started a server"))
    assert main(["ui"]) == 0
    said = capsys.readouterr()
    assert "host:5000/#/experiments/1/runs?" in said.out
    assert "secret" not in said.out + said.err


def test_mistakes_are_named(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui"]) == 2
    assert "mlflow.db does not exist" in capsys.readouterr().err
    empty_store()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "--port", str(port)]) == 2
        assert f"port {port} of 127.0.0.1 is taken" in capsys.readouterr().err
        monkeypatch.setattr(page_server, "PORTS", range(port, port + 1))
        assert main(["ui"]) == 2
        assert "choose another with --port" in capsys.readouterr().err
    assert main(["ui", "--host", "no.such.host.invalid"]) == 2
    assert "--host no.such.host.invalid" in capsys.readouterr().err


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(UserError, match=r"pip install 'cppo-lab\[ui\]'"):
        page_server.require_mlflow_server()


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, alone: bool) -> None:
    assert page_server.is_loopback(host) == alone


def test_a_launch_says_how_to_look(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = empty_store()
    assert where_to_look(uri, "cppo-mini") == "cppo ui"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    assert where_to_look(uri, "cppo-mini") == f"MLFLOW_TRACKING_URI={uri} cppo ui"
