"""The one function that decides what state a run is in: every state and every text, from facts made by hand."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.launch.run_state import (
    DIED,
    Facts,
    RunFolder,
    RunState,
    folder_decides,
    state_of,
    with_slurms_reasons,
)
from cppo_lab.launch.slurm.ledger import LedgerTask
from cppo_lab.launch.slurm.queue import QueuedJob, SlurmView
from cppo_lab.runs.events import End
from cppo_lab.store.records import AttemptRecord

RUN = "0123456789ab"
TAG = f"here/{RUN}"


def folder(status: str | None = None, **more: Any) -> RunFolder:
    """A folder with this status; `held`, `cancelled` and `end` as they are given, anything else into the status."""
    path = Path("/nowhere/runs") / RUN
    found = RunFolder(path, more.pop("held", False))
    found.cancelled, found.end, found.tag = more.pop("cancelled", False), more.pop("end", None), TAG
    found.status = (
        {} if status is None else {"status": status, "step": 20, "t_stop": 40, "record": "r", **more}
    )
    return found


def ended(status: str, reason: str = "") -> End:
    return End("r", status, 20, 0, reason)


def attempt(status: str, reason: str = "", **more: Any) -> AttemptRecord:
    """One that the store has as `status`, from this folder and its record."""
    values = {"folder": TAG, "record": "r", **more}
    return AttemptRecord(
        "result" if status in schema.FINISHED else status,
        RUN,
        status,
        code_version="v",
        reason=reason,
        sweeps=frozenset(),
        **values,
    )


def job(state: str, reason: str = "") -> SlurmView:
    """Slurm has the run's job in this state."""
    task = LedgerTask(RUN, "token", 7, 0, 2, time.time())
    return SlurmView({RUN: task}, {RUN: QueuedJob("7_0", os.getuid(), state, reason, 0, "", "token")})


# However late the test runs after it was collected, a submission of this age is a new one.
NEW = -1e6


def silent(job_id: int | None = 7, age: float = NEW, why: str = "it is down") -> SlurmView:
    """The ledger has the run, and Slurm says nothing of it."""
    return SlurmView({RUN: LedgerTask(RUN, "token", job_id, 0, 2, time.time() - age)}, silent=why)


NONE = SlurmView()
AT = {"step": 20, "t_stop": 40}
NOT_ASKED = [
    # folder, on a list, Slurm, expected, whether the folder's word is enough
    (folder(), False, NONE, RunState(schema.MISSING), False),
    (folder("", step=None), False, NONE, RunState(schema.MISSING), True),  # announced, never begun
    (folder("", step=None, seconds=9.0), False, NONE, RunState(schema.MISSING), False),
    (folder("done"), False, NONE, RunState(schema.DONE), True),
    (folder("done", held=True), True, job("RUNNING"), RunState(schema.DONE), True),
    (folder("collapsed", reason="score fell"), False, NONE, RunState(schema.COLLAPSED, "score fell"), True),
    (folder("failed", reason="bad"), False, NONE, RunState(schema.FAILED, "bad"), True),
    (folder("failed", reason="bad", replaces=True), False, NONE, RunState(schema.FAILED, "bad"), False),
    (folder("partial", reason="why"), False, NONE, RunState(schema.PARTIAL, "why", **AT), True),
    (folder("running"), False, NONE, RunState(schema.PARTIAL, f"interrupted: {DIED}", **AT), True),
    (
        folder("running", cancelled=True),
        *(False, NONE),
        *(RunState(schema.PARTIAL, "interrupted: cancelled", **AT), True),
    ),
    (
        folder("running", end=ended("collapsed", "score fell")),
        *(False, NONE),
        *(RunState(schema.COLLAPSED, "score fell"), True),
    ),
    (folder("running", held=True), False, NONE, RunState(schema.RUNNING, **AT), True),
    (folder(held=True), True, NONE, RunState(schema.RUNNING, "starting"), True),
    (folder("partial", held=True), False, NONE, RunState(schema.RUNNING, "starting", **AT), True),
    (folder("running"), False, job("RUNNING"), RunState(schema.RUNNING, **AT), True),
    (folder(), False, job("CONFIGURING"), RunState(schema.RUNNING, "starting"), True),
    (folder(), False, job("COMPLETING"), RunState(schema.RUNNING, "its job is ending"), True),
    (
        folder("partial", reason="by SIGTERM"),
        *(False, job("COMPLETING")),
        *(RunState(schema.RUNNING, "its job is ending; by SIGTERM", **AT), True),
    ),
    (
        folder("partial", reason="interrupted: cancelled", cancelled=True),
        *(False, job("COMPLETING")),
        *(RunState(schema.PARTIAL, "interrupted: cancelled", **AT), True),
    ),
    (
        folder("failed", reason="bad"),
        *(False, job("PENDING", "Resources")),
        *(RunState(schema.QUEUED, "Slurm job 7_0: pending, Resources", **AT), True),
    ),
    (folder(), False, job("REQUEUED"), RunState(schema.QUEUED, "Slurm job 7_0: requeued"), True),
    (folder(), False, silent(None), RunState(schema.QUEUED, "is being submitted"), True),
    (folder(), False, silent(None, 100.0), RunState(schema.MISSING), False),
    (folder(), False, silent(), RunState(schema.QUEUED, "not known now: it is down"), True),
    (folder(), True, NONE, RunState(schema.QUEUED), True),
    (folder(cancelled=True), True, NONE, RunState(schema.MISSING), False),
    (folder("partial"), True, NONE, RunState(schema.QUEUED, **AT), True),
]


@pytest.mark.parametrize(("lies", "listed", "slurm", "expected", "sure"), NOT_ASKED)
def test_by_the_folder_alone(
    lies: RunFolder, listed: bool, slurm: SlurmView, expected: RunState, sure: bool
) -> None:
    facts = Facts(RUN, lies, listed, slurm)
    found = state_of(facts)
    assert found == expected
    assert folder_decides(facts, found) == sure


V = {"code_version": "v"}
KILLED = attempt(schema.PARTIAL, "interrupted: by SIGTERM at step 9", step=9, t_stop=40, record="older")
REPLACING = {"replaces": frozenset({"result"})}
ASKED = [
    # folder, on a list, Slurm, attempts from the newest on, expected
    (folder("done"), False, NONE, [], RunState(schema.MISSING)),  # deleted in the store: to be trained again
    (folder("failed"), False, NONE, [], RunState(schema.MISSING)),
    (folder(), True, NONE, [], RunState(schema.QUEUED)),
    (folder(), False, silent(), [], RunState(schema.QUEUED, "not known now: it is down")),
    (folder("running", held=True), False, NONE, [], RunState(schema.RUNNING, **AT)),
    (folder(), False, NONE, [attempt(schema.DONE)], RunState(schema.DONE, **V)),
    (
        folder(),
        *(False, NONE),
        [attempt(schema.COLLAPSED, "fell")],
        RunState(schema.COLLAPSED, "fell", **V),
    ),
    (folder(), False, NONE, [attempt(schema.FAILED, "bad")], RunState(schema.FAILED, "bad", **V)),
    (folder(), False, NONE, [KILLED], RunState(schema.PARTIAL, KILLED.reason, "v", 9, 40)),
    (folder("partial"), True, NONE, [KILLED], RunState(schema.QUEUED, "", "v", 9, 40)),
    (
        folder("running"),
        *(False, NONE),
        [attempt(schema.RUNNING)],
        RunState(schema.PARTIAL, f"interrupted: {DIED}", **V, **AT),
    ),
    (
        folder("running", cancelled=True),
        *(False, NONE),
        [attempt(schema.RUNNING)],
        RunState(schema.PARTIAL, "interrupted: cancelled", **V, **AT),
    ),
    (
        folder(),
        *(False, NONE),
        [attempt(schema.RUNNING, folder="there/x")],
        RunState(
            schema.PARTIAL,
            f"interrupted: {DIED}, or it goes on from another folder than /nowhere/runs",
            **V,
        ),
    ),
    # What the store has not got yet of the attempt that it knows.
    (folder("done"), False, NONE, [attempt(schema.RUNNING)], RunState(schema.DONE, **V)),
    (
        folder("running", end=ended("collapsed", "fell")),
        *(False, NONE),
        [attempt(schema.RUNNING)],
        RunState(schema.COLLAPSED, "fell", **V),
    ),
    (
        folder("partial", reason="by SIGTERM"),
        *(False, NONE),
        [attempt(schema.RUNNING)],
        RunState(schema.PARTIAL, "by SIGTERM", **V, **AT),
    ),
    (folder("done"), False, NONE, [attempt(schema.FAILED, "bad")], RunState(schema.DONE, **V)),
    (
        folder("done", record="other"),
        False,
        NONE,
        [attempt(schema.FAILED, "bad")],
        RunState(schema.FAILED, "bad", **V),
    ),
    # Its record is longer than the folder's: why nobody goes on with it.
    (
        folder("partial", reason="by SIGTERM"),
        *(False, NONE),
        [attempt(schema.PARTIAL, "by SIGTERM; given up")],
        RunState(schema.PARTIAL, "by SIGTERM; given up", **V, **AT),
    ),
    # An attempt that the store does not know yet.
    (folder("running", held=True), False, NONE, [KILLED], RunState(schema.RUNNING, **V, **AT)),
    (
        folder("partial", reason="cancelled", cancelled=True),
        *(False, job("COMPLETING")),
        [attempt(schema.PARTIAL, "cancelled")],
        RunState(schema.PARTIAL, "cancelled", **V, **AT),
    ),
    # Replacements.
    (
        folder("running", held=True),
        *(False, NONE),
        [attempt(schema.RUNNING, **REPLACING), attempt(schema.DONE)],
        RunState(schema.RUNNING, **V, **AT),
    ),
    (
        folder("done"),
        *(False, NONE),
        [attempt(schema.RUNNING, **REPLACING), attempt(schema.COLLAPSED, "fell")],
        RunState(schema.DONE, **V),
    ),
    (
        folder("failed"),
        *(False, NONE),
        [attempt(schema.FAILED, "bad", **REPLACING), attempt(schema.DONE)],
        RunState(schema.DONE, "its replacement is failed (bad)", **V),
    ),
    (
        folder("partial"),
        *(False, NONE),
        [attempt(schema.PARTIAL, "by SIGTERM", **REPLACING), attempt(schema.COLLAPSED, "fell")],
        RunState(schema.COLLAPSED, "fell; its replacement is partial (step 20/40; by SIGTERM)", **V),
    ),
    (
        folder(),
        False,
        NONE,
        [attempt(schema.FAILED, "bad"), attempt(schema.DONE)],
        RunState(schema.DONE, **V),
    ),
]


@pytest.mark.parametrize(("lies", "listed", "slurm", "past", "expected"), ASKED)
def test_by_the_store_too(
    lies: RunFolder, listed: bool, slurm: SlurmView, past: Sequence[AttemptRecord], expected: RunState
) -> None:
    assert state_of(Facts(RUN, lies, listed, slurm, past)) == expected


def test_a_result_that_is_ignored_is_not_there() -> None:
    facts = Facts(RUN, folder(), attempts=[attempt(schema.DONE)])
    assert state_of(facts, ignoring={"result"}) == RunState(schema.MISSING)


def test_every_state_is_in_the_tables() -> None:
    assert {row[3].state for row in NOT_ASKED} == set(schema.STATES)
    assert {row[4].state for row in ASKED} == set(schema.STATES)


def test_slurm_says_why_a_run_ended_that_could_not() -> None:
    runs = {
        name: f"{place:012x}" for place, name in enumerate(("died", "missing", "spoke", "done", "foreign"))
    }
    states = {
        runs["died"]: RunState(schema.PARTIAL, f"interrupted: {DIED}", "v", 2, 4),
        runs["missing"]: RunState(schema.MISSING),
        runs["spoke"]: RunState(schema.PARTIAL, "interrupted: by SIGTERM"),
        runs["done"]: RunState(schema.DONE),
        runs["foreign"]: RunState(schema.MISSING),  # no job of ours
    }
    tasks = {
        run_id: LedgerTask(run_id, "token", 7, place, 4, 0.0, "TIMEOUT")
        for place, run_id in enumerate(run_id for name, run_id in runs.items() if name != "foreign")
    }
    assert with_slurms_reasons(states, SlurmView(tasks)) == states | {
        runs["died"]: RunState(schema.PARTIAL, "Slurm job 7_0: TIMEOUT", "v", 2, 4),
        runs["missing"]: RunState(schema.MISSING, "Slurm job 7_1: TIMEOUT"),
    }
    silent_ones = SimpleNamespace(tasks={}, words=lambda run_ids: pytest.fail("nothing is to be asked"))
    assert with_slurms_reasons(states, silent_ones) == states


def test_of_a_folder_no_more_is_read_than_the_answer_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that the store has needs none of it, one that the folder says no lock."""
    lies = RunFolder(tmp_path, held=False)
    assert state_of(Facts(RUN, lies, attempts=[attempt(schema.DONE)])).state == schema.DONE
    assert state_of(Facts(RUN, lies, attempts=[])).state == schema.MISSING
    assert vars(lies).keys() == {"path", "held"}
    (tmp_path / "status.json").write_text('{"status": "done"}')
    lies = RunFolder(tmp_path)
    assert state_of(Facts(RUN, lies)).state == schema.DONE
    assert vars(lies).keys() == {"path", "status"}
