"""Writers of one SQLite store take turns: nobody's write fails because another one writes."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

import cppo_lab
from cppo_lab import store
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.exclusive import WRITES, exclusive
from tests.waiting import CEILING_SECONDS, until


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


CALLS: dict[str, Callable[[MlflowClient, str, str], Any]] = {
    "create_experiment": lambda client, experiment, run: client.create_experiment("other"),
    "create_run": lambda client, experiment, run: client.create_run(experiment),
    "delete_run": lambda client, experiment, run: client.delete_run(run),
    "delete_tag": lambda client, experiment, run: client.delete_tag(run, "a"),
    "log_batch": lambda client, experiment, run: client.log_batch(run, metrics=[Metric("a", 1.0, 1, 1)]),
    "log_inputs": lambda client, experiment, run: client.log_inputs(run, []),
    "log_metric": lambda client, experiment, run: client.log_metric(run, "a", 1.0),
    "set_experiment_tag": lambda client, experiment, run: client.set_experiment_tag(experiment, "a", "b"),
    "set_tag": lambda client, experiment, run: client.set_tag(run, "a", "b"),
    "set_terminated": lambda client, experiment, run: client.set_terminated(run),
    "update_run": lambda client, experiment, run: client.update_run(run, status="KILLED"),
}


def test_each_write_waits_for_its_turn(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the methods, while somebody else has the store."""
    waiting, locked = [], store.locked

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
        monkeypatch.setattr(store, "locked", seen)
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
    """`analysis` reads."""
    package = Path(cppo_lab.__file__).parent
    makers = {
        path.name for path in (package / "tracking").glob("*.py") if "= MlflowClient(" in path.read_text()
    }
    assert makers == set()
