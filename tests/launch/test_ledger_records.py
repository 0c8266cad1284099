"""The record of submitted jobs: what jobs are called, how they ended, kills, and many launchers at once."""

import fcntl
import itertools
import multiprocessing
import os
import pwd
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab.launch.slurm.queue import LEDGER, LOCK, Ledger, submitting
from tests.conftest import user_error
from tests.launch.slurm.jobs import ends

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """An empty one, whose submissions are a second apart."""
    times = itertools.count(1_000)
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.time", SimpleNamespace(time=lambda: float(next(times))))
    return Ledger(tmp_path)


def jobs(ledger: Ledger) -> dict[str, str]:
    """The jobs that are in the queue, by name."""
    return {task.name: task.job for task in ledger.open_tasks()}


def test_a_job_is_called_as_slurm_calls_it(ledger: Ledger) -> None:
    """An array's tasks by number and index, the first one too: `scancel 17` would end all of them."""
    array = ledger.claim(["a", "b", "c", "d"], [0, 0, 1, 2])
    assert jobs(ledger) == dict.fromkeys("abcd", "")
    ledger.submitted(array, 17)
    ledger.submitted(ledger.claim(["e"]), 18)
    ledger.submitted(ledger.claim(["f", "g"], [0, 0]), 19)
    expected = {"a": "17_0", "b": "17_0", "c": "17_1", "d": "17_2", "e": "18", "f": "19", "g": "19"}
    assert jobs(ledger) == expected
    with pytest.raises(ValueError, match="b are in the queue already"):
        ledger.claim(["h", "b"])
    assert jobs(ledger) == expected


def test_the_first_word_on_how_a_job_ended_stands(ledger: Ledger) -> None:
    """Who looked before may write later."""
    ledger.submitted(ledger.claim(["a", "b"]), 17)
    seen = ledger.open_tasks()
    ledger.end([task for task in seen if task.name == "a"], "CANCELLED")
    assert jobs(ledger) == {"b": "17_1"}
    ledger.end(seen, "left Slurm's queue")
    assert ends(ledger) == {"a": "CANCELLED", "b": "left Slurm's queue"}
    assert jobs(ledger) == {}
    ledger.submitted(ledger.claim(["a"]), 18)
    assert ledger.newest_tasks()["a"].job == "18"
    assert [task.job for task in ledger.tasks_of("a")] == ["18", "17_0"]  # the newest first


ROLLED_BACK = (
    "CREATE TRIGGER full BEFORE INSERT ON task WHEN NEW.name = 'b' "
    "BEGIN SELECT RAISE(ROLLBACK, 'database or disk is full'); END"
)


@pytest.mark.parametrize(
    "script, names, fault", [("", "aba", "UNIQUE.*"), (ROLLED_BACK, "ab", "database or disk is full")]
)
def test_a_claim_that_fails_leaves_nothing(ledger: Ledger, script: str, names: str, fault: str) -> None:
    with sqlite3.connect(ledger.path) as database:
        database.execute(script)
    database.close()
    with user_error(f"{fault}: the record of submitted jobs cannot be used"):
        ledger.claim(list(names))
    assert (jobs(ledger), ledger.unanswered()) == ({}, [])
    ledger.submitted(ledger.claim(["a", "c"]), 17)
    assert jobs(ledger) == {"a": "17_0", "c": "17_1"}


def test_the_lock_of_a_launcher_keeps_out_all_others_until_it_is_done(tmp_path: Path) -> None:
    def free(kind: int) -> bool:
        with (tmp_path / LOCK).open("a+") as file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with pytest.raises(KeyboardInterrupt), submitting(tmp_path):
        # Two shared locks would let two launchers submit.
        assert (free(fcntl.LOCK_EX), free(fcntl.LOCK_SH)) == (False, False)
        raise KeyboardInterrupt
    assert free(fcntl.LOCK_EX)


def test_a_record_of_an_older_version_learns_who_submitted_and_where(tmp_path: Path) -> None:
    Ledger(tmp_path).close()
    with sqlite3.connect(tmp_path / LEDGER) as database:
        for column in ("owner", "cluster"):
            database.execute(f"ALTER TABLE submission DROP COLUMN {column}")
        database.execute("INSERT INTO submission VALUES (?, 1.0, 17)", ("0" * 16,))
        database.execute("INSERT INTO task VALUES ('a', ?, 0, NULL)", ("0" * 16,))
    database.close()
    with Ledger(tmp_path) as ledger:
        assert [(task.name, task.owner, task.cluster) for task in ledger.open_tasks()] == [("a", None, None)]
        ledger.claim(["b"], cluster="north")
        ledger.claim(["c"])
        tasks = {task.name: (task.owner, task.is_mine, task.cluster) for task in ledger.open_tasks()}
    me = os.getuid()
    assert tasks == {"a": (None, True, None), "b": (me, True, "north"), "c": (me, True, None)}


def test_a_file_that_only_its_owner_may_write_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write every file, so the answers of the system are stood in for."""
    connect, readable = sqlite3.connect, f"file:{tmp_path / LEDGER}?mode=ro"
    Ledger(tmp_path).close()
    monkeypatch.setattr(
        "sqlite3.connect",
        lambda path, timeout, isolation_level: connect(readable, isolation_level=isolation_level, uri=True),
    )
    with Ledger(tmp_path) as ledger:
        with user_error(r"readonly database.* move it away if it is damaged"):
            ledger.claim(["a"])
        monkeypatch.setattr("os.access", lambda path, mode: False)
        with user_error(f"{LEDGER} is writable only for {ME}: ask them to share"):
            ledger.claim(["a"])
        assert jobs(ledger) == {}

    def refused(path: Path) -> None:
        path.touch()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("cppo_lab.launch.slurm.queue.open_lock", refused)
    with (
        user_error(f"{LOCK} is writable only for {ME}: .*chmod -R g.w {tmp_path}; docs/slurm.md"),
        submitting(tmp_path),
    ):
        pytest.fail("nobody may submit without the lock")


def _claim_each_once(runs: Path, count: int) -> None:
    for number in range(count):
        with submitting(runs), Ledger(runs) as ledger:
            if not ledger.tasks_of(f"run{number}"):
                ledger.submitted(ledger.claim([f"run{number}"]), os.getpid())


def _claim_and_die(runs: Path, statement: int) -> None:
    """Claims two runs, and is killed where its database is about to begin the statement of this number."""
    left = [statement]

    def begins(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            signal.raise_signal(signal.SIGKILL)

    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        if LEDGER in str(arguments):  # `make coverage` saves what it has seen through sqlite3, too
            connection.set_trace_callback(begins)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]
    _claim_each_once(runs, 2)


def _exit_codes(count: int, target: Callable[[Path, int], None], runs: Path, number: int) -> list[int | None]:
    """How processes end that run at once."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target, args=(runs, number)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_launchers_at_once_claim_each_run_once(tmp_path: Path) -> None:
    assert _exit_codes(4, _claim_each_once, tmp_path, 12) == [0] * 4
    assert sorted(jobs(Ledger(tmp_path))) == sorted(f"run{number}" for number in range(12))


def test_a_launcher_killed_at_any_statement_leaves_a_whole_record(tmp_path: Path) -> None:
    ends: list[int | None] = []
    while 0 not in ends:
        runs = tmp_path / str(len(ends))
        ends += _exit_codes(1, _claim_and_die, runs, len(ends) + 1)
        assert sqlite3.connect(runs / LEDGER).execute("PRAGMA integrity_check").fetchone() == ("ok",)
        _claim_each_once(runs, 3)
        assert sorted(jobs(Ledger(runs))) == ["run0", "run1", "run2"]
    # Two claims and two answers take four transactions of three statements and more.
    assert set(ends[:-1]) == {-signal.SIGKILL} and len(ends) > 12
