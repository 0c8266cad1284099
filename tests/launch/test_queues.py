"""What commands know of each run, whatever anybody does in MLflow, what a repair makes of runs that nobody trains
(their ends, their checkpoints, what the store lacks), and what `cppo cancel` says of a run that a process trains.
"""

import fcntl
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from cppo_lab import schema
from cppo_lab.analysis.reader import read_sweep
from cppo_lab.core_records import CHECKPOINT, CHECKPOINTS
from cppo_lab.errors import UserError
from cppo_lab.launch import queues
from cppo_lab.launch.queues import Cancelled, read_queues, repair
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs import folder as run_folder
from cppo_lab.runs.folder import AlreadyRunning, Cause, is_locked, read_status, run_lock, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.state import CAUSE_TEXTS, Queued, QueueEntry, RunState, states
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.tracking.address import tracking_uri
from cppo_lab.tracking.read import find
from tests.conftest import FINISHED, Command, user_error
from tests.jobs import job
from tests.recorded import ended, mlflow_client, mlflow_runs, sent

RUN = "0123456789ab"


@pytest.fixture
def recorder(workspace: Path, tiny_spec: RunSpec) -> Recorder:
    """Of a run whose process is gone after step 2, as far as a store was told."""
    made = Recorder(tiny_spec, {schema.TAG_CODE_VERSION: "v"}, workspace / "runs" / tiny_spec.run_id)
    for step in range(3):
        made.log(step, {"train/reward": 0.5})
    made._status(schema.RUNNING, 2)
    sent(made.folder)
    return made


def repaired(recorder: Recorder) -> list[str]:
    """What a repair says, without the run's id."""
    lines = repair(recorder.folder.parent, [recorder.spec.run_id], tracking_uri())
    return [line.removeprefix(f"{recorder.spec.run_id}: ") for line in lines]


def in_store() -> tuple[str | None, ...]:
    """How the only run has ended there."""
    [run] = mlflow_runs()
    return ended(run)


@pytest.mark.parametrize("has_status", [True, False])
@pytest.mark.parametrize("cancelled", [False, True])
def test_the_end_of_a_process_that_is_gone_is_recorded(
    recorder: Recorder, has_status: bool, cancelled: bool
) -> None:
    if not has_status:
        (recorder.folder / "status.json").unlink()
    if cancelled:
        run_folder.cancel(recorder.folder)
    assert in_store()[:2] == ("RUNNING", schema.RUNNING)
    assert repaired(recorder) == ["its record in MLflow is repaired"]
    cause = Cause.CANCELLED if cancelled else Cause.DIED
    assert in_store() == ("KILLED", schema.PARTIAL, "2", f"interrupted: {CAUSE_TEXTS[cause]} at step 2")
    status = read_status(recorder.folder)
    assert (status["status"], status["step"], status["cause"]) == (schema.PARTIAL, 2, cause)
    assert repaired(recorder) == []


def test_a_status_is_told_what_its_spool_says(recorder: Recorder, workspace: Path) -> None:
    """One without a spool is interrupted."""
    with patch("cppo_lab.runs.recorder.Recorder._status", lambda *_: None):
        recorder.finish(FINISHED)
    assert repaired(recorder) == ["its folder now says that it is done"]
    assert (read_status(recorder.folder)["status"], in_store()[1]) == (schema.DONE, schema.DONE)
    (folder := workspace / "runs" / RUN).mkdir()
    write_status(folder, {"status": schema.RUNNING, "step": 3})
    said = repair(folder.parent, [RUN], tracking_uri())
    assert said == [f"{RUN}: its folder now says that it is partial"]


def test_a_run_that_lives_is_not_ended(recorder: Recorder) -> None:
    """Somebody holds its lock, its job has nodes, or it is started between the look and the lock."""
    with run_lock(recorder.folder):
        assert repaired(recorder) == []
    place = QueueEntry("17", active=True, ending=True)
    for name, stand_in in {
        "read_queues": lambda runs: Queued(places={recorder.spec.run_id: place}),
        "run_lock": Mock(side_effect=AlreadyRunning("run is being trained")),
    }.items():
        with patch.object(queues, name, stand_in):
            assert repaired(recorder) == []
    assert in_store()[0] == "RUNNING"


def test_a_run_that_ends_meanwhile_keeps_its_own_end(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(folder: Path) -> AbstractContextManager[None]:
        recorder.fail("ValueError: bad", "")
        return run_lock(folder)

    monkeypatch.setattr("cppo_lab.launch.queues.run_lock", late)
    assert repaired(recorder) == []
    assert in_store() == ("FAILED", schema.FAILED, "2", "ValueError: bad")
    assert read_status(recorder.folder)["status"] == schema.FAILED


def test_checkpoints_of_a_run_killed_after_its_end_are_removed(recorder: Recorder) -> None:
    def checkpoints() -> int:
        repaired(recorder)
        return sum("checkpoint" in path.name for path in recorder.folder.iterdir())

    (recorder.folder / CHECKPOINT).touch()
    (recorder.folder / CHECKPOINTS / "global_step_2").mkdir(parents=True)
    assert checkpoints() == 2  # it goes on from there
    Recorder(recorder.spec, {}, recorder.folder).finish(FINISHED)
    with run_lock(recorder.folder):
        assert checkpoints() == 2  # it is about to do so itself
    with patch("cppo_lab.runs.attempt.run_lock", Mock(side_effect=OSError(28, "No space left on device"))):
        assert checkpoints() == 2
    assert checkpoints() == 0


def test_what_the_store_refuses_is_sent_by_the_next_repair(recorder: Recorder) -> None:
    recorder.finish(FINISHED)
    (recorder.folder / CHECKPOINT).touch()
    refuses = Mock(side_effect=MlflowException("a value is too long"))
    says = r"could not be uploaded .*`cppo sync` uploads the rest"
    with patch("cppo_lab.tracking.upload.ship", refuses), user_error(says):
        repaired(recorder)
    assert not (recorder.folder / CHECKPOINT).exists()
    assert repaired(recorder) == []
    assert in_store()[:2] == ("FINISHED", schema.DONE)


LOSSES: dict[str, Callable[[MlflowClient, str], None]] = {
    "deleted by a user": MlflowClient.delete_run,
    # As a database put back to an older copy has it.
    "another store": lambda client, mlflow_id: client.set_tag(mlflow_id, schema.TAG_RECORD, "0" * 32),
}


@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("command", ["status --repair", "sync"])
def test_a_finished_run_that_the_store_has_lost_is_uploaded_again(
    recorder: Recorder, cppo: Command, lost: str, command: str
) -> None:
    recorder.finish(FINISHED)
    assert repaired(recorder) == []
    [run] = mlflow_runs()
    LOSSES[lost](mlflow_client(), run.info.run_id)
    line = f"1 finished run was not in the tracking store any more: uploaded again ({recorder.spec.run_id})"
    assert line in cppo(command).err
    assert recorder.record_name in [run.data.tags[schema.TAG_RECORD] for run in mlflow_runs()]
    assert repaired(recorder) == []


def test_an_end_that_only_the_store_has_is_trained_again(recorder: Recorder) -> None:
    """A full disk kept it out of the folder, whose checkpoint stays."""
    [run] = mlflow_runs()
    mlflow_client().set_tag(run.info.run_id, schema.TAG_STATUS, schema.COLLAPSED)
    (recorder.folder / CHECKPOINT).touch()
    repaired(recorder)
    assert read_status(recorder.folder)["status"] == schema.PARTIAL
    assert (recorder.folder / CHECKPOINT).exists()
    assert in_store()[1] == schema.COLLAPSED


def test_who_looks_at_a_lock_does_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And stops nobody who begins to."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as another that looks at this moment
        assert not is_locked(tmp_path)
        moment = SimpleNamespace(sleep=lambda seconds: fcntl.flock(lock, fcntl.LOCK_UN))
        monkeypatch.setattr("cppo_lab.runs.folder.time", moment)
        with run_lock(tmp_path):
            assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


# Our state and its note; MLflow's status after a remark in a script that fails, a correction, and remarks in old runs.
ENDS: list[tuple[Callable[[Recorder], None], str, str, str]] = [
    (lambda run: run.finish(FINISHED), schema.DONE, "", "FAILED"),
    (lambda run: run.finish(Outcome(schema.COLLAPSED, 3, "fell")), schema.COLLAPSED, "fell", "RUNNING"),
    (lambda run: run.fail("ValueError: bad", ""), schema.FAILED, "ValueError: bad", "FINISHED"),
    (lambda run: run.interrupt("by it"), schema.PARTIAL, "step 2/4; interrupted: by it", "FINISHED"),
    (lambda run: None, schema.PARTIAL, "step 2/4; interrupted: its process ended", "FINISHED"),
]


@pytest.mark.parametrize("end, expected, note, status", ENDS)
def test_what_somebody_does_to_a_run_in_mlflow_changes_no_state(
    recorder: Recorder, tiny_spec: RunSpec, monkeypatch: pytest.MonkeyPatch, end: Callable[[Recorder], None],
    expected: str, note: str, status: str,
) -> None:  # fmt: skip
    end(recorder)
    sent(recorder.folder)
    runs, uri, run_id, [run] = recorder.folder.parent, tracking_uri(), tiny_spec.run_id, mlflow_runs()
    mlflow_client().log_metric(run.info.run_id, "note", 1.0)
    mlflow_client().update_run(run.info.run_id, status)

    def state() -> RunState:
        return states(runs, [run_id], read_queues(runs))[run_id]

    assert (state().state, state().note[: len(note)]) == (expected, note)
    frame = read_sweep(uri, "cppo-mini", "none", run_ids=[run_id]).runs
    assert list(frame["status"]) == [run.data.tags[schema.TAG_STATUS]]
    finished = expected in schema.FINISHED
    assert find(uri, "mini", [run_id])[run_id].is_result == finished  # for a launch from another folder
    repair(runs, [run_id], uri)
    assert state().state == expected
    trained = Mock(return_value=FINISHED)
    monkeypatch.setattr("cppo_lab.runs.attempt.load_core", lambda _: trained)
    job(tiny_spec, runs, uri).run()
    assert trained.called != finished
    assert state().state == (expected if finished else schema.DONE)
    [run] = mlflow_runs()
    assert run.data.metrics["note"] == 1.0
    assert finished or run.info.status == "FINISHED"


HERE = (socket.gethostname(), os.getpid())
GONE = ProcessLookupError(3, "No such process")
FOREIGN = PermissionError(1, "Operation not permitted")
ASKED = "asked its process to end; it has not ended yet"
# What else is the case than that a process of this machine is asked to end, and what then is said and sent.
PROCESSES: dict[str, dict[str, Any]] = {
    "asked": {},
    "started": {"queued_only": True, "text": "has started meanwhile: left alone", "sent": []},
    "of another user": {"send": FOREIGN, "text": f"process {HERE[1]} belongs to another user: ask them"},
    "ending": {"open": GONE, "sent": []},  # its lock alone says whether the run has ended
    "gone": {"send": GONE},
    # Its number is another process's since it was opened, or on another machine.
    "another's number": {"holders": [HERE, (HERE[0], HERE[1] + 1)], "sent": []},
    "elsewhere": {
        "holders": [("elsewhere", 7)],
        "text": "is trained on elsewhere (process 7): cancel it there",
        "sent": [],
    },
    "unknown": {
        "holders": [None],
        "text": "the process that trains it is not known: wait for it to end",
        "sent": [],
    },
}


@pytest.mark.parametrize("name", PROCESSES)
def test_what_is_said_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    usual = {"queued_only": False, "holders": [HERE] * 2, "text": ASKED, "sent": [signal.SIGTERM]}
    case = usual | PROCESSES[name]
    monkeypatch.setattr("os.pidfd_open", Mock(wraps=os.pidfd_open, side_effect=case.get("open")))
    monkeypatch.setattr("signal.pidfd_send_signal", send := Mock(side_effect=case.get("send")))
    monkeypatch.setattr("cppo_lab.launch.queues.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("cppo_lab.runs.folder.holder", Mock(side_effect=case["holders"]))
    monkeypatch.setattr("cppo_lab.runs.folder.in_living_batch", lambda *_: False)
    with run_lock(tmp_path / RUN):
        cancelled = queues.cancel(tmp_path, [RUN], case["queued_only"])
    assert cancelled == [Cancelled(RUN, case["text"], case["text"] == ASKED)]
    assert [call.args[1] for call in send.call_args_list] == case["sent"]
    assert (tmp_path / RUN / "cancelled").exists() != case["queued_only"]  # or it would end itself


@pytest.mark.parametrize("fault", [UserError("slurmctld does not answer"), KeyboardInterrupt()])
def test_a_controller_that_does_not_answer_leaves_no_mark_but_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    Ledger(tmp_path).close()
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.refresh", Mock(side_effect=fault))
    run_folder.cancel(tmp_path / RUN)
    with pytest.raises(type(fault)):
        queues.cancel(tmp_path, [RUN, "b" * 12], False)
    assert [run_folder.is_cancelled(tmp_path / name) for name in (RUN, "b" * 12)] == [True, False]
