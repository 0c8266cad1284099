"""The URI of the tracking store, and the files of a SQLite store. Imports no MLflow, which takes seconds."""

import contextlib
import errno
import fcntl
import importlib.util
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cppo_lab.errors import StoreAway, UserError, say
from cppo_lab.files import MASK, is_shared, open_lock, redacted

VARIABLE = "MLFLOW_TRACKING_URI"  # MLflow's own
DEFAULT_URI = "sqlite:///mlflow.db"  # relative to the working folder, like the default of `mlflow server`
ARTIFACTS = "mlartifacts"  # the folder beside a SQLite file, with a folder for each experiment
# A store's error for a full disk: SQLite's words, SQLAlchemy's for PostgreSQL's 53100. A server passes on no code.
FULL = re.compile(r"database or disk is full|\.DiskFull\)")
_SQLITE_QUERY = re.compile(r"(timeout=\d+(\.\d+)?)?")
_DATABASES = ("postgresql", "mysql", "mssql")
_DRIVERS = {"mysql": "MySQLdb", "mssql": "pyodbc"}  # SQLAlchemy's defaults
_POSTGRES_DRIVERS = ("psycopg2", "psycopg")  # MLflow is tested with the first


def tracking_uri(configured: str | None = None) -> str:
    """The tracking store to use: `MLFLOW_TRACKING_URI`, else `configured`, else `sqlite:///mlflow.db`.

    A SQLite file is given by its absolute path, since runs start in separate processes. Raises UserError for a scheme
    that is unknown, or does not support several writers (a plain folder).
    """
    named = os.environ.get(VARIABLE) or configured or DEFAULT_URI
    if not named.isprintable() or not _is_supported(named):
        signs = "; in a password write `@`, `/`, `#` and such as %40, %2F, %23" if "@" in named else ""
        shown = redacted(re.sub(r"(?s)(://[^/?#@:]*):.*@", rf"\1:{MASK}@", named))
        raise UserError(
            f"tracking URI {shown!r} is not supported: use sqlite:///FILE.db, http(s)://HOST:PORT or a "
            f"postgresql:// URI (set {VARIABLE}, or tracking.uri in the configuration){signs}"
        )
    if (database := sqlite_file(named)) is None:
        return absolute_uri(named)
    remedy = f"name a file, sqlite:///FILE.db ({VARIABLE}, or tracking.uri in the configuration)"
    try:
        uri, is_folder = absolute_uri(named), database.is_dir()
    except (OSError, RuntimeError) as error:  # RuntimeError: of pathlib for a loop before Python 3.13
        why = getattr(error, "strerror", "a circular link")
        raise UserError(f"tracking database {database}: {why}: {remedy}") from None
    if not _SQLITE_QUERY.fullmatch(named.partition("?")[2]):
        raise UserError(f"tracking URI {uri}: of a query only timeout=SECONDS is known: {remedy}")
    if is_folder:
        raise UserError(f"tracking database {database} is a folder: {remedy}")
    return uri


def _is_supported(uri: str) -> bool:
    scheme, separator, _ = uri.partition("://")
    if scheme == "sqlite":
        return uri.startswith("sqlite:///") and _path(uri) not in ("", "/") and ":memory:" not in uri
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:  # an invalid or too large port, an incomplete IPv6 address
        return False
    if re.search(r"\s", uri):
        return False
    if scheme in ("http", "https"):
        return bool(host) and port != 0
    # SQLAlchemy takes what follows the first `@` as the host. Before an `@` in a query stands its key, or else the
    # query is the end of a password. A local database needs no host.
    before, _, query = uri.partition("?")
    is_raw = before.count("@") > 1 or ("@" in query and "=" not in query.partition("@")[0])
    return scheme.split("+")[0] in _DATABASES and bool(separator) and not is_raw and port != 0


def absolute_uri(uri: str) -> str:
    """The store's URI, independent of the working folder and of SQLAlchemy's version.

    `postgresql://` selects different drivers in SQLAlchemy 2.0 and 2.1; here the installed driver is named. Raises
    UserError if the store's driver is not installed, or no URI can have the path of a SQLite file.
    """
    if (path := sqlite_file(uri)) is not None:
        _, question, query = uri.partition("?")
        if sign := re.search("[?\ud800-\udfff]|%[0-9A-Fa-f]{2}", str(path.resolve())):
            ends = "end it" if sign[0] == "?" else "be read as another character"  # by SQLAlchemy 2.1
            why = (
                f"the `{sign[0]}` in its path would {ends}"
                if sign[0].isprintable()
                else "its path is not UTF-8"
            )
            raise UserError(f"database {path}: {why}: work in another folder, or name another file")
        return f"sqlite:///{path.resolve()}{question}{query}"
    if uri.startswith("http"):
        return uri
    if uri.startswith("postgresql://"):
        driver = next((name for name in _POSTGRES_DRIVERS if importlib.util.find_spec(name)), "")
        if not driver:
            raise UserError(
                f"{redacted(uri)}: no driver for PostgreSQL is installed: pip install psycopg2-binary"
            )
        return uri.replace("postgresql://", f"postgresql+{driver}://", 1)
    name, _, driver = uri.partition("://")[0].partition("+")
    module = driver or _DRIVERS.get(name, "")
    if not module.isidentifier() or importlib.util.find_spec(module) is None:
        raise UserError(
            f"{redacted(uri)}: its driver {module!r} is not installed: install it, or name another store"
        )
    return uri


def with_password(uri: str) -> str:
    """The full URI of the redacted `uri`, from the environment. Raises UserError if the URI is not there."""
    if MASK not in uri:
        return uri
    named = os.environ.get(VARIABLE)
    if named and redacted(whole := absolute_uri(named)) == uri:
        return whole
    raise UserError(
        f"the password of tracking store {uri} is not known here: set {VARIABLE} to its whole URI"
    )


@contextlib.contextmanager
def in_the_environment(uri: str, variable: str = VARIABLE) -> Iterator[None]:
    """Pass a store's URI to jobs in the environment: jobs are written to files, which must not contain a password."""
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
    return Path(_path(uri)).absolute() if uri.startswith("sqlite:") else None


def is_absent(uri: str) -> bool:
    """Whether the store is a SQLite file that does not exist, or not yet."""
    return (path := sqlite_file(uri)) is not None and not path.is_file()


def is_new(path: Path) -> bool:
    """Whether the folder of a database exists, and its file is missing or empty."""
    return path.parent.is_dir() and not (path.exists() and path.stat().st_size)


def _path(uri: str) -> str:
    """The path between `sqlite:///` and a query."""
    return uri.partition("?")[0].removeprefix("sqlite:///")


def artifact_folder(artifact_uri: str, uri: str) -> Path | None:
    """The folder on this machine with a run's artifacts in the store at `uri`; None if they are elsewhere, or if
    `artifact_uri` is invalid.

    MLflow notes absolute paths. If a SQLite store was moved with the folder beside it, artifacts that are no longer at
    the noted path are those in that folder.
    """
    try:
        parts = urlsplit(artifact_uri)
    except ValueError:  # brackets without an IPv6 address
        return None
    if not artifact_uri or parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else artifact_uri)
    if "\0" in str(folder):  # which no file has
        return None
    # Path.exists raises an error where another account's home folder may not be searched.
    if (database := sqlite_file(uri)) is None or ARTIFACTS not in folder.parts or os.path.exists(folder):  # noqa: PTH110
        return folder
    root = next(parent for parent in (folder, *folder.parents) if parent.name == ARTIFACTS)
    below, beside = folder.relative_to(root), database.parent / ARTIFACTS
    is_moved = not os.path.exists(root) or beside.joinpath(*below.parts[:1]).is_dir()  # noqa: PTH110
    return beside / below if is_moved else folder


@contextlib.contextmanager
def locked(path: Path, kind: str = "lock") -> Iterator[None]:
    """Hold the lock of the file at `path`: `.NAME.kind` next to it, where every account with write access finds it.

    The lock is not in the shared folder for temporary files, where any user of the machine could create it first. An
    account that cannot write to the folder cannot change anything in it, so it proceeds without a lock. Raises
    UserError if the lock is a link.
    """
    try:
        file = open_lock(path.with_name(f".{path.name}.{kind}"))
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


def require_mlflow_database(uri: str) -> None:
    """Raises UserError for a SQLite file of another program, before MLflow would add its tables to it."""
    path = sqlite_file(uri)
    if path is None or not path.is_file():
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            names = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            tables = [str(name) for (name,) in database.execute(names)]
    except sqlite3.Error:  # MLflow reports the reason
        return
    if any(name.startswith("_alembic_tmp_") for name in tables):  # a table that is being migrated
        raise half_made(path)
    if "experiments" not in tables and set(tables) - {"alembic_version"}:
        raise UserError(
            f"tracking database {path} is not MLflow's: it has the tables {', '.join(tables[:5])}: set {VARIABLE} to "
            "another file"
        )


def half_made(path: Path) -> UserError:
    """The error for a store whose tables are partly missing or partly upgraded."""
    return UserError(
        f"tracking database {path} is incomplete: the program that created or upgraded its tables was killed. If it "
        f"never held runs, remove it and try again; otherwise restore a copy of it, or set {VARIABLE} to another file"
    )


def require_store(uri: str) -> None:
    """Require that the store exists: MLflow would create a missing SQLite file instead of reporting it.

    Raises StoreAway if it does not, UserError if it is another program's.
    """
    if (path := sqlite_file(uri)) is not None and not path.is_file():
        raise StoreAway(
            f"tracking database {path} does not exist: run `cppo launch SWEEP` or `cppo reference import` first, "
            "or set MLFLOW_TRACKING_URI to the store that holds the runs"
        )
    require_mlflow_database(uri)


def known_store(uri: str) -> str:
    """`uri`, if the store can be there; a note on standard error if somebody has named a store that is not there yet.

    Raises StoreAway for a SQLite file in a folder that does not exist, since such a path is probably a mistake.
    """
    path = sqlite_file(uri)
    if path is None or path.is_file():
        return uri
    if not path.parent.is_dir():
        raise StoreAway(
            f"tracking database {path} does not exist, and neither does its folder: make that, or set {VARIABLE} to "
            "the store that holds the runs"
        )
    if os.environ.get(VARIABLE):
        say(
            f"cppo: note: tracking database {path} does not exist: only folders of runs here say what is done"
        )
    return uri
