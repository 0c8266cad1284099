"""Opening the store: it is made whole or not at all, what must exist once is made once, an interruption leaves the file
to those who handle it, and whatever a store answers is one line in time.
"""

import contextlib
import importlib
import os
import re
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils as db_utils
from mlflow.store.db.utils import InitialBase, _upgrade_db
from mlflow.telemetry import utils as telemetry
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from cppo_lab import tracking
from cppo_lab.errors import StoreAway, UserError, deferred
from cppo_lab.tracking.client import (
    create_atomically,
    deferred_for,
    ensure_experiment,
    exclusive,
    fault_line,
    may_fail,
    open_client,
)
from cppo_lab.tracking.page import ensure_parent, register
from cppo_lab.tracking.read import find, newest_runs, reading
from tests.conftest import user_error
from tests.tracking.fake_server import FakeServer, fake_server


def test_a_half_made_store_of_other_programs_is_recognised(tmp_path: Path) -> None:
    """As `mlflow server`, or version 0.1.0 of this program, leave it when they are killed: it is used, or refused."""
    engine, number = db_utils.create_sqlalchemy_engine(f"sqlite:///{tmp_path}/whole.db"), count(1)

    def as_a_kill_leaves_it(*_: object) -> None:
        if (statement := next(number)) % 360 == 0:
            for path in tmp_path.glob("whole.db*"):  # and its journal
                shutil.copy(path, path.with_name(path.name.replace("whole", str(statement))))

    event.listen(engine, "before_cursor_execute", as_a_kill_leaves_it)
    InitialBase.metadata.create_all(engine)
    _upgrade_db(engine)
    used = set[bool]()
    for path in tmp_path.glob("[0-9]*.db"):
        try:
            client = open_client(f"sqlite:///{path}")
            client.set_terminated(client.create_run(client.create_experiment("next")).info.run_id)
            used.add(True)
        except UserError as error:
            assert re.search("is incomplete.*remove it", str(error))
            used.add(False)
    assert used == {True, False}


def test_a_file_is_made_once_and_whole(tmp_path: Path) -> None:
    """A failure, as a kill (`make chaos-short`), leaves nothing that the next one takes for whole."""
    path, other = tmp_path / "x.db", tmp_path / "y.db.0badcafe.new"

    def fail(beside: Path) -> None:
        beside.write_text("half")
        raise OSError("disk full")

    for leftover in (tmp_path / "x.db.0badcafe.new", tmp_path / "x.db.0badcafe.new-journal", other):
        leftover.write_text("half")
    with pytest.raises(OSError, match="disk full"):
        create_atomically(path, fail)
    assert list(tmp_path.iterdir()) == [other]
    create_atomically(path, lambda beside: beside.write_text("mine") and None)
    create_atomically(path, fail)
    assert path.read_text() == "mine" and set(tmp_path.iterdir()) == {path, other}


def interrupted_everywhere(database: Path, call: Callable[[], object]) -> int:
    """Send Ctrl-C behind each SQL statement of `call` in turn, and see the file free while that is handled; returns how
    many statements there are.
    """
    sent, at = list[str](), 0

    def behind(connection: object, cursor: object, text: str, *_: object) -> None:
        sent.append(text)
        if len(sent) == at:
            signal.raise_signal(signal.SIGINT)

    event.listen(Engine, "after_cursor_execute", behind)
    try:
        while True:
            sent.clear()
            at += 1
            try:
                call()
            except KeyboardInterrupt:
                with contextlib.closing(sqlite3.connect(database, timeout=0)) as another:
                    another.execute("BEGIN EXCLUSIVE")
            else:
                assert len(sent) < at
                return len(sent)
    finally:
        event.remove(Engine, "after_cursor_execute", behind)


def test_an_interrupted_action_leaves_the_file_free(uri: str, tmp_path: Path) -> None:
    """Whoever handles the interruption writes to the store: how a run or a trial ended."""
    client = open_client(uri)
    number = ensure_experiment(client, "mini")
    parent = ensure_parent(client, number, "other")

    def deferred_action() -> None:
        with deferred_for(uri):
            client.set_tag(parent, "a", "b")

    for action in (
        deferred_action,
        lambda: register(client, parent, ("{}", "digest"), "", "none"),
        lambda: ensure_experiment(client, "another"),
        lambda: ensure_parent(client, number, "main"),
    ):
        assert interrupted_everywhere(tmp_path / "mlflow.db", action) > 2


def test_an_experiment_that_another_process_has_made_meanwhile_is_taken(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a server, where nothing keeps two launchers apart."""
    client = open_client(uri)
    number = ensure_experiment(client, "mini")
    look, looks = MlflowClient.get_experiment_by_name, iter([lambda *_: None])
    monkeypatch.setattr(
        "mlflow.MlflowClient.get_experiment_by_name", lambda *given: next(looks, look)(*given)
    )
    assert ensure_experiment(client, "mini") == number
    with pytest.raises(MlflowException, match=r"[Ii]nvalid"):
        ensure_experiment(client, "")


def test_an_interruption_does_not_wait_for_a_server() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_for("http://host:5000"), exclusive("http://host:5000"):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError


def test_a_signal_waits_for_the_outermost_block_of_the_main_thread_and_is_then_handled_as_before() -> None:
    before, seen = signal.getsignal(signal.SIGINT), list[object]()

    def look() -> None:
        with deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    with pytest.raises(KeyboardInterrupt), deferred():
        with deferred():
            signal.raise_signal(signal.SIGINT)
            seen.append("inner")
        seen.append("outer")
    assert [*seen, signal.getsignal(signal.SIGINT)] == [before, "inner", "outer", before]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with fake_server() as server:
        yield server


WRONG = (
    "[]", "null", "5", "no json", "\udcff", '{"error_code": [1], "message": {}}', '{"experiments": "x"}',
    '{"experiments": [{"experiment_id": {}}]}', '{"experiment": 3}', '{"runs": 5}', '{"runs": [{"info": []}]}',
    '{"runs": [{"info": {"start_time": "soon"}}]}',
    '{"runs": [{"data": {"tags": [{"key": "cppo.run_id", "value": 3}]}}]}', '{"next_page_token": 5}',
)  # fmt: skip


@pytest.mark.parametrize("endpoint", ["experiments/search", "experiments/get-by-name", "runs/search"])
@pytest.mark.parametrize("status", [200, 400])
def test_whatever_a_server_answers_is_one_line(
    server: FakeServer, endpoint: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = server.uri
    server.endpoint, server.status = endpoint, status

    def listing() -> None:
        with reading(uri) as client:
            list(newest_runs(client, "cppo-mini"))

    refused = 0
    for answer in WRONG:
        server.answer = answer.encode(errors="surrogateescape")
        for act in (lambda: open_client(uri), listing, lambda: find(uri, "mini", ["r"])):
            try:
                act()
            except UserError as error:
                assert "\n" not in str(error) and "127.0.0.1" in str(error)
                refused += 1
    assert refused > len(WRONG) / 2
    if (endpoint, status) == ("experiments/get-by-name", 200):  # of another service, or a proxy
        server.answer = b'{"status": "ok"}'
        with pytest.raises(StoreAway, match="its answer is not MLflow's"):
            find(uri, "mini", ["r"])
    assert "Traceback" not in capsys.readouterr().err


def test_no_question_waits_for_days(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = server.uri
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    server.endpoint, server.status, server.headers = "search", 429, {"Retry-After": "86400"}
    with user_error("cannot be used: it answers with HTTP error 429: check"):
        open_client(uri)
    assert len(server.seen) == 2
    server.endpoint, server.slow = "", True  # a byte now and then: no single wait is long
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr("cppo_lab.tracking.read.SILENCE_SECONDS", 1.0)
    with pytest.raises(StoreAway, match="cannot be read: it has not answered within 1 seconds: check"):
        find(uri, "mini", ["r"])
    with user_error("cannot be used: it has not answered within 3 seconds: check"):
        open_client(uri)


@pytest.mark.parametrize("fault", [ValueError, TypeError, KeyError, AttributeError])
def test_a_fault_of_our_own_code_is_none_of_the_store(
    fault: type[Exception], uri: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Mock(side_effect=fault("ours"))
    with pytest.raises(fault, match="ours"), may_fail("nothing"), reading(uri) as client:
        client.search_experiments()
        ours()
    monkeypatch.setattr("mlflow.MlflowClient.search_experiments", ours)  # reading an answer
    with user_error(r"its answer is not MLflow's \('?ours'?\): check"):
        open_client(server.uri)


def test_a_relative_address_and_the_shell_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
    for _ in range(2):
        client = open_client("sqlite:///relative.db")
    with pytest.raises(MlflowException, match="nowhere"):  # not later, in a thread
        client.log_batch("nowhere", metrics=[Metric("a", 1.0, 0, 0)])


def test_a_server_that_forgets_a_parent_gets_one(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_client(uri)
    monkeypatch.setattr("mlflow.MlflowClient.search_runs", lambda *_, **__: [])
    assert client.get_run(ensure_parent(client, "0", "s")).info.status == "FINISHED"


FAULT = OperationalError("INSERT INTO metrics VALUES (?)", [("secret",)] * 1000, Exception("disk I/O error"))
ADVICE = "(raised as a result of Query-invoked autoflush; consider a session.no_autoflush block)"


@pytest.mark.parametrize(
    "error, line",
    [
        (FAULT, "(builtins.Exception) disk I/O error"),
        (MlflowException(FAULT), "(builtins.Exception) disk I/O error"),
        (OSError("(host='h', port=1): Read timed out. (read timeout=30)"), "it does not answer: timed out"),
        (OSError(f"{ADVICE} (sqlite3.OperationalError) read-only"), "(sqlite3.OperationalError) read-only"),
    ],
)
def test_a_fault_is_told_without_its_statement_and_parameters(error: Exception, line: str) -> None:
    assert fault_line(error) == line


@pytest.mark.parametrize("wish, off", [({}, True), ({"MLFLOW_DISABLE_TELEMETRY": "false"}, False)])
def test_mlflow_reports_its_use_to_nobody_unless_the_user_wishes_it(
    wish: dict[str, str], off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.telemetry.utils._IS_IN_CI_ENV_OR_TESTING", False)
    monkeypatch.setattr("os.environ", {**wish})
    importlib.reload(tracking)  # as in a new process
    assert telemetry.is_telemetry_disabled() == off


@pytest.mark.parametrize(("level", "kept"), [("warn", "warn"), ("30", None), ("nonsense", None)])
def test_a_level_that_ends_the_import_of_mlflow_is_dropped(
    level: str, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", level)
    importlib.reload(tracking)
    assert os.environ.get("MLFLOW_LOGGING_LEVEL") == kept
