"""The storage of studies: SQLite, a journal file, or PostgreSQL. Passwords occur only in the URL."""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import optuna
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from cppo_lab.errors import UserError
from cppo_lab.files import redacted
from cppo_lab.signals import deferring
from cppo_lab.tracking import address
from cppo_lab.tracking.client import create_atomically, is_new

VARIABLE = "OPTUNA_STORAGE"  # Optuna's variable; workers get the URL through it, so no file has a password
DEFAULT_URL = "sqlite:///optuna.db"  # relative to the working folder
TRIES = 3  # two machines may create the tables on a new server at the same time
ADVISORY_LOCK = (
    0x6370706F  # PostgreSQL's advisory locks are numbers shared by all users of a database; this is "cppo"
)
LOCK_WAIT_SECONDS = 60  # for SQLite, while another process writes


def storage_url(given: str | None = None) -> str:
    """The storage to use: `given`, else OPTUNA_STORAGE, else `sqlite:///optuna.db`; files by their absolute path.

    Raises UserError for a storage that workers cannot share.
    """
    url = (os.environ.get(VARIABLE) or DEFAULT_URL) if given is None else given
    if url.startswith("sqlite:///") and url.removeprefix("sqlite:///") not in ("", ":memory:", "/"):
        return address.absolute_uri(url)
    if url.endswith(".journal") and "://" not in url:
        return str(Path(url).resolve())
    if re.match(r"postgresql(\+\w+)?://", url):
        return address.absolute_uri(url)
    raise UserError(
        f"storage {redacted(url)!r} is not supported: use sqlite:///FILE.db, a path that ends in .journal (for a "
        "file system that machines share), or postgresql://USER:PASSWORD@HOST/DATABASE"
    )


def file_of(url: str) -> Path | None:
    """The file of a storage; None for a server."""
    return address.sqlite_file(url) or (Path(url) if url.endswith(".journal") else None)


@contextlib.contextmanager
def exclusive(url: str) -> Iterator[None]:
    """Let only one process at a time make changes that must appear atomic; on a server, across machines."""
    path = file_of(url)
    if path is not None:
        with address.locked(path, "search.lock"):
            yield
        return
    engine = create_engine(url, poolclass=NullPool)
    with (
        engine.connect() as connection
    ):  # PostgreSQL releases the lock when the connection ends for any reason
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
        yield


def open_storage(url: str) -> BaseStorage:
    """The storage at `url`, with its tables.

    Raises UserError if it cannot be reached or its driver is not installed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = file_of(url)
    if path is not None and not path.parent.is_dir():
        raise UserError(
            f"storage {redacted(url)}: folder {path.parent} does not exist: make it, or name another place"
        )
    for left in range(TRIES - 1, -1, -1):
        try:
            return _open(url)
        except ImportError:
            raise UserError(
                f"storage {redacted(url)}: its driver is not installed: pip install psycopg2-binary, and begin "
                "the URL with postgresql://"
            ) from None
        except (SQLAlchemyError, OptunaError, OSError, ValueError, RuntimeError) as error:
            if not left:
                first_line = redacted((str(error).strip().splitlines() or [type(error).__name__])[0])
                raise UserError(f"storage {redacted(url)} cannot be used: {first_line}") from None
            time.sleep(0.5)
    raise AssertionError("the last try returns or raises")


def _require_journal(path: Path) -> None:
    """Require a valid journal file: Optuna would append to any file, and then fail to read it.

    Raises UserError.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # another process is writing it
            try:
                is_record = "op_code" in json.loads(line)
            except (ValueError, TypeError, RecursionError):
                is_record = False
            if not is_record:
                raise UserError(
                    f"storage {path}: line {number} is no record of Optuna's journal: name another file, or remove "
                    "that line"
                )


def _open(url: str) -> BaseStorage:
    if url.endswith(".journal"):
        _require_journal(Path(url))
        return JournalStorage(JournalFileBackend(url))
    path = address.sqlite_file(url)
    if path is None:
        return RDBStorage(url)
    if is_new(path):
        with exclusive(url):
            create_atomically(path, lambda beside: RDBStorage(f"sqlite:///{beside}").engine.dispose())
    return _SqliteStorage(url, engine_kwargs={"connect_args": {"timeout": LOCK_WAIT_SECONDS}})


class _SqliteStorage(RDBStorage):
    """Optuna's storage, with signals deferred until each call returns."""


# Including private methods, which Optuna's cache calls.
for _name, _method in vars(RDBStorage).items():
    if isinstance(_method, FunctionType) and not _name.startswith("__"):
        setattr(_SqliteStorage, _name, deferring(_method))
