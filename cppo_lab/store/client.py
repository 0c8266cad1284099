"""Opens the tracking store and finds the runs in it. Only this module and tracking/upload.py write with mlflow."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema
from cppo_lab.errors import StoreAway, UserError, one_line
from cppo_lab.redaction import redacted
from cppo_lab.store import address, artifact_hosts
from cppo_lab.store.create import create_atomically, is_new
from cppo_lab.store.exclusive import deferred_for, exclusive
from cppo_lab.store.listing import attempts, require_answer
from cppo_lab.store.records import AttemptRecord

HEALTH_SECONDS = 5.0
STORE_FAULTS = (MlflowException, SQLAlchemyError, OSError)  # raised by an unreachable or broken store
REMEDY = (
    f"check that it is an MLflow store and that its server runs, or set {address.VARIABLE} to another one"
)
_BACKGROUND = re.compile(
    r"\(Background on this error at: [^)]*\)"
)  # a line that SQLAlchemy appends to its errors
DEFAULT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"  # MLflow's variable for the default artifact location
QUIET = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}  # no progress bar for files of two kilobytes
# Overrides the environment: at the end of a run MLflow would print its URL with the user's name and password.
_NO_ADDRESS = {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}


def open_client(uri: str) -> MlflowClient:
    """A client of the store at `uri`. Creates the tables of a new SQLite store.

    Raises UserError if the store cannot be reached.
    """
    address.limit_patience()
    artifact_hosts.guard()
    address.require_mlflow_database(uri)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.update(_NO_ADDRESS)
    try:
        require_answer(uri)
        with _plain_default_experiment():
            if (database := address.sqlite_file(uri)) is not None and is_new(database):
                with exclusive(uri):
                    create_atomically(database, _make_tables)
            client = MlflowClient(uri)
            client.search_experiments(max_results=1)
    except STORE_FAULTS as error:
        # An incomplete store may be detected only now, after SQLite's recovery and MLflow's own checks.
        address.require_mlflow_database(uri)
        if (database := address.sqlite_file(uri)) is not None and "already exists" in str(error):
            raise address.half_made(database) from None
        if text := address.outdated(uri):
            raise UserError(text) from None
        raise StoreAway(
            f"tracking store {redacted(uri)} cannot be used: {fault_line(error)}: {REMEDY}"
        ) from None
    return client


def _make_tables(path: Path) -> None:
    """Create a SQLite file with MLflow's tables and its experiment 0, like MLflow's client."""
    SqlAlchemyStore(f"sqlite:///{path}", os.environ[DEFAULT_ROOT]).engine.dispose()


@contextlib.contextmanager
def _plain_default_experiment() -> Iterator[None]:
    """MLflow inserts the working folder's name into the SQL for its experiment 0 without escaping: quotes and colons
    would cause an error, or change the SQL. As a URI the name has neither.
    """
    if DEFAULT_ROOT in os.environ:
        yield
        return
    with address.in_the_environment((Path.cwd() / "mlruns").as_uri(), DEFAULT_ROOT):
        yield


def fault_line(error: Exception) -> str:
    """A store's error as one short line without passwords."""
    if text := address.no_answer(error):
        return text
    return redacted(one_line(_BACKGROUND.sub("", str(error))))[:500] or type(error).__name__


def ensure_experiment(client: MlflowClient, uri: str, name: str, description: str = "") -> str:
    """The id of experiment `name`, which is created if it does not exist.

    With SQLite, artifacts are stored next to the database; with another database, in the working folder of the process
    that creates the experiment; a server chooses the location itself. Raises UserError if the experiment was deleted.
    """
    with exclusive(uri):
        return _ensure_experiment(client, uri, name, description)


def _ensure_experiment(client: MlflowClient, uri: str, name: str, description: str) -> str:
    found: Experiment | None = client.get_experiment_by_name(name)
    if found is not None:
        if found.lifecycle_stage != "active":
            raise UserError(
                f"experiment {name!r} was deleted in {redacted(uri)}: restore it with "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or use another store"
            )
        return str(found.experiment_id)
    database = address.sqlite_file(uri)
    beside = Path.cwd() if database is None else database.resolve().parent
    location = None if uri.startswith("http") else (beside / "mlartifacts" / name).as_uri()
    tags = {"mlflow.note.content": description} if description else {}
    return str(client.create_experiment(name, artifact_location=location, tags=tags))


def past_attempts(run_ids: Sequence[str], core: str, uri: str) -> dict[str, list[AttemptRecord]]:
    """All attempts at the runs that the store has, newest first; none if it is a SQLite file that does not exist.

    Raises UserError if it cannot be read, StoreAway if it does not answer within seconds.
    """
    if not run_ids or ((database := address.sqlite_file(uri)) is not None and not database.is_file()):
        return {run_id: [] for run_id in run_ids}
    try:
        _require_answer(uri)
        return attempts(open_client(uri), schema.experiment_name(core), run_ids)
    except STORE_FAULTS as error:
        raise StoreAway(
            f"tracking store {redacted(uri)} cannot be read: {fault_line(error)}: {REMEDY}"
        ) from None


def known_attempts(uri: str, experiment: str, run_id: str) -> list[AttemptRecord] | None:
    """All attempts at one run, newest first; None if the store does not answer, which is reported on standard error."""
    found = known_attempts_of(uri, experiment, [run_id])
    return None if found is None else found[run_id]


def known_attempts_of(
    uri: str, experiment: str, run_ids: Sequence[str]
) -> dict[str, list[AttemptRecord]] | None:
    """All attempts at several runs, by run id; see `known_attempts`."""
    try:
        _require_answer(uri)
        with deferred_for(uri):
            return attempts(open_client(uri), experiment, run_ids)
    except (*STORE_FAULTS, UserError) as error:
        said = f"tracking store does not answer, using the run's folder: {fault_line(error)}"
        print(said, file=sys.stderr, flush=True)
        return None


def _require_answer(uri: str) -> None:
    """Raises OSError if a server does not respond within seconds; MLflow would wait for minutes.

    Other problems are left to MLflow's client, which handles users, passwords and certificates.
    """
    if not uri.startswith("http"):
        return
    parts = urlsplit(uri)
    server = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
    try:
        urlopen(f"{server}/health", timeout=HEALTH_SECONDS).close()
    except (TimeoutError, ConnectionError):
        raise
    except URLError as error:
        if isinstance(error.reason, TimeoutError | ConnectionError):
            raise
    except HTTPException:
        return


def mark_interrupted(client: MlflowClient, mlflow_id: str, reason: str, step: int | None = None) -> None:
    """Record that an attempt was ended from outside after `step`; `reason` is one line.

    For runs without a spool in their folder; for all others the spool records how they ended.
    """
    client.set_tag(mlflow_id, schema.TAG_REASON, reason[:500])
    if step is not None:
        client.set_tag(mlflow_id, schema.TAG_STEP, str(step))
    client.set_terminated(mlflow_id, "KILLED")
    client.set_tag(mlflow_id, schema.TAG_STATUS, schema.PARTIAL)  # last: it says that the rest is done
