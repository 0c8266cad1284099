"""What `cppo cancel` says of a run that a process trains, whatever becomes of the process meanwhile."""

import fcntl
import os
import signal
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from cppo_lab.errors import UserError
from cppo_lab.launch import queues
from cppo_lab.launch.slurm.queue import Ledger
from cppo_lab.runs import folder as run_folder

RUN = "0123456789ab"
HERE = (socket.gethostname(), os.getpid())
ASKED = "asked its process to end; it has not ended yet"
TERMINATED = [signal.SIGTERM]
GONE = ProcessLookupError(3, "No such process")
FOREIGN = PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(
    "queued_only, holders, faults, text, signals",
    [
        (False, [HERE] * 2, {}, ASKED, TERMINATED),
        (True, [HERE] * 2, {}, "has started meanwhile: left alone", []),
        (
            False,
            [HERE] * 2,
            {"send": FOREIGN},
            f"process {HERE[1]} belongs to another user: ask them",
            TERMINATED,
        ),
        # It ends just now: its lock alone says whether the run has ended.
        (False, [HERE] * 2, {"open": GONE}, ASKED, []),
        (False, [HERE] * 2, {"send": GONE}, ASKED, TERMINATED),
        # Its number is another process's since it was opened, or on another machine.
        (False, [HERE, (HERE[0], HERE[1] + 1)], {}, ASKED, []),
        (
            False,
            [(f"other-{HERE[0]}", 7)],
            {},
            f"is trained on other-{HERE[0]} (process 7): cancel it there",
            [],
        ),
        (False, [None], {}, "the process that trains it is not known: wait for it to end", []),
    ],
    ids=["asked", "started", "of another user", "ending", "gone", "another's number", "elsewhere", "unknown"],
)
def test_what_is_said_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queued_only: bool, holders: list[tuple[str, int] | None],
    faults: dict[str, OSError], text: str, signals: list[int],
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "pidfd_open", Mock(wraps=os.pidfd_open, side_effect=faults.get("open")))
    monkeypatch.setattr(signal, "pidfd_send_signal", send := Mock(side_effect=faults.get("send")))
    monkeypatch.setattr(queues, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(run_folder, "holder", Mock(side_effect=holders))
    monkeypatch.setattr(run_folder, "in_living_batch", lambda *_: False)
    (tmp_path / RUN).mkdir()
    with (tmp_path / RUN / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        [cancelled] = queues.cancel(tmp_path, [RUN], queued_only)
    assert (cancelled.text, cancelled.done) == (text, text == ASKED)
    assert [call.args[1] for call in send.call_args_list] == signals
    assert (tmp_path / RUN / "cancelled").exists() != queued_only  # or it would end itself


@pytest.mark.parametrize(
    "fault", [UserError("slurmctld does not answer"), KeyboardInterrupt()], ids=["error", "Ctrl-C"]
)
def test_a_controller_that_does_not_answer_leaves_no_mark_but_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    with Ledger(tmp_path):
        pass
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.refresh", Mock(side_effect=fault))
    run_folder.cancel(tmp_path / RUN)
    with pytest.raises(type(fault)):
        queues.cancel(tmp_path, [RUN, "b" * 12], False)
    assert run_folder.is_cancelled(tmp_path / RUN) and not run_folder.is_cancelled(tmp_path / ("b" * 12))
