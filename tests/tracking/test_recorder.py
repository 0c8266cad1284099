"""What a run logs arrives once and whole, whatever the store does meanwhile."""

import json
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.store import tracking_uri
from cppo_lab.tracking import recorder as recorder_module
from cppo_lab.tracking.client import attempts, ensure_experiment, open_client
from cppo_lab.tracking.recorder import Recorder
from cppo_lab.tracking.run_folder import read_status
from tests.conftest import FINISHED


@pytest.fixture
def recorder(workspace: Path, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(recorder_module, "SHIP_SECONDS", 0.0)
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    return Recorder(tiny_spec, {}, tracking_uri(), folder)


def logged(recorder: Recorder, metric: str) -> list[tuple[int, float]]:
    return [(p.step, p.value) for p in recorder.client.get_metric_history(recorder.mlflow_id, metric)]


def test_points_wait_while_the_store_is_away(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = recorder.client.log_batch, []

    def flaky(run_id: str, **kwargs: object) -> None:
        calls.append(run_id)
        if 2 <= len(calls) <= 5:
            raise MlflowException("the server is away")
        real(run_id, **kwargs)

    monkeypatch.setattr(recorder.client, "log_batch", flaky)
    for step in range(1, 7):
        recorder.log(step, {"train/reward": step / 10})
    recorder.finish(FINISHED)
    assert logged(recorder, "train/reward") == [(step, step / 10) for step in range(1, 7)]
    assert recorder.client.get_run(recorder.mlflow_id).info.status == "FINISHED"


def test_store_that_never_returns_costs_no_point(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(run_id: str, **kwargs: object) -> None:
        raise MlflowException("the server is away")

    monkeypatch.setattr(recorder.client, "log_batch", away)
    monkeypatch.setattr(recorder_module, "LAST_CHANCE_SECONDS", 0.0)
    recorder.log(1, {"train/reward": 0.5})
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        recorder.finish(FINISHED)
    lines = (recorder.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["metrics"] for line in lines] == [{"train/reward": 0.5}]


def test_more_points_than_one_request_takes(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "SHIP_SECONDS", 1e9)
    names = [metric.name for metric in schema.METRICS]
    for step in range(120):
        recorder.log(step, dict.fromkeys(names, float(step)))
    recorder.finish(FINISHED)
    for name in names:
        assert logged(recorder, name) == [(step, float(step)) for step in range(120)]


def test_a_collapse_is_a_result_with_its_reason(recorder: Recorder) -> None:
    recorder.log(3, {"train/reward": 0.0})
    recorder.finish(Outcome(schema.COLLAPSED, 3, "score fell"))
    run = recorder.client.get_run(recorder.mlflow_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags[schema.TAG_STATUS] == schema.COLLAPSED
    assert run.data.tags[schema.TAG_REASON] == "score fell"
    assert read_status(recorder.folder)["status"] == schema.COLLAPSED


def test_artifacts_reach_the_store(recorder: Recorder) -> None:
    recorder.artifact("diagnostics/positions.json", {"position": [1, 2]})
    recorder.artifact("diagnostics/positions.json", {"position": [1, 2, 3]})
    recorder.finish(FINISHED)
    path = recorder.client.download_artifacts(recorder.mlflow_id, "diagnostics/positions.json")
    assert json.loads(Path(path).read_text()) == {"position": [1, 2, 3]}


def test_nothing_after_its_end_makes_a_finished_run_fail(recorder: Recorder) -> None:
    """A signal or a fault between the end of a run and that of its process."""
    recorder.finish(FINISHED)
    recorder.fail("SystemExit: terminated by SIGTERM", "traceback")
    run = recorder.client.get_run(recorder.mlflow_id)
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
    assert schema.TAG_REASON not in run.data.tags
    assert read_status(recorder.folder)["status"] == schema.DONE


@pytest.mark.parametrize("broken", ["config.json", "metrics.jsonl", "status.json.partial"])
def test_a_run_that_cannot_write_at_its_start_says_why(
    workspace: Path, tiny_spec: RunSpec, broken: str
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    (folder / broken).mkdir(parents=True)  # a folder stands where the file should
    with pytest.raises(OSError, match=broken):
        Recorder(tiny_spec, {}, tracking_uri(), folder)
    experiment = open_client(tracking_uri()).get_experiment_by_name("cppo-mini")
    assert experiment is not None
    [run] = open_client(tracking_uri()).search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert "IsADirectoryError" in run.data.tags[schema.TAG_REASON]


def test_unknown_metric_is_a_programming_error(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match=r"train/rewardd.*schema\.METRICS"):
        recorder.log(1, {"train/rewardd": 1.0})


def test_failure_leaves_status_reason_and_traceback(recorder: Recorder) -> None:
    recorder.log(1, {"train/reward": 0.5})
    recorder.fail("ValueError: bad", "Traceback ...")
    run = recorder.client.get_run(recorder.mlflow_id)
    assert run.info.status == "FAILED"
    assert run.data.tags[schema.TAG_REASON] == "ValueError: bad"
    assert logged(recorder, "train/reward") == [(1, 0.5)]
    assert read_status(recorder.folder)["reason"] == "ValueError: bad"


def test_a_full_disk_does_not_hide_the_reason(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    recorder.fail("OSError: [Errno 28] No space left on device", "Traceback ...")
    run = recorder.client.get_run(recorder.mlflow_id)
    assert run.info.status == "FAILED"
    assert "No space left" in run.data.tags[schema.TAG_REASON]


def test_half_written_status_reads_as_none(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"status": "runn')
    assert read_status(tmp_path) == {}


def test_deleted_experiment_is_named(workspace: Path) -> None:
    uri = tracking_uri()
    client = open_client(uri)
    client.delete_experiment(ensure_experiment(client, uri, "cppo-mini"))
    with pytest.raises(UserError, match="'cppo-mini' was deleted"):
        ensure_experiment(client, uri, "cppo-mini")


def test_attempts_of_an_empty_store(workspace: Path) -> None:
    assert attempts(open_client(tracking_uri()), "cppo-mini", ["abc"]) == {"abc": []}
