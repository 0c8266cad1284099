"""Tracking stores: names that are none, places that do not answer, databases of others. No password is shown."""

import contextlib
import sqlite3
from pathlib import Path

from tests.hostile.case import Case

VARIABLE = "MLFLOW_TRACKING_URI"
RUN = ["quickstart", "variant=grpo", "seed=0"]
FORMS = "is not supported: use sqlite:///FILE.db, http(s)://HOST:PORT or a postgresql:// URI"
NAME_A_FILE = "name a file, sqlite:///FILE.db (MLFLOW_TRACKING_URI, or tracking.uri in the configuration)"
ANOTHER = "set MLFLOW_TRACKING_URI to another"


def _plan(uri: str, says: str) -> Case:
    return Case(["plan", *RUN], says, environment={VARIABLE: uri})


def _asked(uri: str, says: str) -> Case:
    """`plan` asks no store; `pull` asks about runs that have no folder here. (A launch holds them.)"""
    return Case(["pull", *RUN], says, environment={VARIABLE: uri})


def _refused(uri: str, shown: str = "") -> Case:
    return _plan(uri, f"tracking URI {shown or repr(uri)} {FORMS}")


def _tables(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def _customers(folder: Path) -> None:
    _tables(folder / "shop.db", "CREATE TABLE customers (id INTEGER)")


def _searches(folder: Path) -> None:
    _tables(
        folder / "shop.db",
        "CREATE TABLE studies (study_id INTEGER)",
        "CREATE TABLE alembic_version (version_num VARCHAR(32))",
        "INSERT INTO alembic_version VALUES ('v3.2.0.a')",
    )


def _newer(folder: Path) -> None:
    _tables(folder / "mlflow.db", "UPDATE alembic_version SET version_num = 'ffffffffffff'")


def _folder(folder: Path) -> None:
    (folder / "mlflow.db").mkdir()


OTHERS = [
    ("launch", *RUN, "--dry-run"),
    ("report", *RUN),
    ("launch", *RUN),
    ("reference", "import"),
    ("ui",),
]
SHOP = {VARIABLE: "sqlite:///shop.db"}

CASES = [
    _refused("./mlruns"),
    _refused("databricks"),
    _refused("mlflow.db"),
    _refused("sqllite:///x.db"),
    _refused("sqlite://"),
    _refused("sqlite:///"),
    _refused("sqlite+pysqlite:///x.db"),
    _refused("file:///tmp/x"),
    _refused("ftp://h/x"),
    _refused("s3://bucket/x"),
    _refused("uc:x"),
    _refused("$(touch x)"),
    _refused("javascript:alert(1)"),
    _refused(" sqlite:///x.db"),
    _refused("sqlite:/x.db"),
    _refused("sqlite://x.db"),
    _refused("sqlite:///:memory:"),
    _refused("sqlite:///a\nb.db", "'sqlite:///a\\nb.db'"),
    _refused("sqlite:///\x1b[2J.db", "'sqlite:///\\x1b[2J.db'"),
    _refused("http://"),
    _refused("http:///x"),
    _refused("http://h:99999"),
    _refused("http://h:0"),
    _refused("http://h:port", "'http://h:***'"),
    _refused("http://[::1", "'http://[:***'"),
    _refused("https://u:secret@", "'https://u:***@'"),
    _refused("postgres://u:secret@h/d", "'postgres://u:***@h/d'"),
    _refused("postgresql://u:secret@h:99999/d", "'postgresql://u:***@h:99999/d'"),
    _plan(
        "postgresql+nodriver://u:secret@h/d",
        "postgresql+nodriver://u:***@h/d: its driver 'nodriver' is not installed",
    ),
    _plan(
        "mysql+../x://u:secret@h/d", "mysql+../x://u:***@h/d: its driver '../x' is not installed: install it"
    ),
    _plan(
        "sqlite:///x.db?mode=ro",
        f"sqlite:////…x.db?mode=ro: of a query only timeout=SECONDS is known: {NAME_A_FILE}",
    ),
    _plan(
        "sqlite:///x.db?timeout=abc",
        f"x.db?timeout=abc: of a query only timeout=SECONDS is known: {NAME_A_FILE}",
    ),
    _plan(f"sqlite:///{'x' * 300}.db", f"File name too long: {NAME_A_FILE}"),
    _plan("sqlite:////dev", f"tracking database /dev is a folder: {NAME_A_FILE}"),
    _asked(
        "http://127.0.0.1:1",
        f"tracking store http://127.0.0.1:1 cannot be read: …Connection refused…{ANOTHER}",
    ),
    _asked(
        "http://u:secret@127.0.0.1:1", f"tracking store http://u:***@127.0.0.1:1 cannot be read: …{ANOTHER}"
    ),
    _asked(
        "http://127.0.0.1:1?password=secret",
        f"tracking store http://127.0.0.1:*** cannot be read: …{ANOTHER}",
    ),
    Case(
        ["report", *RUN],
        "tracking store http://u:***@127.0.0.1:1 cannot be read (…set MLFLOW_TRACKING_URI to the right one",
        environment={VARIABLE: "http://u:secret@127.0.0.1:1"},
    ),
    Case(["plan", *RUN], f"mlflow.db is a folder: {NAME_A_FILE}", make=_folder),
    Case(["launch", *RUN], f"mlflow.db is a folder: {NAME_A_FILE}", make=_folder),
    Case(["plan", *RUN, "tracking.uri=./runs.db"], f"tracking URI './runs.db' {FORMS}"),
    Case(["plan", *RUN, "tracking.uri='ftp://u:secret@h'"], f"tracking URI 'ftp://u:***@h' {FORMS}"),
    Case(["sync"], f"tracking URI 'nonsense' {FORMS}", environment={VARIABLE: "nonsense"}),
    Case(["status"], f"tracking URI 'nonsense' {FORMS}", environment={VARIABLE: "nonsense"}),
    Case(["doctor"], f"tracking URI 'http://h:99999' {FORMS}", environment={VARIABLE: "http://h:99999"}),
    Case(["ui"], f"tracking URI 'nonsense' {FORMS}", environment={VARIABLE: "nonsense"}),
    Case(
        ["report", *RUN], "mlflow.db does not exist: run `cppo launch SWEEP` or `cppo reference import` first"
    ),
    Case(["ui"], "mlflow.db does not exist: run `cppo launch SWEEP` or `cppo reference import` first"),
    Case(["report", "main", "--from", "paper"], "mlflow.db does not exist: run `cppo launch SWEEP` or `cppo"),
    *(
        Case(
            [command, *RUN],
            f"shop.db cannot be {'read' if command == 'report' else 'used'}",
            {"shop.db": "no database, but long enough to be looked at " * 100},
            SHOP,
        )
        for command in ("launch", "report")
    ),
    *(
        Case(command, "shop.db is not MLflow's: it has the tables customers: set", {}, SHOP, _customers)
        for command in OTHERS
    ),
    *(
        Case(
            command,
            "mlflow.db is of another version of MLflow: …found version ffffffffffff…mlflow db upgrade",
            make=_newer,
            store=True,
        )
        for command in OTHERS
        if command != ("ui",)  # its server has begun to start when the client is refused
    ),
    Case(
        ["launch", *RUN],
        "shop.db is not MLflow's: it has the tables alembic_version, studies",
        {},
        SHOP,
        _searches,
    ),
    Case(
        ["report", *RUN],
        "experiment 'cppo-mini' does not exist in …run `cppo launch SWEEP` first",
        store=True,
    ),
    Case(["report", "main", "--from", "paper"], "run `cppo reference import` first", store=True),
    Case(
        ["report", "tune_cppo"],
        "experiment 'cppo-mini' does not exist in …run `cppo launch SWEEP` first",
        store=True,
    ),
]
