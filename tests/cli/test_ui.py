"""`cppo ui`: where it listens and what it says; with a real server it answers until it is ended, and leaves nothing."""

import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from cppo_lab.cli import ui
from cppo_lab.errors import UserError
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.page import where_to_look
from dev.servers.group import free_port
from tests.conftest import Command, user_error
from tests.waiting import CEILING_SECONDS


def empty_store() -> str:
    uri = tracking_uri()
    ensure_experiment(open_client(uri), "cppo-mini")
    return uri


def test_a_server_is_only_pointed_at(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = empty_store()
    ensure_experiment(open_client(uri), "cppo-exact")
    monkeypatch.setattr("webbrowser.open", opened := Mock())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@host:5000/")
    monkeypatch.setattr("cppo_lab.tracking.client.open_client", lambda _, real=open_client: real(uri))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("started a server"))
    said = cppo("ui --open")
    assert "host:5000/#/experiments/1/runs?" in said.out
    assert "compare-experiments/s?experiments=%5B%22" in said.out
    assert opened.call_args.args[0] in said.out
    assert "secret" not in said.out + said.err


def test_mistakes_are_named(cppo: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_store()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("cppo_lab.cli.ui.PORTS", range(port, port + 1))
        for words, message in (
            (f"--port {port}", f"port {port} of 127.0.0.1 is taken"),
            ("", "choose another with --port"),
            ("--host no.such.host.invalid", "--host no.such.host.invalid"),
        ):
            assert message in cppo(f"ui {words}", code=2).err


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cppo_lab.cli.ui.metadata.distribution", Mock(side_effect=metadata.PackageNotFoundError)
    )
    with user_error("package 'mlflow' .* is not installed: install this package again with its extra 'ui'"):
        ui.require_mlflow_server()


def test_what_only_this_machine_reaches() -> None:
    hosts = ("127.0.0.1", "127.1.2.3", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1", "example.org")
    assert [host for host in hosts if ui.is_loopback(host)] == list(hosts[:4])
    assert ui._served_at("0.0.0.0", 5000) == "http://127.0.0.1:5000"


def test_a_launch_says_how_to_look(workspace: Path) -> None:
    """At another store: tests/hostile/test_injection.py."""
    assert where_to_look(empty_store(), "cppo-mini") == "cppo ui"
    # A server that is away ends no command whose runs are over.
    assert where_to_look("http://u:secret@127.0.0.1:1", "cppo-mini") == "http://u:***@127.0.0.1:1"


def test_a_report_is_opened_with_the_address_of_mlflow(tmp_path: Path) -> None:
    with user_error("no report is there"):
        ui.report_link(tmp_path, "http://localhost:5000")
    (tmp_path / "index.html").write_text("<p>")
    [(_, link)] = ui.report_link(tmp_path, "http://localhost:5000")
    assert link == f"{(tmp_path / 'index.html').as_uri()}?mlflow=http%3A%2F%2Flocalhost%3A5000"


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    """In place of MLflow's server there is one that ends, with a reason, when asked."""
    os.mkfifo(ending := tmp_path / "ending")
    code = f"print('INFO'); open({str(ending)!r}).read(); print('address in use')"
    monkeypatch.setattr(
        "subprocess.Popen",
        lambda _, real=subprocess.Popen, **options: real([sys.executable, "-c", code], **options),
    )
    return lambda: ending.write_text("x")


STORE, HOST = "sqlite:///x.db", "127.0.0.1"


def test_what_fails_while_the_server_starts_ends_it(tell: object) -> None:
    away = Mock(side_effect=UserError("the store is away"))
    before = len(psutil.Process().children(recursive=True))
    with user_error("the store is away"), ui.serving(STORE, HOST, free_port(), away):
        pass
    assert away.called and len(psutil.Process().children(recursive=True)) == before


def test_a_server_that_ends_says_why(tell: Callable[[], int]) -> None:
    """One that does not start, and one whose port another has taken meanwhile."""
    with user_error("did not start: address in use"), ui.serving(STORE, HOST, free_port(), tell):
        pass
    with (
        socket.create_server((HOST, 0)) as other,
        ui.serving(STORE, HOST, other.getsockname()[1]) as last_words,
    ):
        tell()
        assert last_words() == "address in use"


def processes_of(text: str) -> list[psutil.Process]:
    """Processes whose environment has `text`."""
    return [
        process
        for process in psutil.process_iter(["environ"])
        if text in (process.info["environ"] or {}).values()
    ]


@pytest.mark.slow
def test_it_serves_until_it_is_terminated_and_leaves_nothing(workspace: Path) -> None:
    """Until Ctrl-C: tests/browser/conftest.py."""
    uri = empty_store()
    with subprocess.Popen(
        [sys.executable, "-m", "cppo_lab.cli", "ui"],
        env=os.environ | {"MLFLOW_TRACKING_URI": uri},
        stdout=subprocess.PIPE,
        text=True,
    ) as served:
        title, link = served.stdout.readline(), served.stdout.readline().strip()
        assert title.startswith("cppo-mini")
        found = re.match(r"(http://127\.0\.0\.1:\d+)/#/experiments/1/runs\?", link)
        assert found, link
        with urllib.request.urlopen(found[1], timeout=CEILING_SECONDS) as answer:
            assert b"<title>MLflow</title>" in answer.read()
        assert len(processes_of(uri)) > 1
        served.terminate()
        assert served.wait(CEILING_SECONDS) == 0
    assert processes_of(uri) == []
