"""Real servers for the tests in this folder: a PostgreSQL and an MLflow server for the session, started on demand.

Without PostgreSQL its tests are skipped, but where CI or CPPO_REQUIRE_POSTGRES is set that is a failure.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cppo_lab.store import absolute_uri
from cppo_lab.tracking.client import open_client
from dev.servers.faulty_proxy import FaultyProxy
from dev.servers.mlflow_server import MlflowServer
from dev.servers.postgres import Postgres, default_folder
from tests.requirement import POSTGRES

TEMPLATE = "mlflow_tables"


@pytest.fixture(scope="session", autouse=True)
def _trainers_find_the_tests() -> Iterator[None]:
    """Trainers are processes of these modules, and another package called `tests` may be installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this session. What killed sessions have left running is cleared away first."""
    POSTGRES.demand()
    own = default_folder(f"tests-{os.getpid()}")
    for folder in own.parent.glob("tests-*"):
        session = folder.name.split("-")[1]
        if session.isdigit() and not Path("/proc", session).exists():
            Postgres(folder).remove()
    server = Postgres(own)
    server.start(durable=False)
    yield server
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
    """An MLflow server over SQLite. A test that kills or pauses it brings it back."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(sqlite_tables, folder / "mlflow.db")
    started = MlflowServer(folder, f"sqlite:///{folder}/mlflow.db")
    try:
        yield started.start()
    finally:
        started.stop()


@pytest.fixture
def proxy(server: MlflowServer) -> Iterator[FaultyProxy]:
    """Stands before the server."""
    with FaultyProxy(server.port) as standing:
        yield standing
