"""What a run logs is on file at once, whatever the disk does meanwhile; no store is asked."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from cppo_lab import safe_open, schema
from cppo_lab.attempt import Attempt, execute
from cppo_lab.errors import UserError
from cppo_lab.runs.folder import read_status, write_status
from cppo_lab.runs.spool import newest_record, read_rows
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.store.address import tracking_uri
from cppo_lab.store.client import ensure_experiment, open_client
from cppo_lab.store.listing import attempts
from cppo_lab.tracking.naming import flatten
from cppo_lab.tracking.recorder import Recorder, close_dead
from tests.conftest import FINISHED
from tests.recorded import mlflow_run, points


@pytest.fixture
def recorder(workspace: Path, tiny_spec: RunSpec) -> Recorder:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    return Recorder(tiny_spec, {}, folder)


def recorded(recorder: Recorder) -> Run:
    return mlflow_run(recorder.folder)


def test_no_store_is_made_or_asked_for(recorder: Recorder, workspace: Path) -> None:
    recorder.begin(None)
    recorder.log(1, {"train/reward": 0.5})
    recorder.finish(FINISHED)
    assert {path.name for path in workspace.iterdir()} == {"runs"}
    assert [row.metrics for row in read_rows(recorder.folder)] == [{"train/reward": 0.5}]


def test_more_points_than_one_request_takes(recorder: Recorder) -> None:
    names = [metric.name for metric in schema.METRICS]
    for step in range(120):
        recorder.log(step, dict.fromkeys(names, float(step)))
    recorder.finish(FINISHED)
    recorded(recorder)
    for name in names:
        assert [point[:2] for point in points(recorder.folder, name)] == [(n, float(n)) for n in range(120)]


def test_a_collapse_is_a_result_with_its_reason(recorder: Recorder) -> None:
    recorder.log(3, {"train/reward": 0.0})
    recorder.finish(Outcome(schema.COLLAPSED, 3, "score fell"))
    run = recorded(recorder)
    assert run.info.status == "FINISHED"
    assert run.data.tags[schema.TAG_STATUS] == schema.COLLAPSED
    assert run.data.tags[schema.TAG_REASON] == "score fell"
    assert read_status(recorder.folder)["status"] == schema.COLLAPSED


def test_artifacts_reach_the_store(recorder: Recorder) -> None:
    recorder.artifact("diagnostics/positions.json", {"position": [1, 2]})
    recorded(recorder)
    recorder.artifact("diagnostics/positions.json", {"position": [1, 2, 3]})
    recorder.finish(FINISHED)
    run = recorded(recorder)
    path = open_client(tracking_uri()).download_artifacts(run.info.run_id, "diagnostics/positions.json")
    assert json.loads(Path(path).read_text()) == {"position": [1, 2, 3]}


def test_nothing_after_its_end_makes_a_finished_run_fail(recorder: Recorder) -> None:
    """A signal or a fault between the end of a run and that of its process."""
    recorder.finish(FINISHED)
    recorder.fail("SystemExit: terminated by SIGTERM", "traceback")
    recorder.interrupt("terminated by SIGTERM")
    run = recorded(recorder)
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)
    assert schema.TAG_REASON not in run.data.tags
    assert read_status(recorder.folder)["status"] == schema.DONE


@pytest.mark.parametrize("broken", ["config.json", "spool", "status.json.partial"])
def test_a_run_that_cannot_write_at_its_start_says_why(
    workspace: Path, tiny_spec: RunSpec, broken: str
) -> None:
    folder = workspace / "runs" / tiny_spec.run_id
    folder.mkdir(parents=True)
    if broken == "spool":
        (folder / broken).write_text("a file stands where the folder should")
    else:
        (folder / broken).mkdir()  # a folder stands where the file should
    attempt = Attempt(tiny_spec, workspace / "runs", tracking_uri())
    with pytest.raises(OSError, match=broken):
        execute(attempt)
    experiment = open_client(tracking_uri()).get_experiment_by_name("cppo-mini")
    assert experiment is not None
    runs = open_client(tracking_uri()).search_runs([experiment.experiment_id])
    failed = [run for run in runs if run.info.status == "FAILED"]
    assert failed
    assert any(
        word in failed[0].data.tags[schema.TAG_REASON]
        for word in ("IsADirectory", "NotADirectory", "FileExists")
    )


def test_unknown_metric_is_a_programming_error(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match=r"train/rewardd.*schema\.METRICS"):
        recorder.log(1, {"train/rewardd": 1.0})


def test_failure_leaves_status_reason_and_traceback(recorder: Recorder) -> None:
    recorder.log(1, {"train/reward": 0.5})
    recorder.fail("ValueError: bad", "Traceback ...")
    run = recorded(recorder)
    assert run.info.status == "FAILED"
    assert run.data.tags[schema.TAG_REASON] == "ValueError: bad"
    assert run.data.tags[schema.TAG_STEP] == "1"
    assert [point[:2] for point in points(recorder.folder, "train/reward")] == [(1, 0.5)]
    assert read_status(recorder.folder)["reason"] == "ValueError: bad"
    path = open_client(tracking_uri()).download_artifacts(run.info.run_id, "traceback.txt")
    assert Path(path).read_text() == "Traceback ..."


REPLACING = safe_open.replacing


@contextlib.contextmanager
def full(path: Path) -> Iterator[Any]:
    """What `replacing` comes to on a full disk."""
    with REPLACING(path):
        raise OSError(28, "No space left on device")
    yield


def test_a_full_disk_does_not_hide_the_reason(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(safe_open, "replacing", full)
        recorder.fail("OSError: [Errno 28] No space left on device", "Traceback ...")
    run = recorded(recorder)
    assert run.info.status == "FAILED"
    assert "No space left" in run.data.tags[schema.TAG_REASON]


def test_the_end_of_an_attempt_that_died_is_written_by_others(recorder: Recorder) -> None:
    recorder.log(3, {"train/reward": 0.5})
    assert close_dead(recorder.folder, schema.PARTIAL, "interrupted: killed")
    run = recorded(recorder)
    assert (run.info.status, run.data.tags[schema.TAG_STEP]) == ("KILLED", "3")
    assert run.data.tags[schema.TAG_REASON] == "interrupted: killed"


def test_a_result_is_never_made_an_interruption(recorder: Recorder) -> None:
    recorder.finish(FINISHED)
    assert not close_dead(recorder.folder, schema.PARTIAL, "interrupted: killed")
    record = newest_record(recorder.folder)
    assert record is not None
    assert record.end is not None
    assert record.end.status == schema.DONE


def test_a_status_on_a_full_disk_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(tmp_path, {"step": 1, "reason": "a long one"})

    monkeypatch.setattr(safe_open, "replacing", full)
    write_status(tmp_path, {"step": 2})
    assert (read_status(tmp_path), len(list(tmp_path.iterdir()))) == ({"step": 2}, 1)
    (tmp_path / "status.json").unlink()
    with pytest.raises(OSError, match="No space left"):
        write_status(tmp_path, {"step": 3})
    assert list(tmp_path.iterdir()) == []


def test_half_written_status_reads_as_none(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"status": "runn')
    assert read_status(tmp_path) == {}


def test_flatten_leaves_out_what_does_not_apply() -> None:
    assert flatten({"a": {"b": 1, "c": None}, "d": [1, 2]}) == {"a.b": "1", "d": "[1, 2]"}


def test_deleted_experiment_is_named(workspace: Path) -> None:
    uri = tracking_uri()
    client = open_client(uri)
    client.delete_experiment(ensure_experiment(client, uri, "cppo-mini"))
    with pytest.raises(UserError, match="'cppo-mini' was deleted"):
        ensure_experiment(client, uri, "cppo-mini")


def test_attempts_of_an_empty_store(workspace: Path) -> None:
    assert attempts(open_client(tracking_uri()), "cppo-mini", ["abc"]) == {"abc": []}
