"""What is there already: each run's state from the tracking store and from the locks of living processes."""

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab import schema
from cppo_lab.attempt import has_checkpoint, tidy
from cppo_lab.errors import UserError, one_line
from cppo_lab.launch.slurm.queue import ACTIVE, QueuedJob
from cppo_lab.launch.slurm.reconcile import in_queue_if_known
from cppo_lab.runs.folder import folder_tag, is_cancelled, read_status, write_status
from cppo_lab.runs.lock import AlreadyRunning, held, is_held
from cppo_lab.runs.offsets import forget_shipped, unsent
from cppo_lab.runs.queue import queued
from cppo_lab.runs.spool import newest_record
from cppo_lab.store import address
from cppo_lab.store.client import AttemptRecord, attempts, attempts_at, mark_interrupted, open_client
from cppo_lab.tracking.recorder import close_dead
from cppo_lab.tracking.replace import retire
from cppo_lab.tracking.sync import send

FEW = 10  # runs that are asked for one by one; beyond, the whole experiment is read once
DIED = "its process ended without a word (killed, out of memory, or the machine went down)"
CANCELLED = "cancelled"


@dataclass(frozen=True)
class RunState:
    """`state` is one of schema.STATES; `reason` says why a run failed, collapsed or was interrupted.

    `step` of `t_stop` is how far a run has come that is running or partial, where that is known.
    """

    state: str
    reason: str = ""
    code_version: str = ""
    step: int | None = None
    t_stop: int | None = None

    @property
    def note(self) -> str:
        """Step and reason on one line."""
        reached = "" if self.step is None else f"step {self.step}/{self.t_stop or '?'}"
        reason = self.reason.removesuffix(f" at step {self.step}")  # recorded reasons say it themselves
        return "; ".join(part for part in (reached, one_line(reason)) if part)


@dataclass(frozen=True)
class Snapshot:
    """One look at some runs: what the store knows of each, newest attempt first, and what lives on this machine."""

    runs: Path
    past: Mapping[str, Sequence[AttemptRecord]]
    held: Mapping[str, bool]
    queued: Collection[str] = frozenset()
    slurm: Mapping[str, QueuedJob] = field(default_factory=dict)  # runs that have a job in Slurm's queue

    def states(self, ignoring: Collection[str] = ()) -> dict[str, RunState]:
        """The state of every run; results whose MLflow ids are among `ignoring` count as not there."""
        return {run_id: self._state(run_id, ignoring) for run_id in self.past}

    def results(self, run_id: str) -> list[AttemptRecord]:
        """The finished attempts at a run, newest first."""
        return [one for one in self.past[run_id] if one.status == "FINISHED"]

    def _state(self, run_id: str, ignoring: Collection[str]) -> RunState:
        results = [one for one in self.results(run_id) if one.mlflow_id not in ignoring]
        others = [one for one in self.past[run_id] if one.status != "FINISHED"]
        live = self._unfinished(run_id, others)
        if not results:
            return live
        best = results[0]
        if not (others and best.mlflow_id in others[0].replaces):
            ended = schema.COLLAPSED if best.outcome == schema.COLLAPSED else schema.DONE
            return RunState(ended, best.reason, best.code_version)
        if live.state == schema.RUNNING:
            return live
        ended = schema.COLLAPSED if best.outcome == schema.COLLAPSED else schema.DONE
        stopped = f"{best.reason}; " if best.reason else ""
        return RunState(ended, f"{stopped}its replacement is {live.state} ({live.note})", best.code_version)

    def _unfinished(self, run_id: str, others: Sequence[AttemptRecord]) -> RunState:
        """The state of a run that has no result."""
        newest = others[0] if others else None
        version = newest.code_version if newest else ""
        told = read_status(self.runs / run_id) if newest or self.held[run_id] else {}
        step, t_stop = _progress(told, newest)
        job = self.slurm.get(run_id)
        if self.held[run_id] or (job and job.state in ACTIVE):
            return RunState(schema.RUNNING, "", version, step, t_stop)
        if job:
            why = f", {job.reason}" if job.reason else ""
            return RunState(
                schema.QUEUED, f"Slurm job {job.job}: {job.state.lower()}{why}", version, step, t_stop
            )
        if run_id in self.queued and not is_cancelled(self.runs / run_id):
            return RunState(schema.QUEUED)
        if newest is None:
            return RunState(schema.MISSING)
        if newest.status == "FAILED":
            return RunState(schema.FAILED, newest.reason, version)
        reason = newest.reason or f"interrupted: {self._died(run_id, newest)}"
        return RunState(schema.PARTIAL, reason, version, step, t_stop)

    def _died(self, run_id: str, attempt: AttemptRecord) -> str:
        if is_cancelled(self.runs / run_id):
            return CANCELLED
        ours = attempt.folder == folder_tag(self.runs / run_id)
        return DIED if ours else f"{DIED}, or it goes on from another folder than {self.runs}"


def _progress(told: Mapping[str, object], newest: AttemptRecord | None) -> tuple[int | None, int | None]:
    """Step and last step by the run's folder, if it speaks of its newest attempt; else by the store."""
    step, t_stop = told.get("step"), told.get("t_stop")
    ours = newest is None or told.get("record") == newest.record
    if ours and isinstance(step, int) and isinstance(t_stop, int):
        return step, t_stop
    return (newest.step, newest.t_stop) if newest else (None, None)


def look_at(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> Snapshot:
    """What is known of the runs. Writes nothing: a store that does not exist holds no run."""
    # Locks first: a run that ends between the looks is then seen as running, not as dead.
    held = {run_id: is_held(runs / run_id) for run_id in run_ids}
    waiting, in_slurm = queued(runs), in_queue_if_known(runs)
    return Snapshot(runs, past_attempts(run_ids, core, uri), held, waiting, in_slurm)


def past_attempts(run_ids: Sequence[str], core: str, uri: str) -> dict[str, list[AttemptRecord]]:
    """All attempts that the store at `uri` knows, newest first. Writes nothing."""
    database = address.sqlite_file(uri)
    if database is not None and not database.is_file():
        return {run_id: [] for run_id in run_ids}
    client, experiment = open_client(uri), schema.experiment_name(core)
    if len(run_ids) <= FEW:
        return {run_id: attempts_at(client, experiment, run_id) for run_id in run_ids}
    return attempts(client, experiment, run_ids)


def run_states(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> dict[str, RunState]:
    """The state of every run. Writes nothing."""
    return look_at(run_ids, core, uri, runs).states()


def repair(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> list[str]:
    """End the records of runs whose process is gone, and finish replacements that were cut off.

    What their folders have and the store has not is sent first. Returns the runs mended.
    """
    _settle(run_ids, uri, runs)
    return _mend(look_at(run_ids, core, uri, runs), uri)


def look_repaired(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> Snapshot:
    """What is known of the runs once they are repaired."""
    _settle(run_ids, uri, runs)
    look = look_at(run_ids, core, uri, runs)
    return look_at(run_ids, core, uri, runs) if _mend(look, uri) else look


def _settle(run_ids: Sequence[str], uri: str, runs: Path) -> None:
    """Do what runs left undone that nobody trains: send what they have on file, remove what a result needs no more."""
    folders = [runs / run_id for run_id in run_ids if not is_held(runs / run_id)]
    _send(folders, uri)
    for folder in folders:
        tidy(folder)


def _send(folders: Sequence[Path], uri: str) -> None:
    """Send what runs have on file. What the store does not take is said, and stops nobody."""
    try:
        send(folders, uri)
    except UserError as error:
        print(f"cppo: {error}", file=sys.stderr, flush=True)


def _mend(look: Snapshot, uri: str) -> list[str]:
    """Nothing stays RUNNING for ever, and no result beside the one that has taken its place.

    Only attempts made from this `runs` folder are ended; another machine's are not ours to judge.
    """
    client, mended = open_client(uri), []
    for run_id, past in look.past.items():
        folder = look.runs / run_id
        for one in past:
            if one.status == "FINISHED" and one.replaces:
                retire(client, one.mlflow_id)
                mended.append(run_id)
            if one.status == "FINISHED" and _lacks_end(folder, one):
                _write_end(uri, folder, one)
            if one.status != "RUNNING" or one.folder != folder_tag(folder) or is_held(folder):
                continue
            if run_id in look.slurm and look.slurm[run_id].state in ACTIVE:
                continue  # it starts, or ends, at this moment
            if _end_dead(uri, folder, one):
                mended.append(run_id)
    return mended


def _lacks_end(folder: Path, one: AttemptRecord) -> bool:
    """Whether the run's folder does not say of this attempt that it has finished: a full disk had no room for that."""
    status = read_status(folder)
    if not one.record or status.get("record") != one.record:
        return False
    return status.get("status") not in schema.FINISHED or has_checkpoint(folder)


def _write_end(uri: str, folder: Path, one: AttemptRecord) -> None:
    """Let the folder say so, unless it still has no room."""
    with contextlib.suppress(AlreadyRunning, OSError), held(folder):
        record, status = newest_record(folder), read_status(folder)
        if record is None or record.begin.record != one.record or status.get("record") != one.record:
            return
        ended = open_client(uri).get_run(one.mlflow_id).info.end_time
        if close_dead(folder, one.outcome or schema.DONE, one.reason, ended):
            write_status(folder, {**status, "status": one.outcome or schema.DONE, "reason": one.reason})
    tidy(folder)


def _end_dead(uri: str, folder: Path, one: AttemptRecord) -> bool:
    """End the record of an attempt whose process is gone, unless it has been begun again meanwhile."""
    client = open_client(uri)
    try:
        with held(folder):
            # Nobody trains it now, so its status is final; the one read before may be older than its end.
            if client.get_run(one.mlflow_id).info.status != "RUNNING":
                return False
            why = CANCELLED if is_cancelled(folder) else DIED
            record = newest_record(folder)
            if record is not None and record.begin.record == one.record:
                at = f" at step {max(record.rows)}" if record.rows else ""
                if record.end is None:
                    close_dead(folder, schema.PARTIAL, f"interrupted: {why}{at}")
                elif not unsent(folder, uri):  # the store had its end once
                    forget_shipped(folder, uri)
                _send([folder], uri)
            else:
                mark_interrupted(client, one.mlflow_id, f"interrupted: {why}")
    except AlreadyRunning:
        return False
    return True
