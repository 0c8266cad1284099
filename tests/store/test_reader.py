"""A SQLite store that is read without MLflow, held against what MLflow's client gives."""

import contextlib
import math
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from cppo_lab.cli import main
from cppo_lab.errors import UserError
from cppo_lab.store.client import open_client
from cppo_lab.store.listing import ClientReader
from cppo_lab.store.read_only import SqliteReader, open_reader
from cppo_lab.store.reader import StoredRun
from cppo_lab.tracking import lookup
from tests.conftest import TINY

MODEL, SECONDS = "cppo.model", "perf/step_seconds"
# Runs `cppo` where libraries that take long to import, or that a minimal installation lacks, are not there.
HEAVY = ("mlflow", "sqlalchemy", "torch", "submitit", "numpy", "pandas", "scipy", "matplotlib", "optuna")
WITHOUT = f"""
import sys

sys.modules.update(dict.fromkeys({HEAVY}))  # an import of one of them is a ModuleNotFoundError
from cppo_lab.cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def client(uri: str) -> MlflowClient:
    """Runs of two models, some with measured steps, one of them deleted, and one of another experiment."""
    client = open_client(uri)
    mine = client.create_experiment("mine")
    for index in range(8):
        model = "mini_small_base" if index % 2 else "mini_small"
        run = client.create_run(mine, start_time=1000 + index // 3, tags={MODEL: model, "note": "é'; --"})
        client.log_batch(run.info.run_id, params=[Param("batch.prompts", str(index)), Param("a", "b")])
        for step in range(index):
            client.log_metric(run.info.run_id, SECONDS, 0.5 * step, timestamp=50 - step, step=step)
        if index == 7:
            client.log_batch(run.info.run_id, [Metric("a", math.inf, 1, 0), Metric("a", math.nan, 2, 1)])
            client.set_terminated(run.info.run_id, "FAILED")
        if index == 5:
            client.delete_run(run.info.run_id)
    client.create_run(client.create_experiment("other"), tags={MODEL: "mini_small"})
    return client


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"params": True},
        {"value": "mini_small"},
        {"value": "mini_small", "params": True, "measured": SECONDS},
        {"beginning": "mini_small"},
        {"beginning": "mini_small_"},
        {"value": "none"},
    ],
)
def test_the_runs_are_those_of_mlflow(uri: str, client: MlflowClient, asked: dict[str, str | bool]) -> None:
    expected = list(ClientReader(client).runs("mine", MODEL, **asked))  # type: ignore[arg-type]
    with open_reader(uri) as reader:
        assert isinstance(reader, SqliteReader)
        assert list(reader.runs("mine", MODEL, **asked)) == expected  # type: ignore[arg-type]
        assert list(reader.runs("none such", MODEL)) == []
    assert (not expected) == (asked.get("value") == "none")


def test_the_values_of_a_metric_are_those_of_mlflow(uri: str, client: MlflowClient) -> None:
    theirs = ClientReader(client)
    with open_reader(uri) as reader:
        assert reader is not None
        for run in reader.runs("mine", MODEL):
            assert reader.history(run.mlflow_id, SECONDS) == theirs.history(run.mlflow_id, SECONDS)
            assert reader.history(run.mlflow_id, "none such") == []


def test_many_runs_are_read_page_by_page(
    uri: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.store.read_only.PAGE", 2)
    with open_reader(uri) as reader:
        assert reader is not None
        assert list(reader.runs("mine", MODEL, params=True)) == list(
            ClientReader(client).runs("mine", MODEL, params=True)
        )


def test_a_file_that_does_not_exist_is_not_made(uri: str, tmp_path: Path) -> None:
    with open_reader(uri) as reader:
        assert reader is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_sqlite_must_repair_is_read_by_mlflow(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    """A writer was killed within its transaction: a connection that cannot write refuses the file."""
    database, journal = tmp_path / "mlflow.db", tmp_path / "mlflow.db-journal"
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    writer.execute("UPDATE tags SET value = value || printf('%.9000c', 'x')")
    database_left, journal_left = database.read_bytes(), journal.read_bytes()
    writer.execute("ROLLBACK")
    writer.close()
    database.write_bytes(database_left)
    journal.write_bytes(journal_left)
    with open_reader(uri) as reader:
        assert isinstance(reader, ClientReader)
        assert {run.tags["note"] for run in reader.runs("mine", MODEL)} == {"é'; --"}
    assert not journal.exists()


def test_a_database_of_others_is_refused(uri: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("CREATE TABLE mine (a)")
    with pytest.raises(UserError, match="is not MLflow's"), open_reader(uri):
        pass


def test_commands_that_only_read_import_no_heavy_library(workspace: Path) -> None:
    assert main(["launch", "quickstart", *TINY, "seed=0", "launcher=inline"]) == 0
    ids = sorted(path.parent.name for path in (workspace / "runs").glob("*/config.json"))
    for words, code in (
        (["plan", "quickstart", *TINY], 0),
        (["show", ids[0]], 0),
        (["show", "quickstart", *TINY], 0),
        (["diff", ids[0], ids[1]], 0),
        (["status"], 0),
        (["status", "quickstart", *TINY], 0),
        (["logs", ids[0]], 0),
        (["compare", "no_report", "no_report"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, *words],
            cwd=workspace,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (words, done.stderr)
        assert "is not installed" not in done.stderr, words
        if words[0] == "plan":
            assert done.stdout.count(" done") >= 3


def test_a_store_that_a_program_keeps_locked_is_one_line(
    uri: str, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cppo_lab.store.read_only.BUSY_SECONDS", 0.0)
    database = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as writer:
        with pytest.raises(UserError, match="cannot be read: database is locked"), open_reader(uri) as reader:
            writer.execute("BEGIN EXCLUSIVE")
            assert reader is not None
            list(reader.runs("mine", MODEL))
        with pytest.raises(UserError, match="cannot be read: database is locked"), open_reader(uri):
            pass
        writer.execute("ROLLBACK")
    with open_reader(uri) as reader:
        assert reader is not None
        assert len(list(reader.runs("mine", MODEL))) == 7


@pytest.mark.parametrize(
    ("artifact_uri", "found"),
    [("", {"a": 1}), ("http://[x", {"a": 1}), ("file://[x", {"a": 1}), ("{}/a#b/q?x", {"whole": 1})],
)  # fmt: skip
def test_a_configuration_is_the_artifact_or_the_parameters(
    tmp_path: Path, artifact_uri: str, found: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cppo_lab.store.client.open_client", lambda uri: Mock(download_artifacts=Mock(side_effect=OSError))
    )
    folder = tmp_path / "a#b" / "q?x"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"whole": 1}')
    run = StoredRun("id", artifact_uri.format(tmp_path), {}, {"a": "1"})
    assert lookup._config("sqlite:///x", run) == found


def test_parameters_of_which_one_is_a_section_of_another() -> None:
    assert lookup.nested({"a.b": "1", "a.b.c": "5"}) == {"a": {"b": {"c": 5}}}
