"""Reading back from a real SQLite store: retries, resumed steps, shared runs, and every way of finding
nothing.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from cppo_lab import schema
from cppo_lab.analysis.points import METRIC_COLUMNS, RUN_COLUMNS
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.errors import UserError

EXPERIMENT = "cppo-mini"
SCORE = schema.validation_metric("chain24")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables and no runs; creating one takes seconds, copying it does not."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(empty_store: Path, tmp_path: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def write(uri: str) -> Callable[..., str]:
    """Writes one run and returns its MLflow id; a run written later starts later."""
    client = MlflowClient(uri)
    clock = iter(range(1, 1000))

    def write_run(
        run_id: str, status: str | None = schema.DONE, ended: str | None = "FINISHED", **more: str
    ) -> str:
        found = client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
        tags = {
            schema.TAG_RUN_ID: run_id,
            schema.TAG_MODEL: "chain",
            schema.TAG_SEED: "3",
            schema.TAG_T_STOP: "40",
            schema.TAG_WARM_START: "0123abcd",
        }
        tags |= {schema.sweep_tag(name): variant for name, variant in (more or {"demo": "cppo"}).items()}
        if status is not None:
            tags[schema.TAG_STATUS] = status
        run = client.create_run(experiment, start_time=next(clock), tags=tags)
        points = [Metric(SCORE, 0.1 * step, step, step) for step in (1, 2)] + [
            Metric("train/loss", 5.0, 0, 1)
        ]
        client.log_batch(run.info.run_id, metrics=points)
        if ended is not None:
            client.set_terminated(run.info.run_id, ended)
        return run.info.run_id

    return write_run


def test_frames(uri: str, write: Callable[..., str]) -> None:
    mlflow_id = write("r1", demo="cppo")
    data = read_sweep(uri, EXPERIMENT, "demo")
    assert tuple(data.runs.columns) == RUN_COLUMNS
    row = data.runs.iloc[0]
    assert (row["mlflow_id"], row["run_id"], row["variant"], row["model"]) == (
        mlflow_id,
        "r1",
        "cppo",
        "chain",
    )
    assert (row["seed"], row["t_stop"], row["status"]) == (3, 40, schema.DONE)
    assert row["warm_start"] == "0123abcd"
    assert tuple(data.metrics.columns) == METRIC_COLUMNS
    assert [tuple(point) for point in data.metrics.itertuples(index=False)] == [
        (mlflow_id, "train/loss", 1, 5.0),
        (mlflow_id, SCORE, 1, 0.1),
        (mlflow_id, SCORE, 2, 0.2),
    ]
    only = read_sweep(uri, EXPERIMENT, "demo", metrics={SCORE}.__contains__)
    assert set(only.metrics["metric"]) == {SCORE}


def test_of_retries_the_newest_done_one_counts(uri: str, write: Callable[..., str]) -> None:
    write("r1", schema.DONE)
    newer = write("r1", schema.DONE)
    write("r1", schema.FAILED, "FAILED")
    write("r2", schema.FAILED, "FAILED")
    latest = write("r2", schema.RUNNING, None)
    data = read_sweep(uri, EXPERIMENT, "demo")
    assert dict(zip(data.runs["run_id"], data.runs["mlflow_id"], strict=True)) == {"r1": newer, "r2": latest}


@pytest.mark.parametrize(
    ("tag", "ended", "status"),
    [
        (None, "FINISHED", schema.RUNNING),
        (schema.RUNNING, "FINISHED", schema.RUNNING),
        (schema.PARTIAL, "FINISHED", schema.PARTIAL),
        (schema.DONE, None, schema.DONE),
        (schema.COLLAPSED, "FINISHED", schema.COLLAPSED),
        (schema.COLLAPSED, "FAILED", schema.COLLAPSED),
        (None, "FAILED", schema.RUNNING),
        (schema.PARTIAL, "KILLED", schema.PARTIAL),
        (schema.PARTIAL, None, schema.PARTIAL),
        (None, None, schema.RUNNING),
        (schema.RUNNING, None, schema.RUNNING),
    ],
)
def test_status(uri: str, write: Callable[..., str], tag: str | None, ended: str | None, status: str) -> None:
    write("r1", tag, ended)
    assert list(read_sweep(uri, EXPERIMENT, "demo").runs["status"]) == [status]


def test_a_step_logged_twice_counts_as_logged_last(uri: str, write: Callable[..., str]) -> None:
    mlflow_id = write("r1", schema.RUNNING, None)
    MlflowClient(uri).log_metric(mlflow_id, SCORE, 0.05, timestamp=999, step=2)  # lower, but later
    metrics = read_sweep(uri, EXPERIMENT, "demo", metrics={SCORE}.__contains__).metrics
    assert list(metrics["value"]) == [0.1, 0.05]


def test_a_shared_run_is_found_by_its_id_with_the_tag_of_another_sweep(
    uri: str, write: Callable[..., str]
) -> None:
    write("r1", demo="cppo")
    write("r2", other="dppo")
    assert list(read_sweep(uri, EXPERIMENT, "demo").runs["run_id"]) == ["r1"]
    assert list(read_sweep(uri, EXPERIMENT, "demo", run_ids=["r2"]).runs["run_id"]) == ["r1", "r2"]


def test_a_collapse_is_a_result_and_outranks_a_later_failure(uri: str, write: Callable[..., str]) -> None:
    collapsed = write("r1", schema.COLLAPSED)
    write("r1", schema.FAILED, "FAILED")
    assert list(read_sweep(uri, EXPERIMENT, "demo").runs["mlflow_id"]) == [collapsed]


def test_the_configuration_comes_with_the_runs(uri: str, write: Callable[..., str]) -> None:
    mlflow_id = write("r1")
    MlflowClient(uri).log_param(mlflow_id, "rule.delta", 0.15)
    assert read_sweep(uri, EXPERIMENT, "demo").params == {mlflow_id: {"rule.delta": "0.15"}}


@pytest.mark.parametrize(
    ("core", "tag", "drawn"),
    [("acme", "true", True), ("acme", None, False), ("exact", None, True), ("mini", None, False)],
    ids=["another package's", "not said", "older than the tag", "by its warm start"],
)
def test_whose_seed_draws_their_start(
    uri: str, write: Callable[..., str], core: str, tag: str | None, drawn: bool
) -> None:
    """The store says it, whatever packages are installed."""
    mlflow_id, client = write("r1"), MlflowClient(uri)
    client.set_tag(mlflow_id, schema.TAG_CORE, core)
    if tag is not None:
        client.set_tag(mlflow_id, schema.TAG_SEED_FIXES_START, tag)
    assert read_sweep(uri, EXPERIMENT, "demo").drawn_starts == (
        frozenset([mlflow_id]) if drawn else frozenset()
    )


def test_deleted_runs_are_gone(uri: str, write: Callable[..., str]) -> None:
    write("r1")
    MlflowClient(uri).delete_run(write("r2"))
    assert list(read_sweep(uri, EXPERIMENT, "demo").runs["run_id"]) == ["r1"]


def test_no_such_sweep_names_those_there_are(uri: str, write: Callable[..., str]) -> None:
    write("r1", demo="cppo", other="x")
    with pytest.raises(
        UserError, match=r"no run of sweep 'dmo': it has runs of demo, other; run `cppo launch` with the same"
    ):
        read_sweep(uri, EXPERIMENT, "dmo")


def test_no_such_experiment(uri: str) -> None:
    with pytest.raises(UserError, match=r"experiment 'cppo-verl' does not exist .* it has Default"):
        read_sweep(uri, "cppo-verl", "demo")
    with pytest.raises(UserError, match="run `cppo reference import` first"):
        read_sweep(uri, "paper", "main")


def test_empty_and_deleted_experiments(uri: str) -> None:
    client = MlflowClient(uri)
    number = client.create_experiment(EXPERIMENT)
    with pytest.raises(UserError, match="it has runs of no sweep"):
        read_sweep(uri, EXPERIMENT, "demo")
    client.delete_experiment(number)
    with pytest.raises(UserError, match=f"was deleted: .*restore --experiment-id {number}"):
        read_sweep(uri, EXPERIMENT, "demo")


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_sweep(f"sqlite:///{tmp_path / 'none.db'}", EXPERIMENT, "demo")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("not a database at all, just some text that is long enough to be one")
    with pytest.raises(UserError, match="cannot be read"):
        read_sweep(f"sqlite:///{path}", EXPERIMENT, "demo")
