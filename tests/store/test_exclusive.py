"""Writers of one SQLite store wait for each other, what must exist once is made once, and an interruption leaves the
file to those who handle it.
"""

import contextlib
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
from sqlalchemy import Engine, event

from cppo_lab.signals import deferred
from cppo_lab.sweep.search.storage import open_storage
from cppo_lab.tracking import address
from cppo_lab.tracking.client import deferred_for, ensure_experiment, exclusive, open_client
from cppo_lab.tracking.parents import ensure_parent, register
from cppo_lab.tracking.read import known_attempts
from tests.waiting import CEILING_SECONDS, until


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def _ended(threads: list[threading.Thread]) -> bool:
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
    assert _ended([writer])
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
    assert _ended(threads)
    assert len(made) == 3 and len(set(made)) == 1


def is_locked(database: Path) -> bool:
    with contextlib.closing(sqlite3.connect(database, timeout=0)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
    return False


@contextlib.contextmanager
def _signal_at(statement: int) -> Iterator[list[str]]:
    """Ctrl-C behind statement number `statement` of those that SQLAlchemy sends; gives all that it has sent."""
    sent: list[str] = []

    def behind(connection: object, cursor: object, text: str, *_: object) -> None:
        sent.append(text)
        if len(sent) == statement:
            signal.raise_signal(signal.SIGINT)

    event.listen(Engine, "after_cursor_execute", behind)
    try:
        yield sent
    finally:
        event.remove(Engine, "after_cursor_execute", behind)


def _interrupted_everywhere(database: Path, call: Callable[[], object]) -> int:
    """Interrupt `call` behind each of its statements, and see the file free while that is handled; how many."""
    for statement in count(1):
        with _signal_at(statement) as sent:
            try:
                call()
            except KeyboardInterrupt:
                assert not is_locked(database), sent
            else:
                assert len(sent) < statement
                return len(sent)
    raise AssertionError


@pytest.mark.parametrize("name", ["deferred", *MAKERS, "registration", "attempts"])
def test_an_interrupted_action_leaves_the_file_free(name: str, uri: str, tmp_path: Path) -> None:
    """Whoever handles the interruption writes to the store: how a run or a trial ended."""
    client = open_client(uri)
    number = ensure_experiment(client, uri, "mini")
    parent = ensure_parent(client, uri, number, "main")

    def whole() -> None:
        with deferred_for(uri):
            client.set_tag(parent, "a", "b")

    call: dict[str, Callable[[], object]] = {
        "deferred": whole,
        "registration": lambda: register(client, uri, parent, ("{}", "digest"), "", "none"),
        "attempts": lambda: known_attempts(uri, "mini", "0123"),
    }
    make = MAKERS.get(name)
    action = call[name] if make is None else lambda: make(client, uri, number)
    assert _interrupted_everywhere(tmp_path / "mlflow.db", action) > 2


def test_an_interruption_does_not_wait_for_a_server() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_for("http://host:5000"), exclusive("http://host:5000"):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError


def test_an_interrupted_study_leaves_its_file_free(tmp_path: Path) -> None:
    database = tmp_path / "optuna.db"
    study = optuna.create_study(storage=open_storage(f"sqlite:///{database}"), study_name="one")
    trial = study.ask()
    step = count()
    assert _interrupted_everywhere(database, lambda: trial.report(0.5, next(step))) > 2
    assert _interrupted_everywhere(database, lambda: trial.set_user_attr("a", "b")) > 1
    assert _interrupted_everywhere(database, lambda: study.get_trials(deepcopy=False)) > 1


def test_a_thread_defers_nothing() -> None:
    """Signals are handled in the main thread alone."""
    before = signal.getsignal(signal.SIGINT)

    def look() -> None:
        with deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    seen: list[object] = []
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
