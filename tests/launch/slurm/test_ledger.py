"""The record of submitted jobs: claims, kills between claim and answer, and many launchers at once."""

import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm.ledger import NAME, Ledger, submitting


def test_a_claim_becomes_a_job_and_ends(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        token = ledger.claim(["a", "b"])
        assert {(t.name, t.position, t.job_id, t.job) for t in ledger.open_tasks()} == {
            ("a", 0, None, ""),
            ("b", 1, None, ""),
        }
        ledger.submitted(token, 17)
    with Ledger(tmp_path) as ledger:
        assert [task.job for task in ledger.open_tasks()] == ["17_0", "17_1"]
        ledger.end(ledger.tasks_of("a"), "COMPLETED")
        assert [task.name for task in ledger.open_tasks()] == ["b"]
        again = ledger.claim(["a"])
        ledger.submitted(again, 18)
        assert [(task.job, task.ended) for task in ledger.tasks_of("a")] == [
            ("18", None),
            ("17_0", "COMPLETED"),
        ]


def test_a_run_in_a_job_cannot_be_claimed_and_nothing_else_is(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.claim(["a"])
        with pytest.raises(ValueError, match="a are in the queue already"):
            ledger.claim(["b", "a"])
        assert [task.name for task in ledger.open_tasks()] == ["a"]


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("not a database, and long enough to be looked at as one" * 20)
    with pytest.raises(UserError, match="move it away if it is damaged"):
        Ledger(tmp_path)


def _claim_each_once(runs: Path, count: int = 40) -> None:
    for number in range(count):
        with submitting(runs), Ledger(runs) as ledger:
            if not ledger.tasks_of(f"run{number}"):
                ledger.submitted(ledger.claim([f"run{number}"]), os.getpid())


def test_launchers_at_once_claim_each_run_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_claim_each_once, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    with Ledger(tmp_path) as ledger:
        assert sorted(task.name for task in ledger.open_tasks()) == sorted(f"run{n}" for n in range(40))


def _claim_and_die(runs: Path, statement: int) -> None:
    """Claims two runs, and is killed where its database is about to begin the statement of this number."""
    left = [statement]

    def begins(_: str) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        if NAME in str(arguments):  # `make coverage` saves what it has seen through sqlite3, too
            connection.set_trace_callback(begins)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]
    _claim_each_once(runs, 2)


def test_a_launcher_killed_at_any_statement_leaves_a_whole_record(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ends, statement = [], 0
    while 0 not in ends:
        statement += 1
        runs = tmp_path / str(statement)
        process = context.Process(target=_claim_and_die, args=(runs, statement))
        process.start()
        process.join()
        ends.append(process.exitcode)
        assert sqlite3.connect(runs / NAME).execute("PRAGMA integrity_check").fetchone() == ("ok",)
        _claim_each_once(runs, 3)
        with Ledger(runs) as ledger:
            assert sorted(task.name for task in ledger.open_tasks()) == ["run0", "run1", "run2"]
    # Two claims and two answers take four transactions of three statements and more.
    assert ends[:-1] == [-signal.SIGKILL] * (statement - 1) and statement > 12
