"""Where the tracking store is. Imports neither mlflow nor sqlalchemy, so that a wrong place is named at once."""

import os
import re
from pathlib import Path

from cppo_lab.errors import UserError

DEFAULT_URI = "sqlite:///mlflow.db"  # relative to the working folder, where `mlflow server` looks as well
_DATABASES = ("postgresql", "mysql", "mssql")


def tracking_uri(configured: str | None = None) -> str:
    """The tracking store to use: `MLFLOW_TRACKING_URI`, else `configured`, else `sqlite:///mlflow.db`.

    A SQLite file is named by its absolute path: runs start in processes of their own.
    Raises UserError for a scheme that cannot hold runs of several writers (a plain folder) or that is unknown.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or configured or DEFAULT_URI
    scheme = uri.partition("://")[0] if "://" in uri else ""
    named = not uri.startswith("sqlite:") or (uri.startswith("sqlite:///") and _path(uri) not in ("", "/"))
    if not named or (scheme not in ("sqlite", "http", "https") and scheme.split("+")[0] not in _DATABASES):
        raise UserError(
            f"tracking URI {redacted(uri)!r} is not supported: use sqlite:///FILE.db, http(s)://HOST:PORT or a "
            "postgresql:// URI (set MLFLOW_TRACKING_URI, or tracking.uri in the configuration)"
        )
    return absolute_uri(uri)


def absolute_uri(uri: str) -> str:
    """The same store named independently of the working folder."""
    path = sqlite_file(uri)
    if path is None:
        return uri
    _, question, query = uri.partition("?")
    return f"sqlite:///{path.resolve()}{question}{query}"


def redacted(url: str) -> str:
    """The URL without its password, for people to read."""
    hidden = re.sub(r"(://[^/@]*?):.*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", hidden)


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
