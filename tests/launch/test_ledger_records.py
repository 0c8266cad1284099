"""The record of submitted jobs by itself: what jobs are called, how they ended, and one launcher at a time."""

import fcntl
import itertools
import os
import pwd
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm import ledger as ledger_module
from cppo_lab.launch.slurm.ledger import LOCK, NAME, Ledger, name_of, submitting


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """An empty one, whose submissions are a second apart."""
    times = itertools.count(1_000)
    monkeypatch.setattr(ledger_module, "time", SimpleNamespace(time=lambda: float(next(times))))
    return Ledger(tmp_path)


def test_a_job_is_called_as_slurm_calls_it(ledger: Ledger) -> None:
    """An array's tasks by number and index, the first one too: `scancel 17` would end all of them."""
    array = ledger.claim(["a", "b", "c"])
    assert {task.job for task in ledger.open_tasks()} == {""}
    ledger.submitted(array, 17)
    ledger.submitted(ledger.claim(["d"]), 18)
    assert {task.name: task.job for task in ledger.open_tasks()} == {
        "a": "17_0",
        "b": "17_1",
        "c": "17_2",
        "d": "18",
    }


def test_runs_of_one_job_share_its_place(ledger: Ledger) -> None:
    ledger.submitted(ledger.claim(["a", "b", "c"], [0, 0, 1]), 17)
    ledger.submitted(ledger.claim(["d", "e"], [0, 0]), 18)
    assert {task.name: task.job for task in ledger.open_tasks()} == {
        **dict.fromkeys("ab", "17_0"),
        "c": "17_1",
        **dict.fromkeys("de", "18"),
    }
    with pytest.raises(ValueError, match="b are in the queue already"):
        ledger.claim(["b", "f"], [0, 0])


def test_the_first_word_on_how_a_job_ended_stands(ledger: Ledger) -> None:
    """Who looked before may write later."""
    ledger.submitted(ledger.claim(["a", "b"]), 17)
    seen = ledger.open_tasks()
    ledger.end([task for task in seen if task.name == "a"], "CANCELLED")
    ledger.end(seen, "left Slurm's queue")
    assert {name: task.ended for name, task in ledger.newest_tasks().items()} == {
        "a": "CANCELLED",
        "b": "left Slurm's queue",
    }
    assert ledger.open_tasks() == []


def test_a_run_that_is_submitted_again_is_in_its_newest_job(ledger: Ledger) -> None:
    for number in (17, 18, 19):
        ledger.submitted(ledger.claim(["a"]), number)
        assert ledger.newest_tasks()["a"].job == str(number)
        ledger.end(ledger.open_tasks(), "TIMEOUT")
    assert [task.job for task in ledger.tasks_of("a")] == ["19", "18", "17"]


def test_a_claim_that_fails_leaves_nothing(ledger: Ledger) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        ledger.claim(["a", "b", "a"])  # refused by the table, when `a` and `b` are in it
    assert (ledger.open_tasks(), ledger.unanswered()) == ([], [])
    ledger.submitted(ledger.claim(["a", "b"]), 17)
    assert [task.job for task in ledger.open_tasks()] == ["17_0", "17_1"]


def test_the_lock_of_a_launcher_keeps_out_all_others_until_it_is_done(tmp_path: Path) -> None:
    def free(kind: int) -> bool:
        descriptor = os.open(tmp_path / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    with pytest.raises(KeyboardInterrupt), submitting(tmp_path):
        assert not free(fcntl.LOCK_EX)
        assert not free(fcntl.LOCK_SH)  # two shared locks would let two launchers submit
        raise KeyboardInterrupt
    assert free(fcntl.LOCK_EX)


def test_a_record_of_an_older_version_learns_who_submitted_and_where(tmp_path: Path) -> None:
    Ledger(tmp_path).close()
    with sqlite3.connect(tmp_path / NAME) as database:
        for column in ("owner", "cluster"):
            database.execute(f"ALTER TABLE submission DROP COLUMN {column}")
        database.execute("INSERT INTO submission VALUES (?, 1.0, 17)", ("0" * 16,))
        database.execute("INSERT INTO task VALUES ('a', ?, 0, NULL)", ("0" * 16,))
    database.close()
    with Ledger(tmp_path) as ledger:
        assert [(task.name, task.owner, task.cluster) for task in ledger.open_tasks()] == [("a", None, None)]
        ledger.submitted(ledger.claim(["b"], cluster="north"), 18)
    with Ledger(tmp_path) as ledger:
        ledger.claim(["c"])
        found = {task.name: (task.owner, task.is_mine, task.cluster) for task in ledger.open_tasks()}
    me = os.getuid()
    assert found == {"a": (None, True, None), "b": (me, True, "north"), "c": (me, True, None)}


def test_the_fault_is_said_that_made_the_database_take_a_claim_back(ledger: Ledger) -> None:
    """On some errors of the disk SQLite ends the transaction by itself."""
    with sqlite3.connect(ledger.path) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON task WHEN NEW.name = 'b' "
            "BEGIN SELECT RAISE(ROLLBACK, 'database or disk is full'); END"
        )
    database.close()
    with pytest.raises(
        UserError, match="database or disk is full: the record of submitted jobs cannot be used"
    ):
        ledger.claim(["a", "b"])
    assert ledger.open_tasks() == []
    ledger.submitted(ledger.claim(["a"]), 17)
    assert [task.job for task in ledger.open_tasks()] == ["17"]


def test_a_record_that_only_its_owner_may_write_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(tmp_path).close()
    # Root may write every file, so both answers of the system are stood in for.
    connect = sqlite3.connect
    readable = f"file:{tmp_path / NAME}?mode=ro"
    monkeypatch.setattr(
        sqlite3,
        "connect",
        lambda path, timeout, isolation_level: connect(readable, isolation_level=isolation_level, uri=True),
    )
    me = pwd.getpwuid(os.getuid()).pw_name
    with Ledger(tmp_path) as ledger:
        with pytest.raises(UserError, match=r"readonly database.* move it away if it is damaged"):
            ledger.claim(["a"])
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(UserError, match=f"{NAME} is writable only for {me}: ask them to share"):
            ledger.claim(["a"])
        assert ledger.open_tasks() == []


def test_a_lock_that_only_its_owner_may_write_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        path.touch()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ledger_module, "open_lock", refused)
    with pytest.raises(UserError) as error, submitting(tmp_path):
        pytest.fail("nobody may submit without the lock")
    assert f"{LOCK} is writable only for {pwd.getpwuid(os.getuid()).pw_name}" in str(error.value)
    assert f"(chmod -R g+w {tmp_path}; docs/slurm.md, Two people on one folder)" in str(error.value)


def test_an_account_without_a_name_is_called_by_its_number() -> None:
    known = {account.pw_uid for account in pwd.getpwall()}
    stranger = next(uid for uid in range(1_234_567, 2_000_000) if uid not in known)
    assert name_of(stranger) == str(stranger)
    assert name_of(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name
