"""Opens the tracking store, creates what is missing in it, and keeps its password from other hosts."""

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.json_format import ParseError  # type: ignore[import-untyped]
from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_registered_artifact_repositories
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request, verify_rest_response
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from cppo_lab import schema
from cppo_lab.core_records import core_if_installed
from cppo_lab.errors import StoreAway, StoreBroken, UserError, deferred, in_time, one_line, say
from cppo_lab.files import open_append, redacted
from cppo_lab.tracking import address

# What MLflow's client raises on an answer with values of other types than MLflow's.
WRONG_TYPES = (
    ParseError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
)  # by MLflow, of another's answer
STORE_FAULTS = (MlflowException, SQLAlchemyError, OSError)  # raised by an absent or broken store
REMEDY = (
    f"check that it is an MLflow store and that its server runs, or set {address.VARIABLE} to another one"
)
DEFAULT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"  # MLflow's variable for the default artifact location
_DEFAULTS = {
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # for files of two kilobytes
    # We retry an unreachable server ourselves, so wait seconds instead of MLflow's minutes, or the days that an answer
    # may ask for. A slow server gets more time.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "PGCONNECT_TIMEOUT": "10",  # seconds; libpq has no timeout by default
}
_OURS = {  # whatever the user's shell has
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # at the end of a run, with the user's name and password
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",  # points would count as sent before the store has taken them
}
_NO_ANSWER = re.compile(
    "Max retries exceeded|Failed to establish a new connection|Connection aborted|Read timed out"
)
_SYSTEM = re.compile(r"\[Errno -?\d+\] ([A-Za-z ]+)")
# What SQLAlchemy appends to its errors: statement and parameters of any length, and a link.
_APPENDED = re.compile(r"\s\[SQL: |\(Background on this error at: ")
# And before them: advice for programmers.
_PREPENDED = re.compile(r"\(raised as a result of Query-invoked autoflush;[^)]*\)\s*")


class StoreClient(MlflowClient):
    """MLflow's client. A server has a deadline for each answer but files, and an answer that the client cannot read
    is a fault of MLflow's, so that the same errors of our code are none of the store.
    """

    @cached_property
    def patience(self) -> float | None:
        """Seconds for an answer. Raises ValueError if the user's variable is no number."""
        return 3 * MLFLOW_HTTP_REQUEST_TIMEOUT.get() if self.tracking_uri.startswith("http") else None

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name.startswith("_") or not callable(attribute):
            return attribute

        def ask(*given: Any, **named: Any) -> Any:
            try:
                seconds = None if "artifact" in name else self.patience
                return in_time(partial(attribute, *given, **named), seconds)
            except WRONG_TYPES as error:
                raise MlflowException(f"its answer is not MLflow's ({error})") from error

        return ask

    def get_experiment_by_name(self, name: str) -> Any:
        """As MLflow's; of an object that is no experiment, as another service's, MLflow makes one without an id."""
        experiment = super().get_experiment_by_name(name)
        if experiment is not None and not experiment.experiment_id:
            raise MlflowException("its answer is not MLflow's (an experiment without an id)")
        return experiment

    def points(self, mlflow_id: str, metric: str) -> list[tuple[int, float, int]]:
        """Step, value and time in milliseconds of each point of a metric, in the order of time."""
        if not self.tracking_uri.startswith("http"):
            points = self.get_metric_history(mlflow_id, metric)
            return [(point.step, point.value, point.timestamp) for point in points]
        # MLflow's client makes a message and an entity of each point, which takes two thirds of its time.
        path, query = "/api/2.0/mlflow/metrics/get-history", {"run_id": mlflow_id, "metric_key": metric}
        answer = http_request(get_default_host_creds(self.tracking_uri), path, "GET", params=query)
        fields = verify_rest_response(answer, path).json().get("metrics", [])
        return [(int(point["step"]), float(point["value"]), int(point["timestamp"])) for point in fields]


def open_client(uri: str) -> StoreClient:
    """A client of the store at `uri`. Creates the tables of a new SQLite store.

    Raises UserError if the store cannot be reached.
    """
    prepare()
    address.require_mlflow_database(uri)
    database = address.sqlite_file(uri)
    try:
        require_answer(uri)
        # MLflow inserts the working folder's name into the SQL for its experiment 0 without escaping: quotes and colons
        # would cause an error, or change the SQL. As a URI the name has neither.
        root = os.environ.get(DEFAULT_ROOT, (Path.cwd() / "mlruns").as_uri())
        with address.in_the_environment(root, DEFAULT_ROOT):
            if database is not None and address.is_new(database):
                with exclusive(uri):
                    create_atomically(
                        database, lambda path: SqlAlchemyStore(f"sqlite:///{path}", root).engine.dispose()
                    )
            client = StoreClient(uri)
            client.search_experiments(max_results=1)
    except STORE_FAULTS as error:
        # An incomplete store may be detected only now, after SQLite's recovery and MLflow's checks.
        address.require_mlflow_database(uri)
        if database is not None and re.search("already exists|duplicate column", str(error)):
            raise address.half_made(database) from None
        raise store_error(uri, error, "used") from None
    return client


def prepare() -> None:
    """Settings for every client of MLflow in this process and its children: what it waits for, prints and refuses."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.update(_OURS)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # A traceback for each failed attempt, with all parameters of the statement; we report the result.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    _guard_artifacts()


def store_error(uri: str, error: Exception, how: str) -> UserError:
    """The error to raise when MLflow fails on the store at `uri`, which cannot be `used` or `read`."""
    store, line = f"tracking store {redacted(uri)}", fault_line(error)
    if "mlflow db upgrade" in line:  # it is not away, and MLflow says what to do
        return UserError(f"{store} is of another version of MLflow: {line}")
    is_broken = any(words in line for words in ("file is not a database", "malformed"))  # SQLite's words
    remedy = "free space on its disk" if address.FULL.search(line) else REMEDY
    return (StoreBroken if is_broken else StoreAway)(f"{store} cannot be {how}: {line}: {remedy}")


def fault_line(error: Exception) -> str:
    """A store's error as a short line, without passwords and parameters."""
    text = str(error)
    if refusal := re.search(r"too many (\d+) error responses", text):
        return f"it answers with HTTP error {refusal[1]}"
    if _NO_ANSWER.search(text):
        reasons = _SYSTEM.findall(text)
        why = reasons[-1].strip() if reasons else "timed out" if "timed out" in text else "no connection"
        return f"it does not answer: {why}"
    return redacted(one_line(_PREPENDED.sub("", _APPENDED.split(text)[0])))[:500] or type(error).__name__


@contextlib.contextmanager
def may_fail(what: str) -> Iterator[None]:
    """Say that the store did not accept `what`, and continue."""
    try:
        yield
    except (*STORE_FAULTS, UserError) as error:
        say(f"tracking store did not accept {what}: {fault_line(error)}")


def require_answer(uri: str) -> None:
    """Raises SQLAlchemyError if a database server does not answer immediately; MLflow would retry for a minute and a
    half.
    """
    if not uri.startswith(("http://", "https://")) and address.sqlite_file(uri) is None:
        create_engine(uri, poolclass=NullPool).connect().close()


def ensure_experiment(client: MlflowClient, name: str, description: str = "") -> str:
    """The id of experiment `name`, which is created if it does not exist.

    With SQLite, artifacts are stored next to the database; with another database, in the working folder of the process
    that creates the experiment; a server chooses the location itself. Raises UserError if the experiment was deleted.
    """
    uri = client.tracking_uri
    with exclusive(uri):
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            database = address.sqlite_file(uri)
            beside = Path.cwd() if database is None else database.resolve().parent
            location = None if uri.startswith("http") else (beside / address.ARTIFACTS / name).as_uri()
            tags = {schema.TAG_NOTE: description} if description else {}
            try:
                return str(client.create_experiment(name, artifact_location=location, tags=tags))
            except MlflowException:  # another process was first, as only those of a server can be
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise
    if experiment.lifecycle_stage != "active":
        raise UserError(
            f"experiment {name!r} was deleted in {redacted(uri)}: restore it with "
            f"`mlflow experiments restore --experiment-id {experiment.experiment_id}`, or use another store"
        )
    return str(experiment.experiment_id)


def experiment_of(client: MlflowClient, core: str) -> str:
    """The id of the experiment with the runs of `core`, which is created with the core's note if there is none."""
    return ensure_experiment(client, schema.experiment_name(core), core_if_installed(core).note)


_ENDING = ".new"


def create_atomically(path: Path, make: Callable[[Path], None]) -> None:
    """Call `make` to create the file under a temporary name, and rename it to `path` once it is complete and on disk.

    Does nothing if there is a file with content. Tables are created by some fifty statements, and a process killed in
    between would leave a file that no later process can use. The caller ensures that only one process at a time runs
    this; leftovers of killed processes are removed.
    """
    if not address.is_new(path):
        return
    for leftover in path.parent.glob(f"{path.name}.*{_ENDING}*"):  # including SQLite's journal
        leftover.unlink(missing_ok=True)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_ENDING}")
    try:
        open_append(beside).close()  # SQLite ignores the umask and gives the group no write permission
        make(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Let one thread at a time, of all processes, enter for a SQLite store, and defer signals. Must not be nested.

    For looking something up and creating it if it is missing: an experiment, a parent, a registration.
    """
    database = address.sqlite_file(uri)
    if database is None or not database.parent.is_dir():
        yield
        return
    with address.locked(database), deferred():
        yield


def deferred_for(uri: str) -> contextlib.AbstractContextManager[None]:
    """`errors.deferred` for a SQLite store. Not for a server, which may be unreachable: a termination request must not
    wait for it.

    For calls whose interruption is handled by code that writes to the store, which an interrupted call keeps locked.
    """
    return contextlib.nullcontext() if address.sqlite_file(uri) is None else deferred()


_SENDS_PASSWORD = ("http", "https", "mlflow-artifacts")  # the schemes whose requests MLflow authenticates
# Anything else, such as a backslash or a user name, is read as different hosts by different libraries.
_PLAIN = re.compile(r"([a-z-]+)://([\w.-]+|\[[\da-f:]+\])(?::(\d{1,5}))?(?:/.*)?", re.ASCII | re.IGNORECASE)
_NO_HOST = re.compile(r"mlflow-artifacts:(?:/|///)?(?:[^/\s\\].*)?")
_PORTS = {"http": 80, "https": 443}


@cache
def _guard_artifacts() -> None:
    """Make all clients of MLflow in this process refuse artifacts on other servers, and find those of a moved store."""
    repositories: Any = get_registered_artifact_repositories()  # the registry itself
    for scheme in (*_SENDS_PASSWORD, "file", ""):
        repositories[scheme] = partial(_repository, repositories[scheme])


def _repository(
    make: Callable[..., Any], artifact_uri: str, tracking_uri: str | None = None, **named: Any
) -> Any:
    """MLflow's repository; without `tracking_uri`, in a call by the user's code, for any address."""
    if tracking_uri is not None and artifact_uri.lower().startswith(_SENDS_PASSWORD):
        require_tracking_host(artifact_uri, tracking_uri)
    elif tracking_uri is not None:
        folder = address.artifact_folder(artifact_uri, tracking_uri)
        if folder is not None and folder != address.artifact_folder(artifact_uri, ""):
            artifact_uri = folder.as_uri()
    return make(artifact_uri, tracking_uri=tracking_uri, **named)


def require_tracking_host(artifact_uri: str, tracking_uri: str) -> None:
    """Raise UserError for artifacts on another server than the tracking server; other ports are other servers."""
    if _NO_HOST.fullmatch(artifact_uri):
        return  # MLflow takes the tracking server
    tracking, match = urlsplit(tracking_uri), _PLAIN.fullmatch(artifact_uri)
    scheme, host, port = match.groups() if match else ("", "", None)
    scheme = tracking.scheme if scheme == "mlflow-artifacts" else scheme.lower()
    server = (scheme, host.strip("[]").lower(), int(port) if port else _PORTS.get(scheme))
    if server != (tracking.scheme, tracking.hostname, tracking.port or _PORTS.get(tracking.scheme)):
        raise UserError(
            f"artifacts at {redacted(artifact_uri)!r} are not on the tracking server {redacted(tracking_uri)}: they "
            "are neither read nor written, since MLflow would send its password there; if you trust that server, "
            "set MLFLOW_TRACKING_URI to it"
        )
