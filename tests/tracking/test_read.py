"""What is read of a store: all runs, whatever the size of a page and the name of a sweep; each metric as the store
would say it, by the file that a run left or point by point; and the artifacts of a store that was moved.
"""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow.entities import Metric

from cppo_lab import schema
from cppo_lab.analysis.reader import read_outcomes
from cppo_lab.analysis.search import read_search_file
from cppo_lab.answers.outcomes import OUTCOMES
from cppo_lab.tracking import read
from cppo_lab.tracking.client import StoreClient, ensure_experiment, open_client
from cppo_lab.tracking.history import HISTORY, Row, from_columns, from_rows, pack
from cppo_lab.tracking.read import histories, metric_history, newest_runs, search_runs, stored_run

ROWS: list[Row] = [
    (1, 1001, {"train/loss": 0.5, "train/reward": math.nan, "val/a/avg_at_16": 0.1}),
    (2, 1002, {"train/loss": math.inf, "train/reward": 0.25}),
    (3, 1003, {"train/loss": -math.inf, "train/reward": math.nan, "val/a/avg_at_16": 0.2}),
]
NAMES = {"train/loss", "train/reward", "val/a/avg_at_16"}
WHOLE = pack(from_rows(ROWS))


@pytest.fixture
def client(uri: str) -> StoreClient:
    return StoreClient(uri)


@pytest.mark.parametrize("size", ["PAGE", "SERVER_PAGE"])
def test_pages_have_every_run_once_also_one_that_starts_meanwhile(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    """Pages of two runs; as a server's the store has an address with a scheme of its own."""
    monkeypatch.setattr(read, size, 2)
    if size == "SERVER_PAGE":
        monkeypatch.setattr("mlflow.MlflowClient.tracking_uri", "http://host")
    client.search_runs = search = Mock(side_effect=client.search_runs)
    number = client.create_experiment("e")
    ids = [client.create_run(number, start_time=time).info.run_id for time in (5, 5, 5, 3, 4)]
    client.create_run(client.create_experiment("another"))
    assert [run.info.run_id for run in newest_runs(client, "e")][-2:] == [ids[4], ids[3]]
    assert list(newest_runs(client, "none")) == []
    assert read.is_active(client, ids[0]) and not read.is_active(client, "0" * 32)
    assert [call.kwargs["max_results"] for call in search.call_args_list] == [2] * 3
    listed = []
    for run in search_runs(client, number):
        listed.append(run.info.run_id)
        if len(listed) < 4:
            client.create_run(number, start_time=100 + len(listed))
    assert listed[:2] == [ids[3], ids[4]] and {*listed[:5]} == {*ids} and len({*listed}) == len(listed)


@pytest.mark.parametrize("tag", ["main", "a b", "a/b:c"])
def test_by_a_tag(client: StoreClient, tag: str) -> None:
    number, tag = client.create_experiment("e"), f"cppo.sweep.{tag}"
    client.create_run(number, tags={"other": tag, "cppo.sweep.100": ""})
    tagged = client.create_run(number, tags={tag: ""}).info.run_id
    assert [run.info.run_id for run in search_runs(client, number, tag=tag)] == [tagged]
    for absent in ("cppo.sweep.100%", "cppo.sweep.`x` = '%", 'cppo.sweep."', ""):
        assert not list(search_runs(client, number, tag=absent))


Writer = Callable[..., str]
Points = list[tuple[str, int, str]]  # metric, step, value as text, so that NaN equals itself


def log(client: StoreClient, mlflow_id: str, *rows: Row) -> None:
    points = [Metric(name, value, time, step) for step, time, row in rows for name, value in row.items()]
    client.log_batch(mlflow_id, metrics=points)


@pytest.fixture
def write(client: StoreClient, tmp_path: Path) -> Writer:
    """Writes a run with ROWS in the store and `artifact` beside it."""
    number = client.create_experiment("cppo-mini", artifact_location=(tmp_path / "artifacts").as_uri())

    def write_run(artifact: bytes | None = None, status: str = schema.DONE) -> str:
        mlflow_id = client.create_run(number, tags={schema.TAG_STATUS: status}).info.run_id
        log(client, mlflow_id, *ROWS)
        if artifact is not None:
            (tmp_path / HISTORY).write_bytes(artifact)
            client.log_artifact(mlflow_id, str(tmp_path / HISTORY))
        return str(mlflow_id)

    return write_run


@pytest.fixture
def asked(client: StoreClient) -> Mock:
    """Is called for the history of a metric."""
    client.points = asked = Mock(side_effect=client.points)
    return asked


def read_all(
    client: StoreClient, *ids: str, wanted: Callable[[str], bool] | None = None
) -> dict[str, Points]:
    """The points of each run, as the store has it now."""
    runs = [stored_run(client.get_run(mlflow_id)) for mlflow_id in ids]
    return {
        mlflow_id: [
            (name, int(step), repr(float(value)))
            for name, (steps, values, _) in history.items()
            for step, value in zip(steps, values, strict=True)
        ]
        for mlflow_id, history in histories(client, runs, wanted)
    }


def expected(rows: list[Row] = ROWS) -> Points:
    names = sorted({name for _, _, values in rows for name in values})
    return [(name, step, repr(values[name])) for name in names for step, _, values in rows if name in values]


def changed(name: str, *values: float) -> bytes:
    """The file with these values of a metric, or without it."""
    column = (range(1, len(values) + 1), values, [0] * len(values))
    return pack(from_columns({**from_rows(ROWS), name: column}))


@pytest.mark.parametrize(
    "artifact, status, from_store",
    [
        (WHOLE, schema.DONE, set()),
        (WHOLE, schema.FAILED, set()),
        (None, schema.DONE, NAMES),
        (WHOLE, schema.RUNNING, NAMES),  # it goes on, whatever lies beside it
        (changed("val/a/avg_at_16"), schema.DONE, {"val/a/avg_at_16"}),
        (
            changed("train/reward", 0.5, 0.25, 0.125),
            schema.DONE,
            {"train/reward"},
        ),  # another value at the same step
        (changed("train/entropy", 1.0), schema.DONE, set()),  # which the store does not know
    ],
)
def test_a_history_is_one_file_or_what_the_store_says(
    client: StoreClient, write: Writer, asked: Mock, artifact: bytes | None, status: str, from_store: set[str]
) -> None:
    mlflow_id = write(artifact, status)
    assert read_all(client, mlflow_id) == {mlflow_id: expected()}
    assert sorted(call.args[1] for call in asked.call_args_list) == sorted(from_store)
    asked.reset_mock()
    rewards = [point for point in expected() if point[0] == "train/reward"]
    assert read_all(client, mlflow_id, wanted="train/reward".__eq__) == {mlflow_id: rewards}
    assert {call.args[1] for call in asked.call_args_list} == from_store & {"train/reward"}


def test_what_has_come_since_is_read(client: StoreClient, write: Writer) -> None:
    """Of a step that was logged twice the last counts; the same value at a later step is a point, too."""
    ids, rows = (write(), write(WHOLE)), list(ROWS)
    for step, value in ((4, 0.75), (4, 0.875), (5, 0.875)):
        row: Row = (step, 1000 + len(rows), {"train/loss": value})
        rows = [*(old for old in rows if old[0] != step), row]
        for mlflow_id in ids:
            log(client, mlflow_id, row)
        assert read_all(client, *ids) == dict.fromkeys(ids, expected(rows))


def test_broken_and_large_files_cost_time_alone_and_are_named_once(
    client: StoreClient, write: Writer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [write(b"PK and then nothing"), write(WHOLE[:-40])]
    with caplog.at_level(logging.WARNING):
        assert read_all(client, *ids) == dict.fromkeys(ids, expected())
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("cppo_lab")]
    assert message.startswith("asked the store point by point for 2 runs: history.npz of MLflow run ")
    assert min(ids) in message and "\n" not in message
    monkeypatch.setattr("cppo_lab.tracking.read.LARGEST", 100)
    large = write(WHOLE)
    assert read_all(client, large) == {large: expected()}


def test_infinity_comes_back(client: StoreClient, write: Writer) -> None:
    """MLflow's databases hold the largest number for it."""
    mlflow_id = write()
    assert client.get_run(mlflow_id).data.metrics["train/loss"] < -1e308
    assert metric_history(client, mlflow_id, "train/loss")[1].tolist() == [0.5, math.inf, -math.inf]


def test_a_moved_store_has_its_artifacts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """mlflow#3144: the paths that MLflow notes are those of the folder where the experiment was created."""
    old, new = tmp_path / "a", tmp_path / "b c"
    old.mkdir()
    uri = f"sqlite:///{old}/mlflow.db"
    client = open_client(uri)
    number = ensure_experiment(client, "cppo-mini")
    mlflow_id = client.create_run(number, tags={schema.TAG_STATUS: schema.DONE}).info.run_id
    log(client, mlflow_id, *ROWS)
    (tmp_path / HISTORY).write_bytes(WHOLE)
    client.log_artifact(mlflow_id, str(tmp_path / HISTORY))
    client.log_text(mlflow_id, "{}", "search.json")
    client.log_text(mlflow_id, "broken", OUTCOMES)
    old.rename(new)
    uri = f"sqlite:///{new}/mlflow.db"
    client = open_client(uri)
    run = stored_run(client.get_run(mlflow_id))
    with pytest.raises(Exception, match="outcomes"):
        read_outcomes(uri, [run])
    assert [list(history) for _, history in histories(client, [run])] == [sorted(NAMES)]
    later = client.create_run(number).info.run_id  # also what is written from now on
    client.log_text(later, "{}", "search.json")
    for written in (mlflow_id, later):
        assert read_search_file(uri, [written]) == (written, "{}")
        assert (new / "mlartifacts/cppo-mini" / written / "artifacts/search.json").is_file()
    assert not old.exists()
    assert "Downloading" not in capfd.readouterr().err  # MLflow's bar
