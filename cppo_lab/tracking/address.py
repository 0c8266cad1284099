"""The URI of the tracking store. Imports neither mlflow nor sqlalchemy, so that a wrong URI is reported at once."""

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cppo_lab.errors import StoreAway, UserError
from cppo_lab.files import MASK, is_shared, open_lock, redacted

VARIABLE = "MLFLOW_TRACKING_URI"  # MLflow's own
DEFAULT_URI = "sqlite:///mlflow.db"  # relative to the working folder, like the default of `mlflow server`
_DATABASES = ("postgresql", "mysql", "mssql")
_SQLITE_QUERY = re.compile(r"(timeout=\d+(\.\d+)?)?")
_MADE_BY_MLFLOW = "experiments"  # the first table that MLflow creates
_IN_CREATION = "_alembic_tmp_"  # prefix of temporary tables during a migration
# We retry an unreachable server ourselves, so wait seconds instead of MLflow's default of minutes. A slow server gets
# more time.
_SERVER_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
_DATABASE_PATIENCE = {"PGCONNECT_TIMEOUT": "10"}  # seconds; libpq has no timeout by default
_DRIVERS = {"mysql": "MySQLdb", "mssql": "pyodbc"}  # SQLAlchemy's defaults
_NO_ANSWER = re.compile(
    "Max retries exceeded|Failed to establish a new connection|Connection aborted|Read timed out"
)
_SYSTEM = re.compile(r"\[Errno -?\d+\] ([A-Za-z ]+)")
_POSTGRES_DRIVERS = ("psycopg2", "psycopg")  # MLflow is tested with the first


def tracking_uri(configured: str | None = None) -> str:
    """The tracking store to use: `MLFLOW_TRACKING_URI`, else `configured`, else `sqlite:///mlflow.db`.

    A SQLite file is given by its absolute path, since runs start in separate processes. Raises UserError for an unknown
    scheme, or one that does not support several writers (a plain folder).
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
    """Raises UserError for a SQLite URI that does not name a file, or has other parameters than a timeout."""
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
    """Whether a server's host and port are valid; a local database needs no host."""
    try:
        parts = urlsplit(uri)
        return parts.port != 0 and (bool(parts.hostname) or not uri.startswith("http"))
    except ValueError:  # an invalid or too large port, an incomplete IPv6 address
        return False


def absolute_uri(uri: str) -> str:
    """The store's URI, independent of the working folder and of SQLAlchemy's version.

    `postgresql://` selects different drivers in SQLAlchemy 2.0 and 2.1; here it is replaced by the installed one.
    Raises UserError if none is installed.
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
    """The full URI of the redacted `uri`, from the environment.

    Raises UserError if the environment has a different one.
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
    """Pass a store's URI to jobs in the environment, since jobs are written to files, which must not contain a
    password.
    """
    before = os.environ.get(variable)
    os.environ[variable] = uri
    try:
        yield
    finally:
        os.environ.pop(variable, None)  # another thread may have removed it
        if before is not None:
            os.environ[variable] = before


def sqlite_file(uri: str) -> Path | None:
    """The database file of a SQLite URI; None for every other store."""
    return Path(_path(uri)) if uri.startswith("sqlite:") else None


def no_answer(error: Exception) -> str:
    """The operating system's reason why a server does not answer; empty for any other fault of a store."""
    text = str(error)
    if not _NO_ANSWER.search(text):
        return ""
    reasons = _SYSTEM.findall(text)
    why = reasons[-1].strip() if reasons else "timed out" if "timed out" in text else "no connection"
    return f"it does not answer: {why}"


def artifact_folder(artifact_uri: str) -> Path | None:
    """The folder of a run's artifacts on this machine; None if they are elsewhere, or the URI is invalid."""
    try:
        parts = urlsplit(artifact_uri)
    except ValueError:  # brackets without an IPv6 address
        return None
    if not artifact_uri or parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    return Path(unquote(parts.path) if parts.scheme else artifact_uri)


def store_key(uri: str) -> str:
    """A key of a store for files that others may read. It is computed without the password, which could be guessed from
    a hash.
    """
    return hashlib.sha256(redacted(uri).encode()).hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path, kind: str = "lock") -> Iterator[None]:
    """Hold the lock of the file at `path`: `.NAME.kind` next to it, where every account with write access finds it.

    The lock is not in the shared folder for temporary files, where any user of the machine could create it first. An
    account that cannot write to the folder cannot change anything in it, so it proceeds without a lock. Raises
    UserError if the lock is a link.
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
            os.fchmod(file.fileno(), 0o664)  # a read-only command may create it, with any umask
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _path(uri: str) -> str:
    """The path between `sqlite:///` and a query."""
    return uri.partition("?")[0].removeprefix("sqlite:///")


def require_mlflow_database(uri: str) -> None:
    """Require that a SQLite database is MLflow's and not newer than the installed MLflow.

    MLflow would add its tables to any SQLite database, and fail half-way on one of a newer MLflow.

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

    A store whose creation was killed may look the same; code that opens the store checks for that first.
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
    """Whether the installed MLflow has a migration that follows this schema version."""
    follows = f'down_revision = "{version}"'
    return any(follows in file.read_text(encoding="utf-8") for file in _migrations().values())


def _migrations() -> dict[str, Path]:
    """MLflow's migrations: resulting schema version -> file; empty without MLflow."""
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
    """Whether MLflow has begun to create its tables without reaching the first schema version."""
    return not version and (_MADE_BY_MLFLOW in tables or tables == {"alembic_version"})


def _tables(path: Path) -> tuple[set[str], str]:
    """The tables of a SQLite file and their schema version; empty if it cannot be read, for which MLflow reports the
    reason.
    """
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
    """Limit MLflow's retries and logging for an unreachable store, unless the environment sets them."""
    for name, value in (_SERVER_PATIENCE | _DATABASE_PATIENCE).items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(
        logging.ERROR
    )  # one line per attempt; we report the result


def require_store(uri: str) -> None:
    """Require that the store exists. Readers call this first, because MLflow would create a missing SQLite file instead
    of reporting it, and retry an unreachable server for minutes.

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

    Raises StoreAway if not even its folder exists, since such a path is probably a mistake.
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
