"""Where the tracking store is. Imports neither mlflow nor sqlalchemy, so that a wrong place is named at once."""

import contextlib
import gc
import importlib.util
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from cppo_lab.errors import UserError

VARIABLE = "MLFLOW_TRACKING_URI"  # MLflow's own
DEFAULT_URI = "sqlite:///mlflow.db"  # relative to the working folder, where `mlflow server` looks as well
_DATABASES = ("postgresql", "mysql", "mssql")
_POSTGRES_DRIVERS = ("psycopg2", "psycopg")  # MLflow is tested with the first


def tracking_uri(configured: str | None = None) -> str:
    """The tracking store to use: `MLFLOW_TRACKING_URI`, else `configured`, else `sqlite:///mlflow.db`.

    A SQLite file is named by its absolute path: runs start in processes of their own.
    Raises UserError for a scheme that cannot hold runs of several writers (a plain folder) or that is unknown.
    """
    uri = os.environ.get(VARIABLE) or configured or DEFAULT_URI
    scheme = uri.partition("://")[0] if "://" in uri else ""
    named = not uri.startswith("sqlite:") or (uri.startswith("sqlite:///") and _path(uri) not in ("", "/"))
    if not named or (scheme not in ("sqlite", "http", "https") and scheme.split("+")[0] not in _DATABASES):
        raise UserError(
            f"tracking URI {redacted(uri)!r} is not supported: use sqlite:///FILE.db, http(s)://HOST:PORT or a "
            "postgresql:// URI (set MLFLOW_TRACKING_URI, or tracking.uri in the configuration)"
        )
    return absolute_uri(uri)


def absolute_uri(uri: str) -> str:
    """The same store named independently of the working folder and of SQLAlchemy's version.

    `postgresql://` means another driver in SQLAlchemy 2.1 than in 2.0: here, the one that is installed.
    Raises UserError if none is.
    """
    path = sqlite_file(uri)
    if path is not None:
        _, question, query = uri.partition("?")
        return f"sqlite:///{path.resolve()}{question}{query}"
    if not uri.startswith("postgresql://"):
        return uri
    for driver in _POSTGRES_DRIVERS:
        if importlib.util.find_spec(driver):
            return uri.replace("postgresql://", f"postgresql+{driver}://", 1)
    raise UserError(f"{redacted(uri)}: no driver for PostgreSQL is installed: pip install psycopg2-binary")


def redacted(text: str) -> str:
    """A URI, or a text with one URI in it, without passwords, for people to read."""
    hidden = re.sub(r"(://[^/@\s]*?):\S*@", r"\1:***@", text)
    return re.sub(r"(password=)[^&\s]*", r"\1***", hidden)


def with_password(uri: str) -> str:
    """The URI that `redacted` was made of, which the environment has.

    Raises UserError if it has another one.
    """
    if "***" not in uri:
        return uri
    known = os.environ.get(VARIABLE)
    if known and redacted(whole := absolute_uri(known)) == uri:
        return whole
    raise UserError(
        f"the password of tracking store {uri} is not known here: set {VARIABLE} to its whole URI"
    )


@contextlib.contextmanager
def in_the_environment(uri: str, variable: str = VARIABLE) -> Iterator[None]:
    """Let jobs find a store: they are written to files, where a password must not be."""
    before = os.environ.get(variable)
    os.environ[variable] = uri
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before


def sqlite_file(uri: str) -> Path | None:
    """The database file of a SQLite URI; None for every other store."""
    return Path(_path(uri)) if uri.startswith("sqlite:") else None


def _path(uri: str) -> str:
    """What stands between `sqlite:///` and a query."""
    return uri.partition("?")[0].removeprefix("sqlite:///")


def require_store(uri: str) -> None:
    """Readers call this first: MLflow would create a missing SQLite file instead of saying that it is missing.

    Raises UserError if the file of a SQLite store does not exist.
    """
    path = sqlite_file(uri)
    if path is not None and not path.is_file():
        raise UserError(
            f"tracking database {path} does not exist: run `cppo launch SWEEP` or `cppo reference import` first, "
            "or set MLFLOW_TRACKING_URI to the store that holds the runs"
        )


class _Collection:
    """How many threads want garbage to be left alone, and whether it was collected before the first of them."""

    lock = threading.Lock()
    users = 0
    was = True


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Leave garbage alone meanwhile; several threads may ask for it at once.

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
