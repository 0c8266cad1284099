"""Reading back from a real SQLite store: retries, resumed steps, shared runs, and every way of finding nothing; and the
points of many runs as one small tidy frame; what runs kept of their answers.
"""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from mlflow import MlflowClient
from sqlalchemy.exc import OperationalError

from cppo_lab import schema
from cppo_lab.analysis import reader
from cppo_lab.analysis.inputs import METRIC_COLUMNS, points_frame
from cppo_lab.analysis.reader import read_answers, read_outcomes, read_sweep
from cppo_lab.answers import outcomes, texts, tokens
from cppo_lab.answers.outcomes import OUTCOMES
from cppo_lab.answers.texts import Texts, texts_name
from cppo_lab.answers.tokens import tokens_name
from cppo_lab.tracking.history import StoredRun, from_rows
from cppo_lab.tracking.read import stored_run
from tests.analysis.made_sweeps import MadeRun, experiment_in, write_runs
from tests.answers import made
from tests.conftest import user_error
from tests.reports.made_answers import log_file

EXPERIMENT = "cppo-mini"
SCORE = schema.validation_metric("chain24")


def write(uri: str, *run_ids: str, sweep: str = "demo", **tags: str) -> list[str]:
    """Writes runs, of which each starts a millisecond after the one before it: their MLflow ids."""
    logged = {SCORE: {1: 0.1, 2: 0.2}, "train/loss": {1: 5.0}}
    runs = [MadeRun("cppo", seed=3, logged=logged, t_stop=40, run_id=name) for name in run_ids]
    return [*write_runs(uri, runs, sweep, **tags).values()]


def test_frames(uri: str) -> None:
    mlflow_id, gone = write(uri, "r1", "r2", **{schema.TAG_WARM_START: "0123abcd"})
    MlflowClient(uri).log_param(mlflow_id, "rule.delta", 0.15)
    MlflowClient(uri).delete_run(gone)
    data = read_sweep(uri, EXPERIMENT, "demo")
    assert data.params == {mlflow_id: {"rule.delta": "0.15"}}
    assert data.runs.drop(columns=["name", "start", "end"]).to_csv(index=False) == (
        "mlflow_id,run_id,variant,rule,model,core,seed,t_stop,status,reason,warm_start\n"
        f"{mlflow_id},r1,cppo,cppo,chain,mini,3,40,done,,0123abcd\n"
    )
    scores = f"{mlflow_id},{SCORE},1,0.1\n{mlflow_id},{SCORE},2,0.2\n"
    points = f"mlflow_id,metric,step,value\n{mlflow_id},train/loss,1,5.0\n{scores}"
    assert data.metrics.to_csv(index=False) == points
    only = read_sweep(uri, EXPERIMENT, "demo", metrics={SCORE}.__contains__).metrics
    assert only.to_csv(index=False, header=False) == scores


def test_a_seed_that_is_none_is_left_out(uri: str) -> None:
    for tag in ("-3", "--5", "\u00b2", "9" * 30, "0.5"):
        write(uri, f"r{tag}", **{schema.TAG_SEED: tag})
    assert read_sweep(uri, EXPERIMENT, "demo").runs["seed"].dropna().tolist() == [-3]


def test_of_retries_the_newest_result_counts_and_its_tag_says_how_it_ended(uri: str) -> None:
    """MLflow's own status, FINISHED of all of these, does not."""
    ends = [("r1", schema.DONE), ("r1", schema.DONE), ("r3", schema.COLLAPSED), ("r4", schema.PARTIAL)]
    ends += [(run_id, schema.FAILED) for run_id in ("r1", "r2", "r3")]
    ends += [("r2", schema.RUNNING), ("r5", "somebody's")]
    write_runs(uri, [MadeRun("cppo", run_id=run_id, status=status) for run_id, status in ends], "demo")
    data = read_sweep(uri, EXPERIMENT, "demo")
    newest = data.runs[["run_id", "status", "start"]].to_csv(index=False, header=False, date_format="%f")
    assert newest == (
        "r1,done,002000\nr2,running,008000\nr3,collapsed,003000\nr4,partial,004000\nr5,running,009000\n"
    )
    assert data.begun == {"r1": 1, "r2": 6, "r3": 3, "r4": 4, "r5": 9}  # at the first attempt


def test_a_start_beyond_all_years_is_none(uri: str) -> None:
    experiment = experiment_in(uri, EXPERIMENT)
    MlflowClient(uri).create_run(experiment, 10**18, {schema.sweep_tag("demo"): "cppo"})
    assert read_sweep(uri, EXPERIMENT, "demo").runs["start"].isna().tolist() == [True]


def test_a_shared_run_is_found_by_its_id_with_the_tag_of_another_sweep(uri: str) -> None:
    write(uri, "r1")
    write(uri, "r2", sweep="other")
    for ids, expected in ((), ["r1"]), (("r2",), ["r1", "r2"]):
        assert list(read_sweep(uri, EXPERIMENT, "demo", run_ids=ids).runs["run_id"]) == expected


def test_whose_seed_draws_their_start(uri: str) -> None:
    """The store says it, whatever packages are installed. Runs of the exact core may be older than the tag."""
    [said] = write(uri, "r1", **{schema.TAG_CORE: "acme", schema.TAG_SEED_FIXES_START: "true"})
    for core, run_id in (("acme", "r2"), ("mini", "r3"), ("exact", "r4")):
        [unsaid] = write(uri, run_id, **{schema.TAG_CORE: core})
    assert read_sweep(uri, EXPERIMENT, "demo").drawn_starts == {said, unsaid}


def test_what_is_not_in_the_store_is_named(uri: str) -> None:
    write(uri, "r1")
    write(uri, "r2", sweep="other")
    client = MlflowClient(uri)
    client.create_experiment("empty")
    client.delete_experiment(client.create_experiment("deleted"))
    for experiment, message in (
        (EXPERIMENT, r"no run of sweep 'dmo': it has runs of demo, other; run `cppo launch` with the same"),
        ("empty", "it has runs of no sweep"),
        ("deleted", r"was deleted: .*restore --experiment-id \d+"),
    ):
        with user_error(message):
            read_sweep(uri, experiment, "dmo")


@pytest.mark.parametrize("runs", [300, 0])
def test_the_frame_of_points_is_small_and_typed(runs: int) -> None:
    history = from_rows([(step, 0, {f"m{number}": 0.5 for number in range(60)}) for step in range(10)])
    ids = [f"{number:032x}" for number in range(runs)]
    frame = points_frame((mlflow_id, history) for mlflow_id in ids)
    assert tuple(frame.columns) == METRIC_COLUMNS and len(frame) == runs * 600
    assert [str(kind) for kind in frame.dtypes] == ["category", "category", "int32", "float64"]
    assert list(frame["mlflow_id"].unique()) == ids
    sizes = [frame[name].cat.codes.dtype.itemsize for name in ("mlflow_id", "metric")]
    assert not runs or sizes == [2, 1]


def test_metrics_are_sorted_and_steps_beyond_32_bits_are_kept() -> None:
    runs = {"w": (1, {"b": 0.0}), "x": (2**40, {"b": 1.0}), "y": (1, {"b": 3.0, "a": 2.0})}
    frame = points_frame((run, from_rows([(step, 0, row)])) for run, (step, row) in runs.items())
    assert frame["step"].dtype == np.int64
    assert (
        frame.to_csv(index=False, header=False) == "w,b,1,0.0\nx,b,1099511627776,1.0\ny,a,1,2.0\ny,b,1,3.0\n"
    )


STEPS = tuple(range(0, 60, 10))
Store = tuple[str, list[str]]  # its address, and the ids of its runs


@pytest.fixture(scope="module")
def store(shared_path: Path) -> Store:
    """A run with everything, one with nothing, and one with a broken file."""
    uri = f"sqlite:///{shared_path / 'mlflow.db'}"
    client, experiment = MlflowClient(uri), experiment_in(uri, "x")
    ids = [client.create_run(experiment).info.run_id for _ in range(3)]
    log_file(client, ids[0], OUTCOMES, outcomes.write(made.outcomes()))
    for step in STEPS:
        log_file(client, ids[0], texts_name(step), texts.write(Texts(step, (made.sample(step=step),))))
        log_file(client, ids[0], tokens_name(step), tokens.write(made.tokens(step=step)))
    log_file(client, ids[2], OUTCOMES, b"PK no such file")
    return uri, ids


def stored(uri: str, *mlflow_ids: str) -> list[StoredRun]:
    return [stored_run(MlflowClient(uri).get_run(each)) for each in mlflow_ids]


def test_outcomes_of_the_runs_that_have_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """From their folders, or from the store if they are elsewhere."""
    uri, (whole, _bare, broken) = store
    here = stored(uri, *store[1])
    for folder, name in (
        (reader.address.artifact_folder, rf"{broken}/artifacts/{OUTCOMES}"),
        (lambda *_: None, f"{OUTCOMES} of MLflow run {broken}"),
    ):
        monkeypatch.setattr("cppo_lab.analysis.reader.address.artifact_folder", folder)
        outcomes = read_outcomes(uri, here[:2])
        assert list(outcomes) == [whole]
        assert outcomes[whole].right.tolist() == made.outcomes().right.tolist()
        with user_error(f"{name}.*delete that file"):
            read_outcomes(uri, here[2:])
    monkeypatch.setattr("cppo_lab.analysis.reader.MOST_RUNS", 1)  # a larger sweep is not read
    assert reader._sweep_data(uri, "", "", here[:2], None).outcomes == {}


def test_texts_are_spread_over_the_run_and_tokens_are_its_last(store: Store) -> None:
    uri, (whole, bare, _) = store
    for counts, steps, last in (((3, 2), [0, 20, 50], [40, 50]), ((1, 0), [50], [])):
        [(mlflow_id, kept)] = read_answers(uri, [whole, bare], *counts).items()
        assert mlflow_id == whole
        assert [texts.step for texts in kept.texts] == steps
        assert [tokens.step for tokens in kept.tokens] == last


def test_a_database_that_does_not_answer_is_said_in_a_line(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = stored(store[0], *store[1])
    monkeypatch.setattr(
        "cppo_lab.tracking.read.require_answer",
        Mock(side_effect=OperationalError("SELECT 1", {}, OSError("gone"))),
    )
    for ask in (lambda: read_outcomes(store[0], runs), lambda: read_answers(store[0], store[1], 1, 1)):
        with user_error("tracking store .* cannot be read: .*gone"):
            ask()


def test_a_file_that_is_too_large_is_not_fetched(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LARGEST", 10)
    with user_error("more than the 10 allowed: delete that artifact"):  # not that file: it was read
        read_answers(store[0], store[1][:1], 1, 1)
