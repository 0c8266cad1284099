"""What commands know of each run: every state, from real folders; and what repairs make of a real store."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import mlflow
import pytest
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.cores.base import CHECKPOINT, CHECKPOINTS
from cppo_lab.launch import reconcile
from cppo_lab.launch.queues import look
from cppo_lab.launch.reconcile import repair
from cppo_lab.runs import attempt as run_module
from cppo_lab.runs.folder import AlreadyRunning, Queue, held, read_status, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import newest_record
from cppo_lab.runs.state import Place, Queued, RunState, states
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking import upload
from cppo_lab.tracking.address import sqlite_file, tracking_uri
from cppo_lab.tracking.client import ensure_experiment, open_client
from cppo_lab.tracking.read import past_attempts
from tests.conftest import FINISHED
from tests.jobs import job
from tests.launch.test_launch import mlflow_runs
from tests.recorded import sent
from tests.test_scale import counted

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


@pytest.mark.parametrize(
    ("steps", "reason", "note"),
    [
        (3, "interrupted: terminated by SIGTERM at step 2", "step 2/4; interrupted: terminated by SIGTERM"),
        (
            0,
            "interrupted: terminated by SIGTERM before its first step",
            "interrupted: terminated by SIGTERM before its first step",
        ),
    ],
)
def test_interrupted_is_partial(tiny_spec: RunSpec, folder: Path, steps: int, reason: str, note: str) -> None:
    begun(tiny_spec, folder, steps).interrupt("terminated by SIGTERM")
    found = state(tiny_spec)
    assert (found.state, found.reason, found.note) == (schema.PARTIAL, reason, note)
    sent(folder)
    [run] = mlflow_runs()
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("KILLED", schema.PARTIAL)
    (folder / "status.json").unlink()  # the spool knows as much
    assert state(tiny_spec).note == note


def test_a_process_that_is_gone_leaves_a_partial_run(tiny_spec: RunSpec, folder: Path) -> None:
    begun(tiny_spec, folder)._status(schema.RUNNING, 2)
    found = state(tiny_spec)
    assert (found.state, found.step, found.t_stop) == (schema.PARTIAL, 2, 4)
    assert "ended without a word" in found.reason
    assert repair([tiny_spec.run_id], "mini", tracking_uri(), Path("runs").resolve()) == [tiny_spec.run_id]
    [run] = mlflow_runs()
    assert run.info.status == "KILLED"
    assert re.fullmatch(
        r"interrupted: its process ended without a word .* at step 2", run.data.tags[schema.TAG_REASON]
    )
    assert state(tiny_spec).note.startswith("step 2/4; interrupted: its process ended without a word (killed")


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
ENDS: dict[str, tuple[Callable[[Recorder], None], str]] = {
    "done": (lambda recorder: recorder.finish(FINISHED), schema.DONE),
    "collapsed": (lambda recorder: recorder.finish(Outcome(schema.COLLAPSED, 3, "fell")), schema.COLLAPSED),
    "failed": (lambda recorder: recorder.fail("ValueError: bad", ""), schema.FAILED),
    "interrupted": (lambda recorder: recorder.interrupt("terminated by SIGTERM"), schema.PARTIAL),
    "gone": (lambda recorder: recorder._status(schema.RUNNING, 2), schema.PARTIAL),
}


@pytest.mark.parametrize("annotate", ANNOTATIONS.values(), ids=ANNOTATIONS)
@pytest.mark.parametrize(("end", "expected"), ENDS.values(), ids=ENDS)
def test_what_somebody_does_to_a_run_in_mlflow_changes_no_state(
    tiny_spec: RunSpec,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Recorder], None],
    expected: str,
    annotate: Callable[[str], None],
) -> None:
    end(begun(tiny_spec, folder))
    sent(folder)
    [run] = mlflow_runs()
    annotate(run.info.run_id)
    assert state(tiny_spec).state == expected
    frame = read_sweep(tracking_uri(), "cppo-mini", "none", run_ids=[tiny_spec.run_id]).runs
    assert list(frame["status"]) == [run.data.tags[schema.TAG_STATUS]]
    [known] = past_attempts([tiny_spec.run_id], "mini", tracking_uri())[tiny_spec.run_id]
    assert known.is_result == (expected in schema.FINISHED)  # for a launch from another folder
    repaired(tiny_spec)
    assert state(tiny_spec).state == expected
    trained = []
    monkeypatch.setattr(run_module, "load_core", lambda _: lambda *_: trained.append(1) or FINISHED)
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


def test_checkpoints_of_a_run_killed_after_its_end_are_removed(
    tiny_spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checkpoints() -> list[Path]:
        repair([tiny_spec.run_id], "mini", tracking_uri(), Path("runs").resolve())
        return [path for path in folder.iterdir() if "checkpoint" in path.name]

    begun(tiny_spec, folder).interrupt("terminated by SIGTERM")
    (folder / CHECKPOINT).touch()
    (folder / CHECKPOINTS / "global_step_2").mkdir(parents=True)
    assert len(checkpoints()) == 2  # it goes on from there
    begun(tiny_spec, folder).finish(FINISHED)
    with held(folder):
        assert len(checkpoints()) == 2  # it is about to do so itself
    with monkeypatch.context() as full_disk:
        full_disk.setattr(run_module, "held", Mock(side_effect=OSError(28, "No space left on device")))
        assert len(checkpoints()) == 2
    assert checkpoints() == []


def test_an_error_of_its_own_is_a_failure(tiny_spec: RunSpec, folder: Path) -> None:
    begun(tiny_spec, folder).fail("ValueError: bad", "Traceback")
    found = state(tiny_spec)
    assert (found.state, found.reason) == (schema.FAILED, "ValueError: bad")
    sent(folder)
    assert mlflow_runs()[0].info.status == "FAILED"


def test_a_collapse_is_a_result(tiny_spec: RunSpec, folder: Path) -> None:
    begun(tiny_spec, folder).finish(Outcome(schema.COLLAPSED, 2, "score fell"))
    assert (state(tiny_spec).state, state(tiny_spec).note) == (schema.COLLAPSED, "score fell")


def test_known_runs_are_read_together(workspace: Path, tiny_spec: RunSpec) -> None:
    """A request for each of thousands would take minutes: as many statements for a thousand as for a hundred."""
    uri = tracking_uri()
    experiment = ensure_experiment(open_client(uri), uri, schema.experiment_name("mini"))
    specs = [tiny_spec.model_copy(update={"seed": seed}) for seed in range(1000)]
    write_runs(uri, experiment, specs)
    statements: list[int] = []
    for many in (100, 100, 1000):  # at first it opens the store
        wanted = [spec.run_id for spec in specs[:many]]
        with counted(workspace) as count:
            found = [known for [known] in past_attempts(wanted, "mini", uri).values()]
        statements.append(count.statements)
        assert [one.status for one in found].count(schema.DONE) == many // 2
        assert [(one.step, one.reason) for one in found].count(
            (2, "interrupted: stopped at step 2")
        ) == many // 2
    assert statements[1] == statements[2] > 0


def write_runs(uri: str, experiment: str, specs: list[RunSpec]) -> None:
    """Runs as the recorder leaves them, done and interrupted by turns, written past MLflow for speed."""
    import sqlite3

    from cppo_lab.runs.tags import flatten, run_tags

    path = sqlite_file(uri)
    assert path is not None
    with sqlite3.connect(path) as database:
        for number, spec in enumerate(specs):
            done = number % 2 == 0
            mlflow_id = f"{number:032x}"
            tags = run_tags(spec) | {schema.TAG_STATUS: schema.DONE if done else schema.PARTIAL}
            if not done:
                tags |= {schema.TAG_REASON: "interrupted: stopped at step 2", schema.TAG_STEP: "2"}
            database.execute(
                "insert into runs (run_uuid, name, status, start_time, lifecycle_stage, artifact_uri, experiment_id,"
                " user_id, source_type, source_name, entry_point_name, source_version)"
                " values (?, 'r', ?, ?, 'active', '', ?, '', 'LOCAL', '', '', '')",
                (mlflow_id, "FINISHED" if done else "KILLED", number, experiment),
            )
            for table, values in (
                ("tags", tags),
                ("params", flatten(spec.model_dump(mode="json"))),
            ):
                database.executemany(
                    f"insert into {table} (key, value, run_uuid) values (?, ?, ?)",
                    [(key, value, mlflow_id) for key, value in values.items()],
                )
    database.close()


def test_a_store_that_lost_an_end_which_it_had_gets_it_again(tiny_spec: RunSpec, folder: Path) -> None:
    """It was restored from a copy of itself, or a request came late."""
    begun(tiny_spec, folder, 2).finish(FINISHED)
    sent(folder)
    client = open_client(tracking_uri())
    [run] = mlflow_runs()
    client.update_run(run.info.run_id, status="RUNNING")
    client.delete_tag(run.info.run_id, schema.TAG_STATUS)
    assert repair([tiny_spec.run_id], "mini", tracking_uri(), Path("runs").resolve()) == [tiny_spec.run_id]
    [run] = mlflow_runs()
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)


def repaired(spec: RunSpec) -> list[str]:
    return repair([spec.run_id], "mini", tracking_uri(), Path("runs").resolve())


@contextlib.contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> Iterator[None]:
    """The store refuses what is sent to it, so many times."""
    real, left = upload.ship, iter(range(times))

    def ship(*arguments: object) -> int:
        if next(left, None) is not None:
            raise MlflowException("a value is too long")
        return real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(upload, "ship", ship)
        yield


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Something happens after the look and before the lock is taken."""

    @contextlib.contextmanager
    def late(folder: Path) -> Iterator[None]:
        happens()
        with held(folder):
            yield

    monkeypatch.setattr(reconcile, "held", late)


def dead(spec: RunSpec, folder: Path) -> str:
    """The MLflow id of a run that was killed at step 2."""
    begun(spec, folder)._status(schema.RUNNING, 2)
    sent(folder)
    [run] = mlflow_runs()
    assert run.info.status == "RUNNING"
    return str(run.info.run_id)


def test_what_the_store_refuses_is_said_and_does_not_stop_the_repair(
    tiny_spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tiny_spec, folder).finish(FINISHED)
    (folder / CHECKPOINT).touch()
    with refusing(monkeypatch, times=1):
        assert repaired(tiny_spec) == []
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cppo: run {tiny_spec.run_id} could not be uploaded to the tracking store")
    assert line.endswith("nothing is lost, `cppo sync` uploads the rest once the store accepts it")
    assert not (folder / CHECKPOINT).exists()
    repaired(tiny_spec)
    assert [run.info.status for run in mlflow_runs()] == ["FINISHED"]


def test_an_end_that_was_refused_is_sent_again_in_place_of_an_interruption(
    tiny_spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = begun(tiny_spec, folder)
    recorder._status(schema.RUNNING, 2)
    sent(folder)
    recorder.finish(FINISHED)
    with refusing(monkeypatch, times=1):
        assert repaired(tiny_spec) == [tiny_spec.run_id]
    [run] = mlflow_runs()
    assert (run.info.status, run.data.tags[schema.TAG_STATUS]) == ("FINISHED", schema.DONE)


def test_a_run_whose_job_has_nodes_is_not_ended(
    tiny_spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two processes of its job nobody holds the lock."""
    dead(tiny_spec, folder)
    queued = Queued(places={tiny_spec.run_id: Place("17", active=True, ending=True)})
    with monkeypatch.context() as patch:
        patch.setattr(reconcile, "look", lambda runs, warn: queued)
        assert repaired(tiny_spec) == []
    assert [run.info.status for run in mlflow_runs()] == ["RUNNING"]
    assert repaired(tiny_spec) == [tiny_spec.run_id]
    assert [run.info.status for run in mlflow_runs()] == ["KILLED"]


def test_a_run_that_is_started_again_meanwhile_is_not_ended(
    tiny_spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(tiny_spec, folder)
    monkeypatch.setattr(reconcile, "held", Mock(side_effect=AlreadyRunning("run is being trained")))
    assert repaired(tiny_spec) == []
    assert [run.info.status for run in mlflow_runs()] == ["RUNNING"]


def test_a_run_that_ends_meanwhile_keeps_its_own_end(
    tiny_spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow_id = dead(tiny_spec, folder)
    client = open_client(tracking_uri())
    meanwhile(monkeypatch, lambda: client.set_tag(mlflow_id, schema.TAG_STATUS, schema.FAILED))
    assert repaired(tiny_spec) == []
    [run] = mlflow_runs()
    assert run.data.tags[schema.TAG_STATUS] == schema.FAILED
    assert schema.TAG_REASON not in run.data.tags


def finished_on_a_full_disk(spec: RunSpec, folder: Path) -> None:
    """The store has its end, and the folder has not."""
    mlflow_id, client = dead(spec, folder), open_client(tracking_uri())
    client.set_tag(mlflow_id, schema.TAG_STATUS, schema.COLLAPSED)
    client.set_tag(mlflow_id, schema.TAG_REASON, "score fell")
    client.set_terminated(mlflow_id, "FINISHED")
    (folder / CHECKPOINT).touch()


def test_an_end_that_a_full_disk_kept_out_of_the_folder_is_written_there(
    tiny_spec: RunSpec, folder: Path
) -> None:
    finished_on_a_full_disk(tiny_spec, folder)
    repaired(tiny_spec)
    status, record = read_status(folder), newest_record(folder)
    assert (status["status"], status["reason"]) == (schema.COLLAPSED, "score fell")
    assert record is not None and record.end is not None
    assert (record.end.status, record.end.reason) == (schema.COLLAPSED, "score fell")
    assert not (folder / CHECKPOINT).exists()


def test_the_end_of_an_attempt_is_not_written_over_a_newer_one(
    tiny_spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_on_a_full_disk(tiny_spec, folder)
    newer: list[dict[str, object]] = []

    def starts() -> None:
        Recorder(tiny_spec, {}, folder, continues=False)._status(schema.RUNNING, 0)
        newer.append(read_status(folder))

    meanwhile(monkeypatch, starts)
    repaired(tiny_spec)
    assert read_status(folder) == newer[0]
    record = newest_record(folder)
    assert record is not None and record.end is None
    assert (folder / CHECKPOINT).exists()  # the newer attempt may go on from it
