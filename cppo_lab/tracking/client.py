"""Opening the tracking store, and finding the runs in it. With shipping.py the write-side home of mlflow."""

import contextlib
import fcntl
import hashlib
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType
from mlflow.exceptions import MlflowException
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab import schema, store
from cppo_lab.errors import UserError
from cppo_lab.tracking.views import page

PAGE = 1000  # runs per request
HEALTH_SECONDS = 5.0
STORE_FAULTS = (MlflowException, SQLAlchemyError, OSError)  # of a store that is away, or breaks
# A server that is away is tried again by us: seconds, not the minutes of MLflow's default. One that is slow gets time.
SERVER_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}

DATABASE_PATIENCE = {"PGCONNECT_TIMEOUT": "10"}  # seconds; libpq's own patience has no end
QUIET = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}  # a bar for files of two kilobytes


@dataclass(frozen=True)
class Attempt:
    """One MLflow run: one attempt at training `run_id`."""

    mlflow_id: str
    run_id: str
    status: str  # MLflow's: RUNNING, FINISHED, FAILED, KILLED
    outcome: str  # ours, see schema.STATUSES
    code_version: str
    reason: str
    folder: str
    sweeps: frozenset[str]
    record: str = ""  # of the spool that it came from
    step: int | None = None  # the last recorded step, of an attempt that was interrupted or failed
    t_stop: int | None = None
    replaces: frozenset[str] = frozenset()  # MLflow ids of the results that it is to take the place of
    parent: str = ""  # MLflow id of the sweep or trial that it is nested under


def open_client(uri: str) -> MlflowClient:
    """A client of the store at `uri`. A new SQLite store gets its tables now.

    Raises UserError if the store cannot be reached.
    """
    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name, value in (SERVER_PATIENCE | DATABASE_PATIENCE | QUIET).items():
        os.environ.setdefault(name, value)
    try:
        _connect(uri)
        with alone(uri):
            client = MlflowClient(uri)
            client.search_experiments(max_results=1)
    except STORE_FAULTS as error:
        raise UserError(f"tracking store {store.redacted(uri)} cannot be used: {fault_line(error)}") from None
    return client


def fault_line(error: Exception) -> str:
    """What is said of a store's fault: one line, not too long, without passwords."""
    return store.redacted(" ".join(str(error).split()))[:500] or type(error).__name__


def _connect(uri: str) -> None:
    """Raises SQLAlchemyError if the database does not answer now: MLflow would try for a minute and a half."""
    if uri.startswith("http") or store.sqlite_file(uri) is not None:
        return
    engine = create_engine(uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def ensure_experiment(client: MlflowClient, uri: str, name: str, description: str = "") -> str:
    """The id of experiment `name`, created if it is not there.

    With SQLite the artifacts lie beside the database, with another database in the working folder of whoever comes
    first; a server decides for itself.
    Raises UserError if somebody deleted the experiment.
    """
    with alone(uri):
        return _ensure_experiment(client, uri, name, description)


def _ensure_experiment(client: MlflowClient, uri: str, name: str, description: str) -> str:
    found: Experiment | None = client.get_experiment_by_name(name)
    if found is not None:
        if found.lifecycle_stage != "active":
            raise UserError(
                f"experiment {name!r} was deleted in {store.redacted(uri)}: restore it with "
                f"`mlflow experiments restore --experiment-id {found.experiment_id}`, or use another store"
            )
        return str(found.experiment_id)
    database = store.sqlite_file(uri)
    beside = Path.cwd() if database is None else database.resolve().parent
    location = None if uri.startswith("http") else (beside / "mlartifacts" / name).as_uri()
    tags = {"mlflow.note.content": description} if description else {}
    return str(client.create_experiment(name, artifact_location=location, tags=tags))


@contextlib.contextmanager
def alone(uri: str) -> Iterator[None]:
    """Let one process of this machine at a time write to a SQLite store; a server sees to that itself."""
    database = store.sqlite_file(uri)
    if database is None or not database.parent.is_dir():
        yield
        return
    lock = (
        Path(tempfile.gettempdir())
        / f"cppo-{os.getuid()}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}.lock"
    )
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def attempts(client: MlflowClient, experiment: str, run_ids: Iterable[str]) -> dict[str, list[Attempt]]:
    """All attempts at the runs `run_ids`, newest first. Reads every run of the experiment once."""
    wanted: dict[str, list[Attempt]] = {run_id: [] for run_id in run_ids}
    for run in newest_runs(client, experiment):
        attempt = _attempt(run)
        if attempt.run_id in wanted:
            wanted[attempt.run_id].append(attempt)
    return wanted


def attempts_at(client: MlflowClient, experiment: str, run_id: str) -> list[Attempt]:
    """All attempts at one run, newest first."""
    return [
        _attempt(run) for run in newest_runs(client, experiment, f"tags.`{schema.TAG_RUN_ID}` = '{run_id}'")
    ]


def known_attempts(uri: str, experiment: str, run_id: str) -> list[Attempt] | None:
    """All attempts at one run, newest first; None if the store does not answer, which is said on standard error."""
    try:
        _require_answer(uri)
        return attempts_at(open_client(uri), experiment, run_id)
    except (*STORE_FAULTS, UserError) as error:
        said = f"tracking store does not answer, the run's folder decides: {fault_line(error)}"
        print(said, file=sys.stderr, flush=True)
        return None


def _require_answer(uri: str) -> None:
    """Raises OSError if a server says nothing for some seconds: MLflow's own patience is that of minutes.

    Whatever else is wrong with it is for MLflow's client to find, which knows users, passwords and certificates.
    """
    if not uri.startswith("http"):
        return
    parts = urlsplit(uri)
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
    try:
        urlopen(f"{address}/health", timeout=HEALTH_SECONDS).close()
    except (TimeoutError, ConnectionError):
        raise
    except URLError as error:
        if isinstance(error.reason, TimeoutError | ConnectionError):
            raise
    except HTTPException:
        return


def newest_runs(
    client: MlflowClient, experiment: str, condition: str = "", page: int = PAGE
) -> Iterator[Run]:
    """The runs of an experiment that meet MLflow's filter `condition`, newest first, read as they are asked for."""
    found = client.get_experiment_by_name(experiment)
    token = None
    while found is not None:
        with store.no_collection():
            runs = client.search_runs(
                [found.experiment_id],
                filter_string=condition,
                run_view_type=ViewType.ACTIVE_ONLY,
                order_by=["attributes.start_time DESC"],
                max_results=page,
                page_token=token,
            )
        yield from runs
        token = runs.token
        if not token:
            return


def _attempt(run: Run) -> Attempt:
    tags = run.data.tags
    return Attempt(
        mlflow_id=run.info.run_id,
        run_id=tags.get(schema.TAG_RUN_ID, ""),
        status=run.info.status,
        outcome=tags.get(schema.TAG_STATUS, ""),
        code_version=tags.get(schema.TAG_CODE_VERSION, ""),
        reason=tags.get(schema.TAG_REASON, ""),
        folder=tags.get(schema.TAG_FOLDER, ""),
        record=tags.get(schema.TAG_RECORD, ""),
        sweeps=frozenset(key for key in tags if key.startswith(schema.TAG_SWEEP_PREFIX)),
        step=_integer(tags.get(schema.TAG_STEP)),
        t_stop=_integer(tags.get(schema.TAG_T_STOP)),
        replaces=frozenset(tags.get(schema.TAG_REPLACES, "").split()),
        parent=tags.get(schema.TAG_PARENT, ""),
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def where_to_look(uri: str, experiment: str) -> str:
    """How to open the runs of `experiment` in MLflow's page: its address, or the command that serves it."""
    if uri.startswith("http"):
        found = open_client(uri).get_experiment_by_name(experiment)
        return store.redacted(uri).rstrip("/") + (page(found) if found else "")
    if uri == store.tracking_uri():
        return "cppo ui"
    return f"MLFLOW_TRACKING_URI={shlex.quote(store.redacted(uri))} cppo ui"


def mark_interrupted(client: MlflowClient, mlflow_id: str, reason: str, step: int | None = None) -> None:
    """Record that an attempt was ended from outside behind `step`; `reason` is one line.

    For runs whose folder has no spool; of all others the spool says how they ended.
    """
    client.set_tag(mlflow_id, schema.TAG_STATUS, schema.PARTIAL)
    client.set_tag(mlflow_id, schema.TAG_REASON, reason[:500])
    if step is not None:
        client.set_tag(mlflow_id, schema.TAG_STEP, str(step))
    client.set_terminated(mlflow_id, "KILLED")
