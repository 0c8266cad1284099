"""What `cppo cancel` says of a run that a process trains, whatever becomes of the process meanwhile."""

import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.monitor import cancel as cancel_module
from cppo_lab.monitor.cancel import Cancelled, cancel
from cppo_lab.monitor.status import Label, RunStatus

RUN = "0123456789ab"
CHOSEN = [RunStatus(RUN, Label("mini", "cppo", "m", 0), schema.RUNNING)]
ASKED = Cancelled(RUN, "asked its process to end; it has not ended yet", True)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With a run whose lock is held in the name of this process, until the test ends."""
    monkeypatch.setattr(cancel_module, "PATIENCE_SECONDS", 0.0)
    (tmp_path / RUN).mkdir()
    with (tmp_path / RUN / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{socket.gethostname()}:{os.getpid()}\n")
        lock.flush()
        yield tmp_path


@pytest.fixture(autouse=True)
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that would have been sent."""
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda process, number: sent.append(number))
    return sent


def test_a_process_is_asked_to_end_and_one_that_takes_long_is_said(runs: Path, signals: list[int]) -> None:
    assert cancel(runs, CHOSEN, queued_only=False) == [ASKED]
    assert signals == [signal.SIGTERM]
    assert (runs / RUN / "cancelled").exists()


def test_a_run_that_has_started_meanwhile_is_left_alone_if_only_queued_ones_were_meant(
    runs: Path, signals: list[int]
) -> None:
    found = cancel(runs, CHOSEN, queued_only=True)
    assert found == [Cancelled(RUN, "has started meanwhile: left alone", False)]
    assert signals == []
    assert not (runs / RUN / "cancelled").exists()  # or it would end itself


def test_the_process_of_another_user_is_left_to_them(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(process: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    said = f"process {os.getpid()} belongs to another user: ask them"
    assert cancel(runs, CHOSEN, queued_only=False) == [Cancelled(RUN, said, False)]


@pytest.mark.parametrize("call", ["os.pidfd_open", "signal.pidfd_send_signal"])
def test_a_process_that_ends_just_now_is_no_fault(
    runs: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Its lock alone says whether the run has ended."""

    def gone(*_: int) -> None:
        raise ProcessLookupError(3, "No such process")

    monkeypatch.setattr(call, gone)
    assert cancel(runs, CHOSEN, queued_only=False) == [ASKED]


def test_no_signal_goes_to_a_number_that_another_process_has_got(
    runs: Path, signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = (socket.gethostname(), os.getpid())
    holders = iter([here, (here[0], here[1] + 1)])  # before and after the process was opened
    monkeypatch.setattr(cancel_module, "holder", lambda folder: next(holders))
    assert cancel(runs, CHOSEN, queued_only=False) == [ASKED]
    assert signals == []
