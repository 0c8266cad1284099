"""Records the end of runs whose process was killed: in the store, in their folders and in the ledger of Slurm jobs."""

from collections.abc import Sequence
from pathlib import Path

from cppo_lab import schema
from cppo_lab.core_records import core_names
from cppo_lab.launch import reconcile
from cppo_lab.launch.queues import look
from cppo_lab.launch.slurm.ledger import NAME, Ledger, submitting
from cppo_lab.launch.slurm.queue import refresh
from cppo_lab.monitor.status import RunStatus
from cppo_lab.runs.folder import AlreadyRunning, held, read_status, write_status
from cppo_lab.runs.state import RunFolder, RunState, state_of
from cppo_lab.tracking import address
from cppo_lab.tracking.sent import unsent


def repair(runs: Path, uri: str, found: Sequence[RunStatus]) -> list[str]:
    """Repair the records of these runs; returns one line for each repair.

    Raises UserError if the store or Slurm's controller does not answer.
    """
    lines = _slurm(runs)
    database = address.sqlite_file(uri)
    for core in core_names():
        run_ids = [one.run_id for one in found if one.label.core in (core, "")]
        there = database is None or database.is_file() or any(unsent(runs / one, uri) for one in run_ids)
        if run_ids and there:
            mended = dict.fromkeys(reconcile.repair(run_ids, core, uri, runs))
            lines += [f"{run_id}: its record in MLflow is repaired" for run_id in mended]
            queued = look(runs)  # the states are recorded, so without Slurm's reasons
            states = {run_id: state_of(RunFolder(runs / run_id), queued) for run_id in run_ids}
            stale = [run_id for run_id in run_ids if _end_folder(runs / run_id, states[run_id])]
            lines += [f"{run_id}: its folder now says that it is {states[run_id].state}" for run_id in stale]
    return lines or ["nothing to repair"]


def _slurm(runs: Path) -> list[str]:
    """Record which jobs have left the queue, and adopt or cancel those of killed launchers."""
    if not (runs / NAME).is_file():
        return []
    with submitting(runs), Ledger(runs) as ledger:
        before = {(task.name, task.token): task for task in ledger.open_tasks()}
        refresh(ledger)
        after = {(task.name, task.token) for task in ledger.open_tasks()}
    return [f"{task.name}: Slurm job {task.job} is over" for key, task in before.items() if key not in after]


def _end_folder(folder: Path, state: RunState) -> bool:
    """Record the end of a run in a folder that still shows it as running."""
    if read_status(folder).get("status") != schema.RUNNING or state.state not in schema.FINISHED | {
        schema.PARTIAL
    }:
        return False
    try:
        with held(folder):
            status = read_status(folder)
            if status.get("status") != schema.RUNNING:
                return False
            known = {} if state.step is None else {"step": state.step}
            ended = {"status": state.state, "reason": state.reason, "cause": state.cause}
            write_status(folder, {**status, **known, **ended})
    except AlreadyRunning:
        return False
    return True
