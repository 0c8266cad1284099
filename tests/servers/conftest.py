"""Real servers for the tests: a PostgreSQL and MLflow servers for the session, started on demand.

Without PostgreSQL its tests are skipped, but where CI or CPPO_REQUIRE_POSTGRES is set that is a failure.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cppo_lab.tracking.address import absolute_uri
from cppo_lab.tracking.client import open_client
from dev.servers.faulty_proxy import FaultyProxy
from dev.servers.mlflow_server import MlflowServer
from dev.servers.postgres import Postgres, default_folder
from tests.requirement import POSTGRES
from tests.servers import forked

TEMPLATE = "mlflow_tables"


@pytest.fixture(scope="session", autouse=True)
def fork_server_ends() -> Iterator[None]:
    """What tests fork their processes from ends with the session."""
    yield
    forked.stop()


def found_in(secret: str, *folders: Path) -> list[Path]:
    """The files below the folders that have a secret in their name or content."""
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if secret.lower() in path.name.lower()
        or (path.is_file() and not path.is_symlink() and secret.lower().encode() in path.read_bytes().lower())
    ]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this session."""
    POSTGRES.demand()
    server = Postgres(default_folder(f"tests-{os.getpid()}"))
    server.remove()  # left by a killed session
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def new_database(postgres: Postgres) -> Callable[[], str]:
    """Makes a database with MLflow's tables, which take seconds to make but can be copied; its URL."""
    open_client(absolute_uri(postgres.make_database(TEMPLATE)))
    # A database that somebody is connected to can't be copied, and MLflow keeps its connections.
    postgres.sql(f"ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false")
    postgres.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{TEMPLATE}'")
    numbers = itertools.count()
    return lambda: postgres.make_database(f"mlflow_{next(numbers)}", like=TEMPLATE)


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with MLflow's tables, to be copied."""
    path = tmp_path_factory.mktemp("tables") / "mlflow.db"
    open_client(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, sqlite_tables: Path) -> Iterator[MlflowServer]:
    """An MLflow server over SQLite, as its command line starts it. A test that pauses it has it go on."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(sqlite_tables, folder / "mlflow.db")
    started = MlflowServer(folder, f"sqlite:///{folder}/mlflow.db").start()
    yield started
    started.stop()


@pytest.fixture
def proxy(server: MlflowServer) -> Iterator[FaultyProxy]:
    """Stands before the server."""
    with FaultyProxy(server.port) as standing:
        yield standing
