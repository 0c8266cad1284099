"""The one function that decides what state a run is in: every state and every text, from a folder and a queue."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cppo_lab import schema
from cppo_lab.launch.queues import look, places
from cppo_lab.launch.slurm.ledger import Ledger, LedgerTask
from cppo_lab.launch.slurm.queue import QueuedJob, SlurmView
from cppo_lab.runs.folder import Cause, cancel, held, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import End
from cppo_lab.runs.state import WORDS, Queued, RunFolder, RunState, explained, state_of, states
from cppo_lab.spec import RunSpec

RUN = "0123456789ab"
DIED = f"interrupted: {WORDS[Cause.DIED]}"


def folder(status: str | None = None, **more: Any) -> RunFolder:
    """A folder with this status; `held`, `cancelled` and `end` as they are given, anything else into the status."""
    found = RunFolder(Path("/nowhere/runs") / RUN)
    found.held, found.cancelled = more.pop("held", False), more.pop("cancelled", False)
    found.record = None
    if (end := more.pop("end", None)) is not None:
        found.record = SimpleNamespace(begin=SimpleNamespace(tags={}), rows={}, end=end)  # type: ignore[assignment]
    found.status = (
        {} if status is None else {"status": status, "step": 20, "t_stop": 40, "record": "r", **more}
    )
    return found


def ended(status: str, reason: str = "") -> End:
    return End("r", status, 20, 0, reason)


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
FELL = ended("collapsed", "score fell")
TABLE = [
    # folder, on a list, Slurm, expected
    (folder(), False, NONE, RunState(schema.MISSING)),
    (folder("", step=None), False, NONE, RunState(schema.MISSING)),  # announced, never begun
    (folder("", step=None, end=ended("done")), False, NONE, RunState(schema.MISSING)),  # nothing is read then
    (folder("", step=None, seconds=9.0), False, NONE, RunState(schema.MISSING)),
    (folder("", step=None, seconds=9.0, end=ended("failed", "bad")), False, NONE, RunState("failed", "bad")),
    (folder("done", code_version="v"), False, NONE, RunState(schema.DONE, "", "v")),
    (folder("done", held=True), True, job("RUNNING"), RunState(schema.DONE)),
    (folder("collapsed", reason="score fell"), False, NONE, RunState(schema.COLLAPSED, "score fell")),
    (folder("failed", reason="bad", cause="error"), False, NONE, RunState("failed", "bad", cause="error")),
    (folder("partial", reason="why", cause=""), False, NONE, RunState(schema.PARTIAL, "why", **AT)),
    (folder("partial", reason=DIED, cause=""), False, NONE, RunState(schema.PARTIAL, DIED, **AT)),
    # Written before there were causes.
    (folder("partial", reason=f"{DIED} at step 20"), *(False, NONE),
     RunState(schema.PARTIAL, f"{DIED} at step 20", **AT, cause=Cause.DIED)),
    (folder("running"), False, NONE, RunState(schema.PARTIAL, DIED, **AT, cause=Cause.DIED)),
    (folder("running", cancelled=True), *(False, NONE),
     RunState(schema.PARTIAL, "interrupted: cancelled", **AT, cause=Cause.CANCELLED)),
    (folder("running", end=FELL), False, NONE, RunState(schema.COLLAPSED, "score fell")),
    (folder(end=FELL), False, NONE, RunState(schema.COLLAPSED, "score fell")),  # its status is damaged
    (folder("running", held=True), False, NONE, RunState(schema.RUNNING, **AT)),
    (folder("running", held=True, activity="warm start", first_step=None), *(False, NONE),
     RunState(schema.RUNNING, "warm start", **AT)),
    (folder(held=True), True, NONE, RunState(schema.RUNNING, "starting")),
    (folder("partial", held=True), False, NONE, RunState(schema.RUNNING, "starting", **AT)),
    (folder("running"), False, job("RUNNING"), RunState(schema.RUNNING, **AT)),
    (folder(), False, job("CONFIGURING"), RunState(schema.RUNNING, "starting")),
    (folder(), False, job("COMPLETING"), RunState(schema.RUNNING, "its job is ending")),
    (folder("partial", reason="by SIGTERM"), False, job("COMPLETING"),
     RunState(schema.RUNNING, "its job is ending; by SIGTERM", **AT)),
    (folder("partial", reason="interrupted: cancelled", cancelled=True), False, job("COMPLETING"),
     RunState(schema.PARTIAL, "interrupted: cancelled", **AT)),
    (folder("failed", reason="bad"), False, job("PENDING", "Resources"),
     RunState(schema.QUEUED, "Slurm job 7_0: pending, Resources", **AT)),
    (folder(), False, job("REQUEUED"), RunState(schema.QUEUED, "Slurm job 7_0: requeued")),
    (folder(), False, silent(None), RunState(schema.QUEUED, "is being submitted")),
    (folder(), False, silent(None, 100.0), RunState(schema.MISSING)),
    (folder(), False, silent(), RunState(schema.QUEUED, "not known now: it is down")),
    (folder(), True, NONE, RunState(schema.QUEUED)),
    (folder(cancelled=True), True, NONE, RunState(schema.MISSING)),
    (folder("partial"), True, NONE, RunState(schema.QUEUED, **AT)),
]  # fmt: skip


@pytest.mark.parametrize(("lies", "listed", "slurm", "expected"), TABLE)
def test_of_a_folder_and_a_queue(lies: RunFolder, listed: bool, slurm: SlurmView, expected: RunState) -> None:
    assert state_of(lies, Queued([RUN] if listed else [], places(slurm))) == expected


def test_every_state_is_in_the_table() -> None:
    assert {row[3].state for row in TABLE} == set(schema.STATES)


ASIDE = {"status": "collapsed", "reason": "fell", "code_version": "old"}
REPLACEMENTS = [
    # of the replacement: its status, whether it is trained; expected
    ({"status": "running", "step": 2, "t_stop": 4}, True, RunState("running", "", "", 2, 4)),
    ({"status": "done", "code_version": "new"}, False, RunState("done", "", "new")),
    ({"status": "failed", "reason": "bad"}, False, "failed (bad)"),
    ({"status": "partial", "reason": "by SIGTERM", "step": 2, "t_stop": 4}, *(False, "partial (step 2/4; by SIGTERM)")),
    ({}, False, "missing ()"),  # killed between the two
]  # fmt: skip


@pytest.mark.parametrize(("status", "trained", "expected"), REPLACEMENTS)
def test_a_result_stands_unless_its_replacement_is_running(
    tmp_path: Path, status: dict[str, Any], trained: bool, expected: RunState | str
) -> None:
    run = tmp_path / RUN
    for name, values in (("1", ASIDE), ("of-another", {**ASIDE, "status": "done"})):
        (run / "replaced" / name).mkdir(parents=True)
        write_status(run / "replaced" / name, values)
    if status:
        write_status(run, status)
    if isinstance(expected, str):
        whole = RunState("collapsed", f"fell; its replacement is {expected}", "old")
        assert state_of(RunFolder(run), Queued(), replacing=True).state == expected.split()[0]
    else:
        whole = expected
    if trained:
        with held(run):
            assert state_of(RunFolder(run), Queued()) == whole
    else:
        assert state_of(RunFolder(run), Queued()) == whole


def test_a_cancelled_run_is_queued_no_more_though_it_is_on_a_list(tmp_path: Path) -> None:
    queued = Queued([RUN])
    assert states(tmp_path, [RUN], queued) == {RUN: RunState(schema.QUEUED)}
    cancel(tmp_path / RUN)
    assert states(tmp_path, [RUN], queued) == {RUN: RunState(schema.MISSING)}


def test_the_queue_says_why_a_run_ended_that_could_not() -> None:
    runs = {
        name: f"{place:012x}" for place, name in enumerate(("died", "missing", "spoke", "done", "foreign"))
    }
    found = {
        runs["died"]: RunState(schema.PARTIAL, DIED, "v", 2, 4, Cause.DIED),
        runs["missing"]: RunState(schema.MISSING),
        runs["spoke"]: RunState(schema.PARTIAL, DIED, cause=Cause.SIGNAL),  # not its words decide
        runs["done"]: RunState(schema.DONE),
        runs["foreign"]: RunState(schema.MISSING),  # no job of ours
    }
    asked: list[str] = []

    def why(run_ids: Any) -> dict[str, str]:
        asked.extend(run_ids)
        return dict.fromkeys(run_ids, "TIMEOUT")

    tasks = [run_id for name, run_id in runs.items() if name != "foreign"]
    queued = Queued(places=places(SlurmView({i: LedgerTask(i, "t", 7, 0, 4, 0.0, "TIMEOUT") for i in tasks})))
    assert explained(found, Queued(places=queued.places, why_ended=why)) == found | {
        runs["died"]: RunState(schema.PARTIAL, "Slurm job 7_0: TIMEOUT", "v", 2, 4, Cause.DIED),
        runs["missing"]: RunState(schema.MISSING, "Slurm job 7_0: TIMEOUT"),
    }
    assert asked == [runs["died"], runs["missing"]]
    rest = {run_id: state for run_id, state in found.items() if run_id not in asked}
    assert explained(rest, Queued(places=queued.places, why_ended=lambda _: pytest.fail("asked"))) == rest


def test_one_look_at_the_record_of_jobs(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.submitted(ledger.claim([RUN]), 7)
        ledger.end(ledger.open_tasks(), "TIMEOUT")
    assert states(tmp_path, [RUN], look(tmp_path)) == {RUN: RunState("missing", "Slurm job 7: TIMEOUT")}


def test_of_a_folder_no_more_is_read_than_the_answer_needs(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"status": "done", "run_id": tmp_path.name}))
    lies = RunFolder(tmp_path)
    assert state_of(lies, Queued()).state == schema.DONE
    assert vars(lies).keys() == {"path", "status"}


def test_a_folder_of_an_older_version_and_a_copied_one(tmp_path: Path, tiny_spec: RunSpec) -> None:
    """The status then says neither whose it is nor by which code; the spool does."""
    run = tmp_path / tiny_spec.run_id
    recorder = Recorder(tiny_spec, {schema.TAG_CODE_VERSION: "v"}, run)
    recorder.log(1, {"train/reward": 0.5})
    recorder.finish(schema.Outcome(schema.DONE, 1))
    status = json.loads((run / "status.json").read_text())
    assert (status["code_version"], status["cause"], status["run_id"]) == ("v", "", tiny_spec.run_id)
    for name in ("run_id", "code_version", "cause"):
        del status[name]
        (run / "status.json").write_text(json.dumps(status))
        assert state_of(RunFolder(run), Queued()) == RunState(schema.DONE, "", "v")
    copy = run.rename(tmp_path / RUN)
    assert state_of(RunFolder(copy), Queued()) == RunState(schema.MISSING)
    assert RunFolder(copy).is_empty
    (copy / "status.json").unlink()
    back = copy.rename(run)
    assert state_of(RunFolder(back), Queued()) == RunState(schema.DONE, "", "v")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda recorder: recorder.interrupt("by SIGTERM"), (schema.PARTIAL, Cause.SIGNAL)),
        (lambda recorder: recorder.interrupt("cancelled", Cause.CANCELLED), (schema.PARTIAL, Cause.CANCELLED)),
        (lambda recorder: recorder.fail("ValueError: bad", ""), (schema.FAILED, Cause.ERROR)),
        (lambda recorder: recorder.finish(schema.Outcome(schema.DONE, 1)), (schema.DONE, "")),
        (lambda recorder: None, (schema.PARTIAL, Cause.DIED)),
    ],
)  # fmt: skip
def test_causes_are_recorded(tmp_path: Path, tiny_spec: RunSpec, end: Any, expected: tuple[str, str]) -> None:
    run = tmp_path / tiny_spec.run_id
    end(Recorder(tiny_spec, {}, run))
    found = state_of(RunFolder(run), Queued())
    assert (found.state, found.cause) == expected
