"""The record of submitted jobs by itself: what jobs are called, how they ended, and one launcher at a time."""

import fcntl
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch.slurm import ledger as ledger_module
from cppo_lab.launch.slurm.ledger import LOCK, Ledger, submitting


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
