"""What a launch repairs of the attempts that the store has, and who looks at locks. No store is asked."""

import fcntl
from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab import schema
from cppo_lab.launch import reconcile
from cppo_lab.launch.reconcile import repair
from cppo_lab.runs.folder import ensure_folder_tag, folder_tag, is_held
from cppo_lab.tracking.records import AttemptRecord

RUN = "0123456789ab"


def attempt(mlflow_id: str, folder: str = "") -> AttemptRecord:
    """One that the store has as running."""
    return AttemptRecord(mlflow_id, RUN, schema.RUNNING, "v", "", folder, frozenset())


def test_only_attempts_from_this_folder_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another machine trains from a folder of its own is not ours to judge."""
    ensure_folder_tag(tmp_path / RUN)
    past = [
        attempt("theirs", f"elsewhere-{'0' * 16}/{RUN}"),
        attempt("ours", folder_tag(tmp_path / RUN)),
        attempt("nobody's"),
    ]
    client = Mock()
    client.get_run.return_value.data.tags = {schema.TAG_STATUS: schema.RUNNING}
    monkeypatch.setattr(reconcile, "open_client", lambda uri: client)
    monkeypatch.setattr(reconcile, "past_attempts", lambda run_ids, core, uri: {RUN: past})
    monkeypatch.setattr(reconcile, "upload", lambda folders, uri: None)
    assert repair([RUN], "mini", "http://store", tmp_path) == [RUN]
    assert [call.args for call in client.set_terminated.call_args_list] == [("ours", "KILLED")]


def test_who_looks_at_a_lock_does_not_train(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as another that looks at this moment
        assert not is_held(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
