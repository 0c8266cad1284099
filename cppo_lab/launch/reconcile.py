"""Repairs what killed processes leave behind: records that stay RUNNING, interrupted replacements, unsent points."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cppo_lab import schema
from cppo_lab.errors import UserError
from cppo_lab.launch.queues import look
from cppo_lab.runs.attempt import has_checkpoint, tidy
from cppo_lab.runs.folder import AlreadyRunning, Cause, folder_tag, held, is_cancelled, is_held, read_status
from cppo_lab.runs.recorder import close_dead
from cppo_lab.runs.spool import newest_record
from cppo_lab.runs.state import WORDS, Queued, RunFolder
from cppo_lab.tracking.client import open_client
from cppo_lab.tracking.read import mark_interrupted, past_attempts
from cppo_lab.tracking.records import AttemptRecord, recorded_status
from cppo_lab.tracking.sent import forget_shipped, load_shipped, unsent
from cppo_lab.tracking.upload import retire, upload


def repair(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> list[str]:
    """End the records of runs whose process is gone, and finish interrupted replacements.

    Metrics in their folders that never reached the store are uploaded first. Returns the repaired runs.
    """
    _settle(run_ids, uri, runs)
    return _mend(past_attempts(run_ids, core, uri), uri, runs, look(runs, warn=True))


def repaired(
    run_ids: Sequence[str], core: str, uri: str, runs: Path, queued: Queued, again: bool = False
) -> dict[str, list[AttemptRecord]]:
    """All attempts at the runs that the store has, newest first, once they are repaired.

    Finished runs in `runs` that the store has lost are uploaded again, unless that has just been done (`again`).
    """
    _settle(run_ids, uri, runs)
    past = past_attempts(run_ids, core, uri)
    changed = _mend(past, uri, runs, queued)
    if not again:
        changed += _upload_lost(past, uri, runs)
    return past_attempts(run_ids, core, uri) if changed else past


def _settle(run_ids: Sequence[str], uri: str, runs: Path) -> None:
    """Finish runs that no process trains: upload their unsent records, remove the checkpoints of finished ones."""
    folders = [runs / run_id for run_id in run_ids if not is_held(runs / run_id)]
    _send(folders, uri)
    for folder in folders:
        tidy(folder)


def _send(folders: Sequence[Path], uri: str) -> None:
    """Upload the unsent records of runs. What the store refuses is printed, and does not stop the rest."""
    try:
        upload(folders, uri)
    except UserError as error:
        print(f"cppo: {error}", file=sys.stderr, flush=True)


def _upload_lost(past: Mapping[str, Sequence[AttemptRecord]], uri: str, runs: Path) -> list[str]:
    """Upload finished runs of which the store has no result, because it was replaced by an empty or an older one.

    What a user has deleted there stays deleted. Returns the runs that were uploaded.
    """
    without = [run_id for run_id, known in past.items() if not any(one.is_result for one in known)]
    finished = [i for i in without if RunFolder(runs / i).status.get("status") in schema.FINISHED]
    lost = [runs / i for i in finished if not _is_deleted(runs / i, uri) and not unsent(runs / i, uri)]
    for folder in lost:
        forget_shipped(folder, uri)
    _send(lost, uri)
    sent = [one.name for one in lost if not _is_deleted(one, uri) and not unsent(one, uri)]
    _tell(sent, "not in the tracking store any more: uploaded again")
    fate = f"deleted in the tracking store, and not trained again: to train them, remove their folders in {runs}, too"
    _tell([run_id for run_id in finished if _is_deleted(runs / run_id, uri)], fate)
    return sent


def _tell(run_ids: Sequence[str], fate: str) -> None:
    """Say what has become of finished runs; nothing if there are none."""
    if run_ids:
        count = "1 finished run was" if len(run_ids) == 1 else f"{len(run_ids)} finished runs were"
        named = ", ".join(run_ids[:3]) + ", ..." * (len(run_ids) > 3)
        print(f"cppo: {count} {fate} ({named})", file=sys.stderr, flush=True)


def _is_deleted(folder: Path, uri: str) -> bool:
    """Whether a user has deleted the run in the store, as far as an upload has seen."""
    records = load_shipped(folder, uri).records.values()
    return any(record.deleted for record in records)


def _mend(past: Mapping[str, Sequence[AttemptRecord]], uri: str, runs: Path, queued: Queued) -> list[str]:
    """End dead runs that are RUNNING in the store, and delete replaced results whose replacement has finished.

    Only attempts from this `runs` folder are ended, since those of other machines may be alive.
    """
    client, mended = open_client(uri), []
    for run_id, known in past.items():
        folder = runs / run_id
        for one in known:
            if one.is_result and one.replaces:
                retire(client, one.mlflow_id)
                mended.append(run_id)
            if one.is_result and _lacks_end(folder, one):
                _write_end(uri, folder, one)
            if one.status != schema.RUNNING or one.folder != folder_tag(folder) or is_held(folder):
                continue
            if queued.place(run_id).active:
                continue  # it is starting or ending right now
            if _end_dead(uri, folder, one):
                mended.append(run_id)
    return mended


def _lacks_end(folder: Path, one: AttemptRecord) -> bool:
    """Whether the run's folder lacks the end of this finished attempt, because the disk was full."""
    status = read_status(folder)
    if not one.record or status.get("record") != one.record:
        return False
    return status.get("status") not in schema.FINISHED or has_checkpoint(folder)


def _write_end(uri: str, folder: Path, one: AttemptRecord) -> None:
    """Write the end to the folder, unless the disk is still full."""
    with contextlib.suppress(AlreadyRunning, OSError), held(folder):
        record, status = newest_record(folder), read_status(folder)
        if record is None or record.begin.record != one.record or status.get("record") != one.record:
            return
        ended = open_client(uri).get_run(one.mlflow_id).info.end_time
        close_dead(folder, one.status, one.reason, time_ms=ended)
    tidy(folder)


def _end_dead(uri: str, folder: Path, one: AttemptRecord) -> bool:
    """End the record of an attempt whose process is gone, unless it has been started again in the meantime."""
    client = open_client(uri)
    try:
        with held(folder):
            # With the lock held its status is final; the one read before may be older than its end.
            if recorded_status(client.get_run(one.mlflow_id).data.tags) != schema.RUNNING:
                return False
            cause = Cause.CANCELLED if is_cancelled(folder) else Cause.DIED
            why = WORDS[cause]
            record = newest_record(folder)
            if record is not None and record.begin.record == one.record:
                at = f" at step {max(record.rows)}" if record.rows else ""
                if record.end is None:
                    close_dead(folder, schema.PARTIAL, f"interrupted: {why}{at}", cause)
                elif not unsent(folder, uri):  # the store already had its end
                    forget_shipped(folder, uri)
                _send([folder], uri)
            else:
                mark_interrupted(client, one.mlflow_id, f"interrupted: {why}")
    except AlreadyRunning:
        return False
    return True
