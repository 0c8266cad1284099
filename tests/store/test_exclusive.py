"""Writers of one SQLite store take turns: nobody's write fails because another one writes."""

import contextlib
import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import optuna
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag
from sqlalchemy import Engine, event

from cppo_lab import PARTS_FOLDER
from cppo_lab.signals import deferred
from cppo_lab.store import address
from cppo_lab.store.client import ensure_experiment, open_client
from cppo_lab.store.database import database_runs
from cppo_lab.store.exclusive import WRITES, exclusive
from cppo_lab.sweep.search.storage import open_storage
from tests.waiting import CEILING_SECONDS, until


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


CALLS: dict[str, Callable[[MlflowClient, str, str], Any]] = {
    "create_experiment": lambda client, experiment, run: client.create_experiment("other"),
    "create_run": lambda client, experiment, run: client.create_run(experiment),
    "delete_run": lambda client, experiment, run: client.delete_run(run),
    "delete_tag": lambda client, experiment, run: client.delete_tag(run, "a"),
    # With a tag it goes through MLflow; points alone do not (test_points.py).
    "log_batch": lambda client, experiment, run: client.log_batch(
        run, metrics=[Metric("a", 1.0, 1, 1)], tags=[RunTag("a", "b")]
    ),
    "log_inputs": lambda client, experiment, run: client.log_inputs(run, []),
    "log_metric": lambda client, experiment, run: client.log_metric(run, "a", 1.0),
    "set_experiment_tag": lambda client, experiment, run: client.set_experiment_tag(experiment, "a", "b"),
    "set_tag": lambda client, experiment, run: client.set_tag(run, "a", "b"),
    "set_terminated": lambda client, experiment, run: client.set_terminated(run),
    "update_run": lambda client, experiment, run: client.update_run(run, status="KILLED"),
}


def test_each_write_waits_for_its_turn(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the methods, while somebody else has the store."""
    waiting, locked = [], address.locked

    def seen(path: Path) -> contextlib.AbstractContextManager[None]:
        waiting.append(path)
        return locked(path)

    client = open_client(uri)
    experiment = ensure_experiment(client, uri, "mini")
    assert set(CALLS) == set(WRITES)
    runs = {name: client.create_run(experiment, tags={"a": "b"}).info.run_id for name in CALLS}
    threads = {
        name: threading.Thread(target=call, args=(client, experiment, runs[name]))
        for name, call in CALLS.items()
    }
    with exclusive(uri):
        monkeypatch.setattr(address, "locked", seen)
        for thread in threads.values():
            thread.start()
        until("each has got to the lock", lambda: len(waiting) == len(CALLS))
        assert all(thread.is_alive() for thread in threads.values())
        with exclusive(uri):  # nested: no thread waits for itself
            client.set_tag(runs["set_tag"], "c", "d")
    for thread in threads.values():
        thread.join(timeout=CEILING_SECONDS)
    assert not any(thread.is_alive() for thread in threads.values())


def test_no_module_makes_another_client_to_write_with() -> None:
    """`store/listing.py` has one of its own, to read."""
    made = re.compile(r"(?<!Exclusive)MlflowClient\(\w")
    makers = {
        str(path.relative_to(PARTS_FOLDER))
        for room in ("cppo_lab", "analysis", "reports")
        for path in (PARTS_FOLDER / room).rglob("*.py")
        if made.search(path.read_text())
    }
    assert makers == {"cppo_lab/store/listing.py"}


def _is_locked(database: Path) -> bool:
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
                assert not _is_locked(database), sent
            else:
                assert len(sent) < statement
                return len(sent)
    raise AssertionError


@pytest.mark.parametrize(
    "name", ["log_batch", "set_tag", "set_terminated", "get_run", "search_runs", "log_artifact", "tables"]
)
def test_an_interrupted_call_leaves_the_file_free(name: str, uri: str, tmp_path: Path) -> None:
    """Whoever handles the interruption writes to the store: how it ended."""
    client = open_client(uri)
    experiment = ensure_experiment(client, uri, "mini")
    run = client.create_run(experiment, tags={"a": "b"}).info.run_id
    reads: dict[str, Callable[[], object]] = {
        "get_run": lambda: client.get_run(run),
        "search_runs": lambda: client.search_runs([experiment]),
        "log_artifact": lambda: client.log_artifact(client.create_run(experiment).info.run_id, __file__),
        "tables": lambda: list(database_runs(uri, experiment)),
    }
    call = reads.get(name) or (lambda: CALLS[name](client, experiment, run))
    assert _interrupted_everywhere(tmp_path / "mlflow.db", call) > 2


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
