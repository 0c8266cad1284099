"""What commands know of each run: every state, from real folders, whatever anybody does in MLflow."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.launch.queues import look, repair
from cppo_lab.runs import attempt as attempt_module
from cppo_lab.runs.folder import Queue, held, read_status, write_status
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

REWARD = "train/reward"


@pytest.fixture
def folder(workspace: Path, tiny_spec: RunSpec) -> Path:
    path = workspace / "runs" / tiny_spec.run_id
    path.mkdir(parents=True)
    return path


def begun(spec: RunSpec, folder: Path, steps: int = 3) -> Recorder:
    recorder = Recorder(spec, {schema.TAG_CODE_VERSION: "v"}, folder)
    for step in range(steps):
        recorder.log(step, {REWARD: 0.5})
    return recorder


def state(spec: RunSpec) -> RunState:
    runs = Path("runs").resolve()
    return states(runs, [spec.run_id], look(runs))[spec.run_id]


def test_missing_without_a_store(workspace: Path, tiny_spec: RunSpec) -> None:
    assert state(tiny_spec) == RunState(schema.MISSING)
    assert list(workspace.iterdir()) == []


def test_queued_also_without_a_store_and_over_an_earlier_failure(tiny_spec: RunSpec, folder: Path) -> None:
    with Queue(Path("runs").resolve(), [tiny_spec.run_id]):
        assert state(tiny_spec).state == schema.QUEUED
        begun(tiny_spec, folder).fail("ValueError: bad", "")
        assert state(tiny_spec).state == schema.QUEUED
        with held(folder):
            assert state(tiny_spec).state == schema.RUNNING
    assert state(tiny_spec).state == schema.FAILED
    begun(tiny_spec, folder).finish(FINISHED)
    with Queue(Path("runs").resolve(), [tiny_spec.run_id]):
        assert state(tiny_spec).state == schema.DONE


def test_running_says_how_far_it_is(tiny_spec: RunSpec, folder: Path) -> None:
    with held(folder):
        assert state(tiny_spec) == RunState(schema.RUNNING, "starting")
        recorder = begun(tiny_spec, folder)
        recorder._status(schema.RUNNING, 2)
        found = state(tiny_spec)
    assert (found.state, found.note, found.code_version) == (schema.RUNNING, "step 2/4", "v")


@pytest.mark.parametrize(("steps", "note"), [(3, "step 2/4; "), (0, "")])
def test_interrupted_is_partial(tiny_spec: RunSpec, folder: Path, steps: int, note: str) -> None:
    begun(tiny_spec, folder, steps).interrupt("terminated by SIGTERM")
    where = "at step 2" if steps else "before its first step"
    note += "interrupted: terminated by SIGTERM" + ("" if steps else " before its first step")
    found = state(tiny_spec)
    assert (found.state, found.reason) == (schema.PARTIAL, f"interrupted: terminated by SIGTERM {where}")
    assert found.note == note
    sent(folder)
    [run] = mlflow_runs()
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("KILLED", schema.PARTIAL)
    (folder / "status.json").unlink()  # the spool knows as much
    assert state(tiny_spec).note == note


@pytest.fixture(autouse=True)
def no_store_stays() -> Iterator[None]:
    """`mlflow.set_tracking_uri` sets MLFLOW_TRACKING_URI for the whole process."""
    yield
    mlflow.set_tracking_uri(None)


def note(mlflow_id: str) -> None:
    """What anybody does who adds a remark to an old run; MLflow's status is FINISHED afterwards."""
    mlflow.set_tracking_uri(tracking_uri())
    with mlflow.start_run(run_id=mlflow_id):
        mlflow.log_metric("note", 1.0)
        mlflow.set_tag("remark", "done")


def note_in_a_script_that_fails(mlflow_id: str) -> None:
    mlflow.set_tracking_uri(tracking_uri())
    with contextlib.suppress(ZeroDivisionError), mlflow.start_run(run_id=mlflow_id):
        mlflow.log_metric("note", 1 / 0)


def close_by_hand(mlflow_id: str) -> None:
    mlflow.set_tracking_uri(tracking_uri())
    mlflow.start_run(run_id=mlflow_id)
    mlflow.end_run("FINISHED")


ANNOTATIONS = {
    "a note": note,
    "a script that fails": note_in_a_script_that_fails,
    "end_run": close_by_hand,
    "KILLED": lambda one: open_client(tracking_uri()).set_terminated(one, "KILLED"),
    "RUNNING": lambda one: open_client(tracking_uri()).update_run(one, status="RUNNING"),
    "FINISHED": lambda one: open_client(tracking_uri()).set_terminated(one, "FINISHED"),
}
ENDS: dict[str, tuple[Callable[[Recorder], None], str, str]] = {
    "done": (lambda recorder: recorder.finish(FINISHED), schema.DONE, ""),
    "collapsed": (lambda one: one.finish(Outcome(schema.COLLAPSED, 3, "fell")), schema.COLLAPSED, "fell"),
    "failed": (lambda recorder: recorder.fail("ValueError: bad", ""), schema.FAILED, "ValueError: bad"),
    "interrupted": (
        lambda one: one.interrupt("terminated by SIGTERM"),
        schema.PARTIAL,
        "step 2/4; interrupted",
    ),
    "gone": (
        lambda one: one._status(schema.RUNNING, 2),
        schema.PARTIAL,
        "step 2/4; interrupted: its process ended",
    ),
}


@pytest.mark.parametrize("annotate", ANNOTATIONS.values(), ids=ANNOTATIONS)
@pytest.mark.parametrize(("end", "expected", "note"), ENDS.values(), ids=ENDS)
def test_what_somebody_does_to_a_run_in_mlflow_changes_no_state(
    tiny_spec: RunSpec,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Recorder], None],
    expected: str,
    note: str,
    annotate: Callable[[str], None],
) -> None:
    end(begun(tiny_spec, folder))
    sent(folder)
    [run] = mlflow_runs()
    annotate(run.info.run_id)
    assert (state(tiny_spec).state, state(tiny_spec).note[: len(note)]) == (expected, note)
    frame = read_sweep(tracking_uri(), "cppo-mini", "none", run_ids=[tiny_spec.run_id]).runs
    assert list(frame["status"]) == [run.data.tags[schema.TAG_STATUS]]
    stored = find(tracking_uri(), "mini", [tiny_spec.run_id])[tiny_spec.run_id]
    assert stored.is_result == (expected in schema.FINISHED)  # for a launch from another folder
    repair(folder.parent, [tiny_spec.run_id], tracking_uri())
    assert state(tiny_spec).state == expected
    trained = []
    monkeypatch.setattr(attempt_module, "load_core", lambda _: lambda *_: trained.append(1) or FINISHED)
    job(tiny_spec, folder.parent, tracking_uri()).run()
    assert bool(trained) == (expected not in schema.FINISHED)
    assert state(tiny_spec).state == (expected if expected in schema.FINISHED else schema.DONE)
    [run] = mlflow_runs()
    assert "note" not in run.data.metrics or run.data.metrics["note"] == 1.0
    if trained:
        assert run.info.status == "FINISHED"


def test_whatever_the_store_has_the_folder_decides(tiny_spec: RunSpec, folder: Path) -> None:
    recorder = begun(tiny_spec, folder, 2)
    recorder._status(schema.RUNNING, 1)
    sent(folder)
    assert (state(tiny_spec).state, state(tiny_spec).step) == (schema.PARTIAL, 1)
    recorder.finish(FINISHED)
    assert [run.info.status for run in mlflow_runs()] == ["RUNNING"]
    assert state(tiny_spec) == RunState(schema.DONE, "", "v")
    write_status(folder, {**read_status(folder), "status": schema.RUNNING})  # killed before it said so
    assert state(tiny_spec) == RunState(schema.DONE, "", "v")
    mlflow_id = mlflow_runs()[0].info.run_id
    sent(folder)
    open_client(tracking_uri()).delete_run(mlflow_id)
    assert state(tiny_spec) == RunState(schema.DONE, "", "v")
