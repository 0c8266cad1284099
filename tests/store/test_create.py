"""A store is made whole or not at all, whenever the process that makes it is killed."""

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from mlflow.store.db import utils as db_utils
from mlflow.store.db.utils import InitialBase, _upgrade_db
from sqlalchemy import Engine, event

from cppo_lab.errors import UserError
from cppo_lab.sweep.search.storage import open_storage
from cppo_lab.tracking.client import create_atomically, open_client

MOMENTS = 20


def with_mlflows_own_tables(engine: Engine) -> None:
    """As MLflow makes them; in other tests they are copied from a template."""
    InitialBase.metadata.create_all(engine)
    _upgrade_db(engine)


def in_a_child(
    act: Callable[[], object], kill_at: int = 0, statements: Path | None = None, copied: bool = False
) -> int | None:
    """The exit code of a process that acts and is killed before its SQL statement of that number.

    How many there are goes to the file `statements`. `copied`: tables come from the template, as in other tests.
    """

    def run() -> None:
        count = 0

        def look(*_: object) -> None:
            nonlocal count
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        if not copied:
            db_utils._initialize_tables = with_mlflows_own_tables
        event.listen(Engine, "before_cursor_execute", look)
        try:
            act()
        except UserError as error:
            os._exit(2 if "is incomplete" in str(error) and "remove it" in str(error) else 3)
        if statements is not None:
            statements.write_text(str(count))
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return process.exitcode


def use(kind: str, uri: str) -> None:
    """What a launch does with its store, in short."""
    if kind == "mlflow":
        client = open_client(uri)
        client.set_terminated(client.create_run(client.create_experiment("next")).info.run_id)
    else:
        optuna.create_study(storage=open_storage(uri), study_name="next").ask()


@pytest.mark.parametrize("kind", ["mlflow", "optuna"])
def test_a_kill_at_twenty_moments_leaves_a_store_that_the_next_launch_can_use(
    tmp_path: Path, kind: str
) -> None:
    open_client(f"sqlite:///{tmp_path / 'template.db'}")  # so that children have one to copy
    path, counted = tmp_path / f"{kind}.db", tmp_path / "counted"
    uri = f"sqlite:///{path}"

    def make() -> None:
        open_client(uri) if kind == "mlflow" else open_storage(uri)

    assert in_a_child(make, statements=counted) == 0
    statements = int(counted.read_text())
    assert statements > 2 * MOMENTS
    path.unlink()
    results = {}
    for moment in range(MOMENTS):
        number = 1 + moment * (statements - 1) // (MOMENTS - 1)  # the first, the last, and between them
        assert in_a_child(make, kill_at=number) == -signal.SIGKILL
        results[number] = in_a_child(lambda: use(kind, uri), copied=True)
        assert list(tmp_path.glob("*.new*")) == []
        path.unlink()
    assert set(results.values()) == {0}, results


def test_a_half_made_store_of_other_programs_is_recognised(tmp_path: Path) -> None:
    """As `mlflow server`, or version 0.1.0 of this program, leave it when they are killed: it is used, or refused."""
    open_client(f"sqlite:///{tmp_path / 'template.db'}")
    path, counted = tmp_path / "mlflow.db", tmp_path / "counted"
    uri = f"sqlite:///{path}"

    def as_mlflow() -> None:
        with_mlflows_own_tables(db_utils.create_sqlalchemy_engine(uri))

    assert in_a_child(as_mlflow, statements=counted) == 0
    statements = int(counted.read_text())
    results = {}
    for part in range(1, 10):
        path.unlink()
        assert in_a_child(as_mlflow, kill_at=part * statements // 10) == -signal.SIGKILL
        results[part] = in_a_child(lambda: use("mlflow", uri), copied=True)
    assert set(results.values()) <= {0, 2}, results
    assert 2 in results.values(), results


def test_what_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("mine")

    def never(beside: Path) -> None:
        raise AssertionError(beside)

    create_atomically(path, never)
    assert path.read_text() == "mine"


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    for name in ("x.db.0badcafe.new", "x.db.0badcafe.new-journal"):
        (tmp_path / name).write_text("half")
    (tmp_path / "y.db.0badcafe.new").write_text("of another store")
    create_atomically(
        path, lambda beside: sqlite3.connect(beside).execute("CREATE TABLE whole (x)").connection.close()
    )
    assert {one.name for one in tmp_path.iterdir()} == {"x.db", "y.db.0badcafe.new"}


def test_a_fault_leaves_nothing(tmp_path: Path) -> None:
    def fail(beside: Path) -> None:
        beside.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        create_atomically(tmp_path / "x.db", fail)
    assert list(tmp_path.iterdir()) == []
