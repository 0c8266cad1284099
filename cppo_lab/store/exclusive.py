"""Writers of one SQLite file take turns, and are not interrupted in the middle of a transaction.

MLflow reads and writes in one transaction. If two processes both have a read open and want to write, SQLite immediately
fails one of them with "database is locked" to avoid a deadlock. A server handles this itself.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.async_logging.run_operations import RunOperations

from cppo_lab.signals import deferred
from cppo_lab.store import address
from cppo_lab.store.points import add_points

# The client methods in use that write to the database.
WRITES: Final = (
    "create_experiment",
    "create_run",
    "delete_run",
    "delete_tag",
    "log_batch",
    "log_inputs",
    "log_metric",
    "set_experiment_tag",
    "set_tag",
    "set_terminated",
    "update_run",
)
# The client methods that read from it; those for artifacts look up their location.
READS: Final = (
    "download_artifacts",
    "get_experiment",
    "get_experiment_by_name",
    "get_metric_history",
    "get_run",
    "list_artifacts",
    "log_artifact",
    "search_experiments",
    "search_runs",
)
_held = threading.local()


@contextlib.contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Let only one thread of one process at a time write to a SQLite store. May be nested."""
    database = address.sqlite_file(uri)
    if database is None or not database.parent.is_dir() or (key := _key(database)) in _keys():
        yield
        return
    with address.locked(database):
        _keys().add(key)
        try:
            yield
        finally:
            _keys().discard(key)


def _key(database: Path) -> tuple[int, Path]:
    return os.getpid(), database.absolute()  # a forked child does not hold its parent's locks


def _keys() -> set[tuple[int, Path]]:
    if not hasattr(_held, "keys"):
        _held.keys = set()
    found: set[tuple[int, Path]] = _held.keys
    return found


def deferred_for(uri: str) -> contextlib.AbstractContextManager[None]:
    """`signals.deferred` for a SQLite store. Not for a server, which may be unreachable: a termination request must not
    wait for it.
    """
    return contextlib.nullcontext() if address.sqlite_file(uri) is None else deferred()


class PointsClient(MlflowClient):
    """MLflow's client, except that points are written directly to a SQLite store."""

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[RunTag] = (),
        synchronous: bool | None = None,
    ) -> RunOperations | None:
        """As MLflow's."""
        database = None if params or tags else address.sqlite_file(str(self.tracking_uri))
        if database is not None and metrics and add_points(database, run_id, metrics):
            return None
        return super().log_batch(run_id, metrics, params, tags, synchronous)


class ExclusiveClient(PointsClient):
    """A `PointsClient` for which, with a SQLite store, each write is exclusive and signals are deferred until each call
    returns.
    """


def _exclusive(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(PointsClient, name))
    def write(self: ExclusiveClient, *arguments: Any, **named: Any) -> Any:
        with exclusive(str(self.tracking_uri)), deferred_for(str(self.tracking_uri)):
            return getattr(PointsClient, name)(self, *arguments, **named)

    return write


def _whole(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(PointsClient, name))
    def read(self: ExclusiveClient, *arguments: Any, **named: Any) -> Any:
        with deferred_for(str(self.tracking_uri)):
            return getattr(PointsClient, name)(self, *arguments, **named)

    return read


for _name in WRITES:
    setattr(ExclusiveClient, _name, _exclusive(_name))
for _name in READS:
    setattr(ExclusiveClient, _name, _whole(_name))
