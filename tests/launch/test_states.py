"""What commands know of each run: from real folders, whatever anybody does in MLflow."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.launch.queues import look, repair
from cppo_lab.runs import attempt as attempt_module
from cppo_lab.runs.folder import held, queueing, read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.state import RunState, states
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import find
from tests.conftest import FINISHED
from tests.jobs import job
from tests.launch.test_launch import mlflow_runs
from tests.recorded import sent


@pytest.fixture
def recorder(workspace: Path, tiny_spec: RunSpec) -> Recorder:
    """Of a run that has got to step 2."""
    made = Recorder(tiny_spec, {schema.TAG_CODE_VERSION: "v"}, workspace / "runs" / tiny_spec.run_id)
    for step in range(3):
        made.log(step, {"train/reward": 0.5})
    made._status(schema.RUNNING, 2)
    return made


def state(spec: RunSpec) -> RunState:
    runs = Path("runs").resolve()
    return states(runs, [spec.run_id], look(runs))[spec.run_id]


def test_a_run_from_its_queue_to_its_result(workspace: Path, tiny_spec: RunSpec) -> None:
    assert state(tiny_spec) == RunState(schema.MISSING)
    assert list(workspace.iterdir()) == []
    runs = workspace / "runs"
    folder, tags = runs / tiny_spec.run_id, {schema.TAG_CODE_VERSION: "v"}
    with queueing(runs, [tiny_spec.run_id]):
        assert state(tiny_spec) == RunState(schema.QUEUED)
        Recorder(tiny_spec, tags, folder).fail("ValueError: bad", "")
        assert state(tiny_spec).state == schema.QUEUED
        with held(folder):
            assert state(tiny_spec).note == "starting"
            Recorder(tiny_spec, tags, folder)
            assert state(tiny_spec) == RunState(schema.RUNNING, "", "v", 0, 4)
    Recorder(tiny_spec, tags, folder).interrupt("terminated by SIGTERM")
    for _ in range(2):
        assert state(tiny_spec).note == "interrupted: terminated by SIGTERM before its first step"
        (folder / "status.json").unlink(missing_ok=True)  # the spool knows as much
    Recorder(tiny_spec, tags, folder).finish(FINISHED)
    with queueing(runs, [tiny_spec.run_id]):
        assert state(tiny_spec) == RunState(schema.DONE, "", "v")


ENDS: dict[str, tuple[Callable[[Recorder], None], str, str]] = {
    "done": (lambda run: run.finish(FINISHED), schema.DONE, ""),
    "collapsed": (lambda run: run.finish(Outcome(schema.COLLAPSED, 3, "fell")), schema.COLLAPSED, "fell"),
    "failed": (lambda run: run.fail("ValueError: bad", ""), schema.FAILED, "ValueError: bad"),
    "interrupted": (lambda run: run.interrupt("by it"), schema.PARTIAL, "step 2/4; interrupted: by it"),
    "gone": (lambda run: None, schema.PARTIAL, "step 2/4; interrupted: its process ended"),
}


# MLflow's status after somebody's remark in an old run, one in a script that fails, and a correction.
@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "RUNNING"])
@pytest.mark.parametrize(("end", "expected", "note"), ENDS.values(), ids=ENDS)
def test_what_somebody_does_to_a_run_in_mlflow_changes_no_state(
    recorder: Recorder, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, end: Callable[[Recorder], None],
    expected: str, note: str, status: str,
) -> None:  # fmt: skip
    end(recorder)
    sent(recorder.folder)
    runs, uri, [run] = recorder.folder.parent, tracking_uri(), mlflow_runs()
    open_client(uri).log_metric(run.info.run_id, "note", 1.0)
    open_client(uri).update_run(run.info.run_id, status)
    assert (state(tiny_spec).state, state(tiny_spec).note[: len(note)]) == (expected, note)
    frame = read_sweep(uri, "cppo-mini", "none", run_ids=[tiny_spec.run_id]).runs
    assert list(frame["status"]) == [run.data.tags[schema.TAG_STATUS]]
    stored = find(uri, "mini", [tiny_spec.run_id])[tiny_spec.run_id]
    assert stored.is_result == (expected in schema.FINISHED)  # for a launch from another folder
    repair(runs, [tiny_spec.run_id], uri)
    assert state(tiny_spec).state == expected
    trained = []
    monkeypatch.setattr(attempt_module, "load_core", lambda _: lambda *_: trained.append(1) or FINISHED)
    job(tiny_spec, runs, uri).run()
    assert bool(trained) == (expected not in schema.FINISHED)
    assert state(tiny_spec).state == (schema.DONE if trained else expected)
    [run] = mlflow_runs()
    assert run.data.metrics["note"] == 1.0
    assert not trained or run.info.status == "FINISHED"


def test_whatever_the_store_has_the_folder_decides(recorder: Recorder, tiny_spec: RunSpec) -> None:
    sent(recorder.folder)
    recorder.finish(FINISHED)
    [run] = mlflow_runs()
    assert run.info.status == "RUNNING"
    for status in (schema.DONE, schema.RUNNING):  # killed before it said so
        write_status(recorder.folder, {**read_status(recorder.folder), "status": status})
        assert state(tiny_spec) == RunState(schema.DONE, "", "v")
    sent(recorder.folder)
    open_client(tracking_uri()).delete_run(run.info.run_id)
    assert state(tiny_spec) == RunState(schema.DONE, "", "v")
