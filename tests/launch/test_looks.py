"""The state of runs from what a look has found: attempts in the store, lists of launchers, locks. No store is asked."""

import fcntl
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab import schema
from cppo_lab.launch import reconcile, snapshot
from cppo_lab.launch.reconcile import repair
from cppo_lab.launch.run_state import RunState
from cppo_lab.launch.snapshot import Snapshot
from cppo_lab.runs.folder import cancel, ensure_folder_tag, folder_tag
from cppo_lab.runs.lock import is_held
from cppo_lab.store.records import AttemptRecord

RUN = "0123456789ab"


def attempt(
    mlflow_id: str, status: str, reason: str = "", folder: str = "", replaces: str = ""
) -> AttemptRecord:
    """One that the store has as `status`."""
    return AttemptRecord(
        mlflow_id,
        RUN,
        status,
        "v",
        reason,
        folder,
        frozenset(),
        replaces=frozenset(replaces.split()),
    )


def state(
    runs: Path,
    past: Sequence[AttemptRecord],
    held: bool = False,
    queued: Sequence[str] = (),
    ignoring: str = "",
) -> RunState:
    """Of the run whose attempts are `past`, newest first."""
    return Snapshot(runs, {RUN: past}, {RUN: held}, queued).states(ignoring.split())[RUN]


def test_the_newest_attempt_decides(tmp_path: Path) -> None:
    failed = attempt("f", schema.FAILED, "bad")
    killed = attempt("k", schema.PARTIAL, "interrupted: cancelled at step 2")
    assert state(tmp_path, [failed, killed]) == RunState(schema.FAILED, "bad", "v")
    assert state(tmp_path, [killed, failed]).state == schema.PARTIAL
    assert state(tmp_path, [killed, failed]).reason == killed.reason


def test_a_cancelled_run_is_queued_no_more_though_it_is_on_a_list(tmp_path: Path) -> None:
    assert state(tmp_path, [], queued=[RUN]) == RunState(schema.QUEUED)
    cancel(tmp_path / RUN)
    assert state(tmp_path, [], queued=[RUN]) == RunState(schema.MISSING)


@pytest.mark.parametrize(
    ("status", "held", "expected"),
    [
        (schema.RUNNING, True, schema.RUNNING),
        (schema.FAILED, False, schema.DONE),
        (schema.PARTIAL, False, schema.DONE),
    ],
)
def test_a_result_stands_unless_its_replacement_is_running(
    tmp_path: Path, status: str, held: bool, expected: str
) -> None:
    past = [attempt("new", status, "no memory", replaces="old"), attempt("old", schema.DONE)]
    found = state(tmp_path, past, held)
    assert found.state == expected
    assert ("its replacement is" in found.reason) == (expected == schema.DONE)
    assert state(tmp_path, past, held, ignoring="old").state != schema.DONE


def test_only_attempts_from_this_folder_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another machine trains from a folder of its own is not ours to judge."""
    ensure_folder_tag(tmp_path / RUN)
    past = [
        attempt("theirs", schema.RUNNING, folder=f"elsewhere-{'0' * 16}/{RUN}"),
        attempt("ours", schema.RUNNING, folder=folder_tag(tmp_path / RUN)),
        attempt("nobody's", schema.RUNNING),
    ]
    client = Mock()
    client.get_run.return_value.data.tags = {schema.TAG_STATUS: schema.RUNNING}
    monkeypatch.setattr(reconcile, "open_client", lambda uri: client)
    monkeypatch.setattr(snapshot, "past_attempts", lambda run_ids, core, uri: {RUN: past})
    monkeypatch.setattr(reconcile, "send", lambda folders, uri: None)
    assert repair([RUN], "mini", "http://store", tmp_path) == [RUN]
    assert [call.args for call in client.set_terminated.call_args_list] == [("ours", "KILLED")]


def test_who_looks_at_a_lock_does_not_train(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as another that looks at this moment
        assert not is_held(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
