"""The state of a run and its text: one function that `plan`, `launch`, `status` and `watch` share.

The caller collects what is known of a run (`Facts`). Only the needed files of its folder are read, so that thousands of
runs take a second.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cppo_lab import schema
from cppo_lab.launch.slurm.queue import SlurmView
from cppo_lab.runs.folder import folder_tag, is_cancelled, read_status
from cppo_lab.runs.lock import is_held
from cppo_lab.runs.spool import newest_record
from cppo_lab.runs.state import RunState
from cppo_lab.store.records import AttemptRecord

if TYPE_CHECKING:
    from cppo_lab.runs.events import End

CANCELLED = "cancelled"
STARTING = "starting"
_SILENT = "its process ended without a word"
DIED = f"{_SILENT} (killed, out of memory, or the machine went down)"


class RunFolder:
    """The contents of a run's folder. Each part is read once, on first use."""

    def __init__(self, path: Path, held: bool | None = None) -> None:
        """`held`: whether its lock is held, if the caller has already checked."""
        self.path = path
        if held is not None:
            self.held = held

    @cached_property
    def held(self) -> bool:
        """Whether a living process trains the run."""
        return is_held(self.path)

    @cached_property
    def status(self) -> Mapping[str, Any]:
        """Its status.json; empty if it has none."""
        return read_status(self.path)

    @cached_property
    def cancelled(self) -> bool:
        """Whether the run was cancelled since its last start."""
        return is_cancelled(self.path)

    @cached_property
    def end(self) -> "End | None":
        """The end of its newest record; None if that has none."""
        record = newest_record(self.path)
        return record.end if record is not None else None

    @cached_property
    def tag(self) -> str:
        """The value of TAG_FOLDER for attempts from this folder."""
        return folder_tag(self.path)


@dataclass(frozen=True)
class Facts:
    """What is known of a run. `listed`: it is on the list of a live launcher.

    `attempts`: all of its attempts in the store, newest first; None if the store was not queried.
    """

    run_id: str
    folder: RunFolder
    listed: bool = False
    slurm: SlurmView = field(default_factory=SlurmView)
    attempts: Sequence[AttemptRecord] | None = None


def state_of(facts: Facts, ignoring: Collection[str] = ()) -> RunState:
    """The state of a run; results whose MLflow ids are in `ignoring` do not count.

    If the store was queried, it decides whether there is a result: a finished run that was deleted there is trained
    again. Otherwise the run's folder decides.
    """
    past = facts.attempts or ()
    results = [one for one in past if one.is_result and one.mlflow_id not in ignoring]
    others = [one for one in past if not one.is_result]
    newest = others[0] if others else None
    if not results:
        return _unfinished(facts, newest)
    best = results[0]
    ended = RunState(best.status, best.reason, best.code_version)
    if newest is None or best.mlflow_id not in newest.replaces:
        return ended
    live = _unfinished(facts, newest)
    if live.state in {schema.RUNNING, *schema.FINISHED}:
        return live
    stopped = f"{best.reason}; " if best.reason else ""
    return replace(ended, reason=f"{stopped}its replacement is {live.state} ({live.note})")


def folder_decides(facts: Facts, state: RunState) -> bool:
    """Whether the folder settles this state, so that the store need not be queried."""
    recorded = facts.folder.status.get("status")
    if state.state in schema.ALIVE or recorded in schema.FINISHED:
        return True
    if recorded == "" and "seconds" not in facts.folder.status:
        return True  # a launcher found nothing in the store and announced the run, which never began
    return bool(recorded) and not facts.folder.status.get("replaces")


def with_slurms_reasons(states: Mapping[str, RunState], slurm: SlurmView) -> dict[str, RunState]:
    """The states, with Slurm's reason for runs that did not record why they ended."""
    silent = [
        run_id
        for run_id, one in states.items()
        if run_id in slurm.tasks
        and (one.state == schema.MISSING or (one.state == schema.PARTIAL and _SILENT in one.reason))
    ]
    reasons = slurm.words(silent) if silent else {}
    return {
        run_id: replace(one, reason=f"Slurm job {slurm.job_of(run_id)}: {reasons[run_id]}")
        if run_id in reasons
        else one
        for run_id, one in states.items()
    }


def _unfinished(facts: Facts, newest: AttemptRecord | None) -> RunState:
    """The state of a run whose result the store does not have. `newest`: the last attempt that the store has."""
    folder, slurm, version = facts.folder, facts.slurm, newest.code_version if newest else ""
    if facts.attempts is None and folder.status.get("status") in schema.FINISHED:
        return _recorded_end(folder) or RunState(schema.MISSING)
    if folder.held or (slurm.is_active(facts.run_id) and not _is_over(folder)):
        return RunState(schema.RUNNING, _activity(facts), version, *_progress(folder, newest, runs=True))
    if (waits := slurm.waiting(facts.run_id)) is not None:
        return RunState(schema.QUEUED, waits, version, *_progress(folder, newest))
    if facts.listed and not folder.cancelled:
        return RunState(schema.QUEUED, "", version, *_progress(folder, newest))
    found = _ended_by_folder(folder) if facts.attempts is None else _ended_by_store(folder, newest)
    if found.state != schema.PARTIAL:
        return replace(found, code_version=version)
    return RunState(schema.PARTIAL, found.reason, version, *_progress(folder, newest))


def _is_over(folder: RunFolder) -> bool:
    """Whether a run whose job still has nodes is over: it was cancelled. Otherwise its job may be requeued."""
    return folder.status.get("status") in (schema.FAILED, schema.PARTIAL) and folder.cancelled


def _activity(facts: Facts) -> str:
    """What a live run does besides training."""
    status = facts.folder.status
    if status.get("status") == schema.RUNNING:
        # The activity within a step changes too fast to show; before the first step it may take minutes.
        return "" if status.get("first_step") is not None else str(status.get("activity") or "")
    if facts.slurm.is_ending(facts.run_id):
        return "; ".join(filter(None, ["its job is ending", status.get("reason")]))
    return STARTING


def _progress(
    folder: RunFolder, newest: AttemptRecord | None, runs: bool = False
) -> tuple[int | None, int | None]:
    """Step and last step from the run's folder if it describes the newest attempt, otherwise from the store."""
    status = folder.status
    step, t_stop = status.get("step"), status.get("t_stop")
    # A running attempt may be too new for the store.
    ours = (
        newest is None
        or status.get("record") == newest.record
        or (runs and status.get("status") == schema.RUNNING)
    )
    if ours and isinstance(step, int) and isinstance(t_stop, int):
        return step, t_stop
    return (newest.step, newest.t_stop) if newest else (None, None)


def _recorded_end(folder: RunFolder) -> RunState | None:
    """How the run ended, as its folder records it; None if it does not."""
    recorded = folder.status.get("status")
    if recorded == schema.RUNNING and folder.end is not None:  # killed before it could update its status
        return RunState(folder.end.status, folder.end.reason)
    if recorded in schema.FINISHED | {schema.FAILED, schema.PARTIAL}:
        return RunState(str(recorded), folder.status.get("reason") or "")
    return None


def _ended_by_folder(folder: RunFolder) -> RunState:
    """The state of a run that is neither trained nor queued, if the store was not queried."""
    if word := _recorded_end(folder):
        return word
    if folder.status.get("status") == schema.RUNNING:
        return RunState(schema.PARTIAL, f"interrupted: {CANCELLED if folder.cancelled else DIED}")
    return RunState(schema.MISSING)


def _ended_by_store(folder: RunFolder, newest: AttemptRecord | None) -> RunState:
    """The same if the store was queried. What the latest attempt has not uploaded yet comes from the folder."""
    if newest is None:
        return RunState(schema.MISSING)
    if newest.record and folder.status.get("record") == newest.record:
        word = _recorded_end(folder)
        if word and (newest.status == schema.RUNNING or word.state in schema.FINISHED):
            return word
    if newest.status == schema.FAILED:
        return RunState(schema.FAILED, newest.reason)
    return RunState(schema.PARTIAL, newest.reason or f"interrupted: {_died(folder, newest)}")


def _died(folder: RunFolder, attempt: AttemptRecord) -> str:
    if folder.cancelled:
        return CANCELLED
    ours = attempt.folder == folder.tag
    return DIED if ours else f"{DIED}, or it goes on from another folder than {folder.path.parent}"
