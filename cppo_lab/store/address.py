"""Where the tracking store is. Imports neither mlflow nor sqlalchemy, so that a wrong address is reported at once."""

import contextlib
import errno
import fcntl
import gc
import hashlib
import importlib.util
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cppo_lab.errors import StoreAway, UserError
from cppo_lab.redaction import MASK, redacted
from cppo_lab.safe_open import is_shared, open_lock

VARIABLE = "MLFLOW_TRACKING_URI"  # MLflow's own
DEFAULT_URI = "sqlite:///mlflow.db"  # relative to the working folder, where `mlflow server` looks as well
_DATABASES = ("postgresql", "mysql", "mssql")
_SQLITE_QUERY = re.compile(r"(timeout=\d+(\.\d+)?)?")
_MADE_BY_MLFLOW = "experiments"  # the first table that it makes
_IN_CREATION = "_alembic_tmp_"  # begins the names of tables that exist only while others are changed
# We retry a server that is away: wait seconds, not MLflow's default of minutes. A slow server gets more time.
_SERVER_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
_DATABASE_PATIENCE = {"PGCONNECT_TIMEOUT": "10"}  # seconds; libpq's own patience has no end
_DRIVERS = {"mysql": "MySQLdb", "mssql": "pyodbc"}  # SQLAlchemy's defaults
_NO_ANSWER = re.compile(
    "Max retries exceeded|Failed to establish a new connection|Connection aborted|Read timed out"
)
_SYSTEM = re.compile(r"\[Errno -?\d+\] ([A-Za-z ]+)")
_POSTGRES_DRIVERS = ("psycopg2", "psycopg")  # MLflow is tested with the first


def tracking_uri(configured: str | None = None) -> str:
    """The tracking store to use: `MLFLOW_TRACKING_URI`, else `configured`, else `sqlite:///mlflow.db`.

    A SQLite file is named by its absolute path: runs start in separate processes.
    Raises UserError for a scheme that cannot hold runs of several writers (a plain folder) or that is unknown.
    """
    uri = os.environ.get(VARIABLE) or configured or DEFAULT_URI
    scheme = uri.partition("://")[0] if "://" in uri else ""
    plain = uri.isprintable() and ":memory:" not in uri
    named = not uri.startswith("sqlite:") or (uri.startswith("sqlite:///") and _path(uri) not in ("", "/"))
    if (
        not plain
        or not named
        or not _has_address(uri)
        or (scheme not in ("sqlite", "http", "https") and scheme.split("+")[0] not in _DATABASES)
    ):
        raise UserError(
            f"tracking URI {redacted(uri)!r} is not supported: use sqlite:///FILE.db, http(s)://HOST:PORT or a "
            "postgresql:// URI (set MLFLOW_TRACKING_URI, or tracking.uri in the configuration)"
        )
    found = absolute_uri(uri)
    database = sqlite_file(found)
    if database is not None:
        _require_file_name(database, found)
    return found


def _require_file_name(database: Path, uri: str) -> None:
    """Raises UserError for a SQLite URI that can name no file, or asks for more than a file."""
    remedy = f"name a file, sqlite:///FILE.db ({VARIABLE}, or tracking.uri in the configuration)"
    if not _SQLITE_QUERY.fullmatch(uri.partition("?")[2]):
        raise UserError(f"tracking URI {uri}: of a query only timeout=SECONDS is known: {remedy}")
    try:
        is_folder = database.is_dir()
    except OSError as error:
        raise UserError(f"tracking database {database}: {error.strerror}: {remedy}") from None
    if is_folder:
        raise UserError(f"tracking database {database} is a folder: {remedy}")


def _has_address(uri: str) -> bool:
    """Whether host and port of a server are valid; a database on this machine needs no host."""
    try:
        parts = urlsplit(uri)
        return parts.port != 0 and (bool(parts.hostname) or not uri.startswith("http"))
    except ValueError:  # a port that is no number or too large, half an IPv6 address
        return False


def absolute_uri(uri: str) -> str:
    """The same store named independently of the working folder and of SQLAlchemy's version.

    `postgresql://` means another driver in SQLAlchemy 2.1 than in 2.0: here, the one that is installed.
    Raises UserError if none is.
    """
    path = sqlite_file(uri)
    if path is not None:
        _, question, query = uri.partition("?")
        return f"sqlite:///{path.resolve()}{question}{query}"
    if uri.startswith("http"):
        return uri
    if uri.startswith("postgresql://"):
        for driver in _POSTGRES_DRIVERS:
            if importlib.util.find_spec(driver):
                return uri.replace("postgresql://", f"postgresql+{driver}://", 1)
        raise UserError(
            f"{redacted(uri)}: no driver for PostgreSQL is installed: pip install psycopg2-binary"
        )
    name, _, driver = uri.partition("://")[0].partition("+")
    module = driver or _DRIVERS.get(name, "")
    if not module.isidentifier() or importlib.util.find_spec(module) is None:
        raise UserError(
            f"{redacted(uri)}: its driver {module!r} is not installed: install it, or name another store"
        )
    return uri


def with_password(uri: str) -> str:
    """The full URI of `redacted`, from the environment.

    Raises UserError if it has another one.
    """
    if MASK not in uri:
        return uri
    known = os.environ.get(VARIABLE)
    if known and redacted(whole := absolute_uri(known)) == uri:
        return whole
    raise UserError(
        f"the password of tracking store {uri} is not known here: set {VARIABLE} to its whole URI"
    )


@contextlib.contextmanager
def in_the_environment(uri: str, variable: str = VARIABLE) -> Iterator[None]:
    """Put a store's URI into the environment of jobs: jobs are written to files, which must not contain a password."""
    before = os.environ.get(variable)
    os.environ[variable] = uri
    try:
        yield
    finally:
        os.environ.pop(variable, None)  # another thread may have been here
        if before is not None:
            os.environ[variable] = before


def sqlite_file(uri: str) -> Path | None:
    """The database file of a SQLite URI; None for every other store."""
    return Path(_path(uri)) if uri.startswith("sqlite:") else None


def no_answer(error: Exception) -> str:
    """Why a server does not answer, in the words of the system; empty for any other fault of a store."""
    text = str(error)
    if not _NO_ANSWER.search(text):
        return ""
    reasons = _SYSTEM.findall(text)
    why = reasons[-1].strip() if reasons else "timed out" if "timed out" in text else "no connection"
    return f"it does not answer: {why}"


def artifact_folder(artifact_uri: str) -> Path | None:
    """Where a run's artifacts are on this machine; None if they are elsewhere, or this is no address."""
    try:
        parts = urlsplit(artifact_uri)
    except ValueError:  # brackets that are no IPv6 address
        return None
    if not artifact_uri or parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    return Path(unquote(parts.path) if parts.scheme else artifact_uri)


def store_key(uri: str) -> str:
    """A store's name for files that others may read. It omits the password: even its hash could be guessed."""
    return hashlib.sha256(redacted(uri).encode()).hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path, kind: str = "lock") -> Iterator[None]:
    """Hold the lock of the file at `path`: `.NAME.kind` beside it, where any account that may write there finds it.

    Not in the common folder for temporary files: there any user of the machine could be first. Who may not write in
    the folder can change nothing in it either, and goes without.
    Raises UserError if a link is in the lock's place.
    """
    lock = path.with_name(f".{path.name}.{kind}")
    try:
        file = open_lock(lock)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS) or os.access(path.parent, os.W_OK):
            raise
        yield
        return
    with file:
        if is_shared(path.parent) and os.fstat(file.fileno()).st_uid == os.geteuid():
            os.fchmod(file.fileno(), 0o664)  # a command that only reads may be the first, whatever its umask
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _path(uri: str) -> str:
    """What is between `sqlite:///` and a query."""
    return uri.partition("?")[0].removeprefix("sqlite:///")


def require_mlflow_database(uri: str) -> None:
    """MLflow would add its tables to any SQLite database, and fail half-way on one that a newer MLflow has made.

    Raises UserError for both, before MLflow has touched the file.
    """
    path = sqlite_file(uri)
    if path is None or not path.is_file():
        return
    tables, version = _tables(path)
    remedy = f"set {VARIABLE} to another file"
    if tables and (any(name.startswith(_IN_CREATION) for name in tables) or _unfinished(tables, version)):
        raise half_made(path)
    if tables and _MADE_BY_MLFLOW not in tables:
        raise UserError(
            f"tracking database {path} is not MLflow's: it has the tables {', '.join(sorted(tables)[:5])}: {remedy}"
        )
    known = _migrations()
    if version and known and version not in known:
        raise UserError(
            f"tracking database {path} has schema {version[:40]!r}, which this MLflow does not know: install the "
            f"MLflow that made it, or {remedy}"
        )


def outdated(uri: str) -> str:
    """The error for a SQLite database with an older MLflow's schema, which this MLflow does not open; else empty.

    One whose creation was killed half-way may look alike: whoever opens it finds out first.
    """
    path = sqlite_file(uri)
    if path is None or not path.is_file():
        return ""
    _, version = _tables(path)
    if not version or not _has_newer(version):
        return ""
    return (
        f"tracking database {path} is of an older MLflow (schema {version[:40]!r}): `cppo plan` and `cppo status` read "
        f"it, nothing else does: copy the file, then run: mlflow db upgrade {redacted(uri)}"
    )


@cache
def _has_newer(version: str) -> bool:
    """Whether MLflow has a change of its schema that follows this version."""
    follows = f'down_revision = "{version}"'
    return any(follows in file.read_text(encoding="utf-8") for file in _migrations().values())


def _migrations() -> dict[str, Path]:
    """MLflow's changes of its schema: the version that each leads to -> its file; nothing without MLflow."""
    found = importlib.util.find_spec("mlflow")
    places = found.submodule_search_locations if found else None
    folder = Path(places[0]) / "store" / "db_migrations" / "versions" if places else Path()
    return {file.name.partition("_")[0]: file for file in folder.glob("*_*.py")}


def half_made(path: Path) -> UserError:
    """The error for a store whose tables are partly missing or partly upgraded."""
    return UserError(
        f"tracking database {path} is incomplete: the program that created or upgraded its tables was killed. If it "
        f"never held runs, remove it and try again; otherwise restore a copy of it, or set {VARIABLE} to another file"
    )


def _unfinished(tables: set[str], version: str) -> bool:
    """Whether MLflow has begun to make its tables, and not come to the first version of their schema."""
    return not version and (_MADE_BY_MLFLOW in tables or tables == {"alembic_version"})


def _tables(path: Path) -> tuple[set[str], str]:
    """The tables of a SQLite file and the version of their schema; nothing where it cannot be read: MLflow says why."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            tables = {
                str(name)
                for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            rows = (
                database.execute("SELECT version_num FROM alembic_version").fetchall()
                if "alembic_version" in tables
                else []
            )
    except sqlite3.Error:
        return set(), ""
    return tables, str(rows[0][0]) if rows else ""


def limit_patience() -> None:
    """How long MLflow waits for a store that is away, unless the environment says otherwise; what it logs of it."""
    for name, value in (_SERVER_PATIENCE | _DATABASE_PATIENCE).items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(
        logging.ERROR
    )  # a line for each try; we say how it ended


def require_store(uri: str) -> None:
    """Readers call this first: MLflow would create a missing SQLite file instead of saying that it is missing, and
    try for minutes to reach a server that is away.

    Raises UserError if the file of a SQLite store does not exist.
    """
    limit_patience()
    path = sqlite_file(uri)
    if path is not None and not path.is_file():
        raise StoreAway(
            f"tracking database {path} does not exist: run `cppo launch SWEEP` or `cppo reference import` first, "
            "or set MLFLOW_TRACKING_URI to the store that holds the runs"
        )
    require_mlflow_database(uri)


def require_place(uri: str) -> str:
    """The error for a SQLite store that does not exist yet; empty if it exists, or is not a file.

    Raises StoreAway where not even its folder exists: whoever names such a file means another one.
    """
    path = sqlite_file(uri)
    if path is None or path.is_file():
        return ""
    if not path.parent.is_dir():
        raise StoreAway(
            f"tracking database {path} does not exist, and neither does its folder: make that, or set {VARIABLE} to "
            "the store that holds the runs"
        )
    named = os.environ.get(VARIABLE)
    return (
        f"tracking database {path} does not exist: only folders of runs here say what is done"
        if named
        else ""
    )


class _Collection:
    """How many threads have suspended garbage collection, and whether it was enabled before the first of them."""

    lock = threading.Lock()
    users = 0
    was = True


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Suspend garbage collection in this block; several threads may do so at once.

    A page of 1,000 runs is a hundred thousand objects of SQLAlchemy's, and collecting among them takes two thirds of
    the time of reading it.
    """
    with _Collection.lock:
        if not _Collection.users:
            _Collection.was = gc.isenabled()
            gc.disable()
        _Collection.users += 1
    try:
        yield
    finally:
        with _Collection.lock:
            _Collection.users -= 1
            if not _Collection.users and _Collection.was:
                gc.enable()
