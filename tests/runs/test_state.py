"""The one function that decides what state a run is in: every state and every text, from a folder and a queue."""

import json
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cppo_lab import schema
from cppo_lab.launch.slurm.queue import LedgerTask, QueuedJob, SlurmView
from cppo_lab.runs.folder import Cause, run_lock, write_status
from cppo_lab.runs.recorder import Recorder
from cppo_lab.runs.spool import End
from cppo_lab.runs.state import CAUSE_TEXTS, Queued, RunFolder, RunState, explained, state_of
from cppo_lab.spec import RunSpec

RUN = "0123456789ab"
DIED = f"interrupted: {CAUSE_TEXTS[Cause.DIED]}"
NEW, OLD = -1e6, 100.0  # ages of a submission: however late the test runs, the first is new


def slurm(state: str, reason: str = "") -> SlurmView:
    """Slurm has the run's job in this state."""
    task = LedgerTask(RUN, "token", 7, 0, 2, time.time())
    return SlurmView({RUN: task}, {RUN: QueuedJob("7_0", os.getuid(), state, reason, "token")})


def silent(job_id: int | None, age: float) -> SlurmView:
    """The ledger has the run, and Slurm says nothing of it."""
    task = LedgerTask(RUN, "token", job_id, 0, 2, time.time() - age)
    return SlurmView({RUN: task}, silent="it is down")


def text(state: RunState) -> str:
    """State, note, cause and version."""
    return "; ".join(filter(None, (state.state, state.note, state.cause, state.code_version)))


def row(expected: str, status: str | None = None, **more: Any) -> tuple[RunFolder, Queued, str]:
    """A run in `expected` state: `listed` and `slurm` are its place, `locked`, `cancelled` and `end`, which is empty in
    a record without one, are of its folder, anything else is in its status.
    """
    queued = Queued([RUN] if more.pop("listed", False) else [], more.pop("slurm", SlurmView()).places())
    run = RunFolder(Path("/nowhere/runs") / RUN)
    run.locked, run.cancelled = more.pop("locked", False), more.pop("cancelled", False)
    run.record = None
    if (end := more.pop("end", None)) is not None:
        ended = End("r", end[0], 20, 0, *end[1:]) if end else None
        begin = SimpleNamespace(tags={schema.TAG_T_STOP: more.pop("last", "40")})
        run.record = SimpleNamespace(begin=begin, rows={20: None}, end=ended)  # type: ignore[assignment]
    run.status = {} if status is None else {"status": status, "step": 20, "t_stop": 40, "record": "r", **more}
    return run, queued, expected


FELL = ("collapsed", "score fell")
TABLE = [
    row("missing"),
    row("missing", "", step=None, end=("done",)),  # announced, never begun: nothing is read then
    row("missing", "", step=None, seconds=9.0),
    row("missing; held", "", step=None, reason="held"),
    row("failed; bad", "", step=None, seconds=9.0, end=("failed", "bad")),
    row("done", "done", locked=True, listed=True, slurm=slurm("RUNNING")),
    row("collapsed; score fell; v", "collapsed", reason="score fell", code_version="v"),
    row("failed; bad; error", "failed", reason="bad", cause="error"),
    row("partial; step 20/40; why; v", "partial", reason="why", code_version="v"),
    row("partial; why", "partial", reason="why", step=None),
    row("partial; why", "partial", reason="why", t_stop=None),
    row("stopped; step 20/40; signs; cancelled", "stopped", reason="signs at step 20", cause="cancelled"),
    row("stopped; step 20/40; signs", "running", end=("stopped", "signs")),
    row(f"partial; step 20/40; {DIED}", "partial", reason=DIED, cause=""),
    row(f"partial; step 20/40; {DIED}; died", "partial", reason=f"{DIED} at step 20"),  # before there were causes
    row(f"partial; step 20/40; {DIED}; died", "running"),
    row("partial; step 20/40; interrupted: cancelled; cancelled", "running", cancelled=True),
    row("collapsed; score fell", "running", end=FELL),
    row("collapsed; score fell", end=FELL),  # its status is damaged
    row(f"partial; step 20/40; {DIED}; died", end=()),
    row(f"partial; step 20/?; {DIED}; died", end=(), last=""),  # its record's begin is damaged, too
    row("running; step 20/40; warm start", "running", locked=True, activity="warm start", first_step=None),
    row("running; step 20/40", "running", locked=True, activity="warm start", first_step=3),
    row("running; starting", locked=True, listed=True),
    row("running; step 20/40; starting", "partial", locked=True),
    row("running; step 20/40", "running", cancelled=True, slurm=slurm("RUNNING")),
    row("running; starting", slurm=slurm("CONFIGURING")),
    row("running; its job is ending", slurm=slurm("COMPLETING")),
    row("running; step 20/40; its job is ending; why", "partial", reason="why", slurm=slurm("COMPLETING")),
    row("partial; step 20/40; stopped", "partial", reason="stopped", cancelled=True, slurm=slurm("COMPLETING")),
    row("partial; step 20/40; stopped", "partial", reason="stopped", cancelled=True, slurm=silent(7, NEW)),
    row("queued; step 20/40; Slurm job 7_0: pending, Resources", "failed", slurm=slurm("PENDING", "Resources")),
    row("queued; Slurm job 7_0: requeued", slurm=slurm("REQUEUED")),
    row("queued; is being submitted", slurm=silent(None, NEW)),
    row("missing", slurm=silent(None, OLD)),
    row("queued; not known now: it is down", slurm=silent(7, NEW)),
    row("missing", listed=True, cancelled=True),
    row("queued; step 20/40", "partial", listed=True),
]  # fmt: skip


@pytest.mark.parametrize("run, queued, expected", TABLE)
def test_of_a_folder_and_a_queue(run: RunFolder, queued: Queued, expected: str) -> None:
    state = state_of(run, queued)
    assert text(state) == expected
    step, t_stop = 20 if "step 20/" in expected else None, 40 if "/40" in expected else None
    assert (state.step, state.t_stop, type(state.code_version)) == (step, t_stop, str)


REPLACEMENTS = [  # why the result is one; of its replacement the status, whether it is trained; expected
    ("fell", {"status": "running", "step": 2, "t_stop": 4}, True, "running; step 2/4"),
    ("fell", {"status": "done", "code_version": "new"}, False, "done; new"),
    ("fell", {"status": "failed", "reason": "bad"}, False, "collapsed; fell; its replacement is failed (bad); old"),
    ("", {"status": "failed"}, False, "collapsed; its replacement is failed (); old"),
    ("fell", {}, False, "collapsed; fell; its replacement is missing (); old"),  # killed between the two
]  # fmt: skip


@pytest.mark.parametrize("reason, status, trained, expected", REPLACEMENTS)
def test_a_result_stands_unless_its_replacement_is_running(
    tmp_path: Path, reason: str, status: dict[str, Any], trained: bool, expected: str
) -> None:
    run = tmp_path / RUN
    for name, state in (("1", "collapsed"), ("of-another", "done")):
        (run / "replaced" / name).mkdir(parents=True)
        write_status(run / "replaced" / name, {"status": state, "reason": reason, "code_version": "old"})
    if status:
        write_status(run, status)
    with run_lock(run) if trained else nullcontext():
        assert text(state_of(RunFolder(run), Queued())) == expected
        replacing = state_of(RunFolder(run), Queued(), replacing=True).state
        assert replacing == status.get("status", "missing")


def test_the_queue_says_why_a_run_ended_that_could_not() -> None:
    before = {
        "died": RunState(schema.PARTIAL, DIED, "v", 2, 4, Cause.DIED),
        "missing": RunState(schema.MISSING),
        "held": RunState(schema.MISSING, "too many runs failed alike"),
        "spoke": RunState(schema.PARTIAL, DIED, cause=Cause.SIGNAL),  # not its words decide
        "done": RunState(schema.DONE),
        "foreign": RunState(schema.MISSING),  # no job of ours
    }
    why = Mock(side_effect=lambda run_ids: dict.fromkeys(run_ids, "TIMEOUT"))
    tasks = {name: LedgerTask(name, "t", 7, 0, 4, 0.0, "TIMEOUT") for name in before if name != "foreign"}
    queued = Queued(places=SlurmView(tasks).places(), why_ended=why)
    words = {name: replace(before[name], reason="Slurm job 7_0: TIMEOUT") for name in ("died", "missing")}
    assert explained(before, queued) == before | words
    assert explained({"done": before["done"]}, queued) == {"done": before["done"]}
    why.assert_called_once_with(["died", "missing"])  # nobody is asked about runs that spoke


def test_a_record_is_in_the_status_or_in_the_spool() -> None:
    for status, end, empty in (({}, None, True), ({"record": "r"}, None, False), ({}, (), False)):
        run, _, _ = row("", end=end)
        run.status = status
        assert run.is_empty is empty


def test_of_a_folder_no_more_is_read_than_the_answer_needs(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"status": "done", "run_id": tmp_path.name}))
    lies = RunFolder(tmp_path)
    assert state_of(lies, Queued()).state == schema.DONE
    assert vars(lies).keys() == {"path", "status"}


def test_a_folder_of_an_older_version(tmp_path: Path, tiny_spec: RunSpec) -> None:
    """The status then says neither whose it is nor by which code; the spool does."""
    run = tmp_path / tiny_spec.run_id
    recorder = Recorder(tiny_spec, {schema.TAG_CODE_VERSION: "v"}, run)
    recorder.log(1, {"train/reward": 0.5})
    recorder.finish(schema.Outcome(schema.DONE, 1))
    status = json.loads((run / "status.json").read_text())
    for name, value in {"run_id": tiny_spec.run_id, "code_version": "v", "cause": ""}.items():
        assert status.pop(name) == value
        (run / "status.json").write_text(json.dumps(status))
        assert state_of(RunFolder(run), Queued()) == RunState(schema.DONE, "", "v")
    copy = run.rename(tmp_path / RUN)
    assert state_of(RunFolder(copy), Queued()) == RunState(schema.MISSING)
    assert RunFolder(copy).is_empty
    (copy / "status.json").unlink()
    assert state_of(RunFolder(copy.rename(run)), Queued()) == RunState(schema.DONE, "", "v")
