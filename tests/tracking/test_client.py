"""Opening the store: it is made whole or not at all, what must exist once is made once, an interruption leaves the file
to those who handle it, and whatever a store answers is one line in time.
"""

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import optuna
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils as db_utils
from mlflow.store.db.utils import InitialBase, _upgrade_db
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from cppo_lab.errors import UserError
from cppo_lab.search.study import open_storage
from cppo_lab.signals import deferred
from cppo_lab.tracking import address
from cppo_lab.tracking import client as client_module
from cppo_lab.tracking.client import (
    create_atomically,
    deferred_for,
    ensure_experiment,
    exclusive,
    fault_line,
    open_client,
    require_health,
)
from cppo_lab.tracking.parents import ensure_parent, register
from cppo_lab.tracking.read import experiment_runs, find, reading
from tests.tracking.fake_server import ENDPOINTS, FakeServer, fake_server
from tests.waiting import CEILING_SECONDS, until

MOMENTS = 20


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def with_mlflows_own_tables(engine: Engine) -> None:
    """As MLflow makes them; in other tests they are copied from a template."""
    InitialBase.metadata.create_all(engine)
    _upgrade_db(engine)


def in_a_child(
    act: Callable[[], object], kill_at: int = 0, statements: Path | None = None, copied: bool = False
) -> int | None:
    """The exit code of a process that acts and is killed before its SQL statement of that number.

    How many there are goes to the file `statements`. `copied`: tables come from the template, as in other tests.
    """

    def run() -> None:
        number = count(1)
        if not copied:
            db_utils._initialize_tables = with_mlflows_own_tables
        event.listen(
            Engine,
            "before_cursor_execute",
            lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(number) == kill_at else None,
        )
        try:
            act()
        except UserError as error:
            os._exit(2 if "is incomplete" in str(error) and "remove it" in str(error) else 3)
        if statements is not None:
            statements.write_text(str(next(number) - 1))
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return process.exitcode


def use(kind: str, uri: str) -> None:
    """What a launch does with its store, in short."""
    if kind == "mlflow":
        client = open_client(uri)
        client.set_terminated(client.create_run(client.create_experiment("next")).info.run_id)
    else:
        optuna.create_study(storage=open_storage(uri), study_name="next").ask()


@pytest.mark.parametrize("kind", ["mlflow", "optuna"])
def test_a_kill_at_twenty_moments_leaves_a_store_that_the_next_launch_can_use(
    tmp_path: Path, kind: str
) -> None:
    open_client(f"sqlite:///{tmp_path / 'template.db'}")  # so that children have one to copy
    path, counted = tmp_path / f"{kind}.db", tmp_path / "counted"
    uri = f"sqlite:///{path}"

    def make() -> None:
        open_client(uri) if kind == "mlflow" else open_storage(uri)

    assert in_a_child(make, statements=counted) == 0
    statements = int(counted.read_text())
    assert statements > 2 * MOMENTS
    path.unlink()
    results = {}
    for moment in range(MOMENTS):
        number = 1 + moment * (statements - 1) // (MOMENTS - 1)  # the first, the last, and between them
        assert in_a_child(make, kill_at=number) == -signal.SIGKILL
        results[number] = in_a_child(lambda: use(kind, uri), copied=True)
        assert list(tmp_path.glob("*.new*")) == []
        path.unlink()
    assert set(results.values()) == {0}, results


def test_a_half_made_store_of_other_programs_is_recognised(tmp_path: Path, uri: str) -> None:
    """As `mlflow server`, or version 0.1.0 of this program, leave it when they are killed: it is used, or refused."""
    open_client(f"sqlite:///{tmp_path / 'template.db'}")

    def as_mlflow() -> None:
        with_mlflows_own_tables(db_utils.create_sqlalchemy_engine(uri))

    assert in_a_child(as_mlflow, statements=tmp_path / "counted") == 0
    statements, results = int((tmp_path / "counted").read_text()), {}
    for part in range(1, 10):
        (tmp_path / "mlflow.db").unlink()
        assert in_a_child(as_mlflow, kill_at=part * statements // 10) == -signal.SIGKILL
        results[part] = in_a_child(lambda: use("mlflow", uri), copied=True)
    assert set(results.values()) <= {0, 2} and 2 in results.values(), results


def test_a_file_is_made_once_and_whole(tmp_path: Path) -> None:
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


def _ended(*threads: threading.Thread) -> bool:
    for thread in threads:
        thread.join(timeout=CEILING_SECONDS)
    return not any(thread.is_alive() for thread in threads)


def test_a_write_waits_for_another_writer_of_the_file(uri: str, tmp_path: Path) -> None:
    """By SQLite's own lock, which MLflow lets it wait for."""
    client = open_client(uri)
    run = client.create_run(ensure_experiment(client, uri, "mini")).info.run_id
    points = [Metric("a", 1.0, 1, step) for step in range(1000)]
    writer = threading.Thread(target=client.log_batch, args=(run, points))
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        writer.start()
        writer.join(timeout=0.5)
        assert writer.is_alive()
        other.rollback()
    assert _ended(writer)
    assert len(client.get_metric_history(run, "a")) == 1000


MAKERS: dict[str, Callable[[MlflowClient, str, str], object]] = {
    "experiment": lambda client, uri, number: ensure_experiment(client, uri, "another"),
    "parent": lambda client, uri, number: ensure_parent(client, uri, number, "main"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_several_make_at_once_is_made_once(name: str, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = open_client(uri)
    number = ensure_experiment(client, uri, "mini")
    waiting, locked, made = list[Path](), address.locked, list[object]()

    def seen(path: Path) -> contextlib.AbstractContextManager[None]:
        waiting.append(path)
        return locked(path)

    threads = [
        threading.Thread(target=lambda: made.append(MAKERS[name](client, uri, number))) for _ in range(3)
    ]
    with exclusive(uri):
        monkeypatch.setattr(address, "locked", seen)
        for thread in threads:
            thread.start()
        until("each has got to the lock", lambda: len(waiting) == len(threads))
        assert made == []
    assert _ended(*threads)
    assert len(made) == 3 and len(set(made)) == 1


def is_locked(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=0)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
    return False


def interrupted_everywhere(database: Path, call: Callable[[], object]) -> int:
    """Send Ctrl-C behind each SQL statement of `call` in turn, and see the file free while that is handled; returns how
    many statements there are.
    """
    for statement in count(1):
        sent: list[str] = []

        def behind(
            connection: object,
            cursor: object,
            text: str,
            *_: object,
            sent: list[str] = sent,
            at: int = statement,
        ) -> None:
            sent.append(text)
            if len(sent) == at:
                signal.raise_signal(signal.SIGINT)

        event.listen(Engine, "after_cursor_execute", behind)
        try:
            call()
        except KeyboardInterrupt:
            assert not is_locked(database), sent
        else:
            assert len(sent) < statement
            return len(sent)
        finally:
            event.remove(Engine, "after_cursor_execute", behind)
    raise AssertionError


def test_an_interrupted_action_leaves_the_file_free(uri: str, tmp_path: Path) -> None:
    """Whoever handles the interruption writes to the store: how a run or a trial ended."""
    client = open_client(uri)
    number = ensure_experiment(client, uri, "mini")
    parent = ensure_parent(client, uri, number, "other")

    def deferred_action() -> None:
        with deferred_for(uri):
            client.set_tag(parent, "a", "b")

    for action in (
        deferred_action,
        lambda: register(client, uri, parent, ("{}", "digest"), "", "none"),
        *(lambda make=make: make(client, uri, number) for make in MAKERS.values()),
    ):
        assert interrupted_everywhere(tmp_path / "mlflow.db", action) > 2


def test_an_interruption_does_not_wait_for_a_server() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_for("http://host:5000"), exclusive("http://host:5000"):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError


def test_a_thread_defers_nothing() -> None:
    """Signals are handled in the main thread alone."""
    before, seen = signal.getsignal(signal.SIGINT), list[object]()

    def look() -> None:
        with deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_signal_waits_for_the_outermost_block_and_is_then_handled_as_before() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), deferred():
        with deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with fake_server() as server:
        yield server


WRONG = (
    *("[]", "null", "5", "no json", "\udcff", '{"error_code": [1], "message": {}}'),
    *('{"experiments": "x"}', '{"experiments": [{"experiment_id": {}}]}', '{"experiment": 3}'),
    *('{"runs": 5}', '{"runs": [{"info": []}]}', '{"runs": [{"info": {"start_time": "soon"}}]}'),
    *('{"runs": [{"data": {"tags": [{"key": "cppo.run_id", "value": 3}]}}]}', '{"next_page_token": 5}'),
)


@pytest.mark.parametrize("endpoint", ENDPOINTS[:3])
@pytest.mark.parametrize("status", [200, 400])
def test_whatever_a_server_answers_is_one_line(
    server: FakeServer, endpoint: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = server.uri
    server.endpoint, server.status = endpoint, status

    def listing() -> None:
        with reading(uri) as client:
            list(experiment_runs(client, "cppo-mini"))

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
    assert "Traceback" not in capsys.readouterr().err


def test_no_question_waits_for_days(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = server.uri
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    server.endpoint, server.status, server.headers = "search", 429, {"Retry-After": "86400"}
    with pytest.raises(UserError, match="cannot be used: it answers with HTTP error 429: check"):
        open_client(uri)
    assert len(server.seen) == 2
    server.endpoint, server.slow = "", True  # a byte now and then: no single wait is long
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(client_module, "HEALTH_SECONDS", 1.0)
    with pytest.raises(TimeoutError, match="not answered within 1 seconds"):
        require_health(uri)
    with pytest.raises(UserError, match="cannot be used: it has not answered within 3 seconds: check"):
        open_client(uri)


def test_where_no_thread_can_start_the_store_is_asked_all_the_same(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    uri, ours = server.uri, threading.current_thread()
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread,
        "start",
        lambda thread: refuse(thread) if threading.current_thread() is ours else start(thread),
    )
    assert open_client(uri).get_experiment_by_name("cppo-mini").experiment_id == "1"


@pytest.mark.parametrize("kind", [MlflowException, lambda error: error])
def test_a_fault_is_told_without_its_statement_and_parameters(kind: Callable[[object], Exception]) -> None:
    error = OperationalError(
        "INSERT INTO metrics VALUES (?)", [("secret",)] * 1000, Exception("disk I/O error")
    )
    line = fault_line(kind(error))
    assert line.endswith("disk I/O error") and len(line) < 60
