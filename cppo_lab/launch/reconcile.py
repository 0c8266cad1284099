"""What is there already of some runs: one look at store, locks and queues; and the repair of what kills have left."""

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab import schema
from cppo_lab.attempt import has_checkpoint, tidy
from cppo_lab.errors import UserError
from cppo_lab.launch.run_state import (
    CANCELLED,
    DIED,
    Facts,
    RunFolder,
    RunState,
    state_of,
    with_slurms_reasons,
)
from cppo_lab.launch.slurm.view import SlurmView, view_or_warn
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


@dataclass(frozen=True)
class Snapshot:
    """One look at some runs: what the store knows of each, newest attempt first, and what lives on this machine."""

    runs: Path
    past: Mapping[str, Sequence[AttemptRecord]]
    held: Mapping[str, bool]
    queued: Collection[str] = frozenset()
    slurm: SlurmView = field(default_factory=SlurmView)

    def states(self, ignoring: Collection[str] = ()) -> dict[str, RunState]:
        """The state of every run; results whose MLflow ids are among `ignoring` count as not there."""
        return {run_id: state_of(self._facts(run_id), ignoring) for run_id in self.past}

    def explained(self, ignoring: Collection[str] = ()) -> dict[str, RunState]:
        """The same, with Slurm's reason where a run could not say why it ended: may ask Slurm's accounts."""
        return with_slurms_reasons(self.states(ignoring), self.slurm)

    def results(self, run_id: str) -> list[AttemptRecord]:
        """The finished attempts at a run, newest first."""
        return [one for one in self.past[run_id] if one.status == "FINISHED"]

    def _facts(self, run_id: str) -> Facts:
        folder = RunFolder(self.runs / run_id, self.held[run_id])
        return Facts(run_id, folder, run_id in self.queued, self.slurm, self.past[run_id])


def look_at(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> Snapshot:
    """What is known of the runs. Writes nothing: a store that does not exist holds no run."""
    # Locks first: a run that ends between the looks is then seen as running, not as dead.
    held = {run_id: is_held(runs / run_id) for run_id in run_ids}
    waiting, in_slurm = queued(runs), view_or_warn(runs)
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
    return look_at(run_ids, core, uri, runs).explained()


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
            if look.slurm.is_active(run_id):
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
