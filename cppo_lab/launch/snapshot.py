"""The states of some runs from one query of store, locks and queues. Writes nothing and does not import MLflow."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cppo_lab import schema
from cppo_lab.launch.run_state import Facts, RunFolder, state_of, with_slurms_reasons
from cppo_lab.launch.slurm.queue import SlurmView, view_or_warn
from cppo_lab.runs.lock import is_held
from cppo_lab.runs.queue import queued
from cppo_lab.runs.state import RunState
from cppo_lab.store.read_only import open_reader
from cppo_lab.store.records import AttemptRecord, attempts, attempts_at

FEW = 10  # up to this number, runs are queried one by one; beyond, the whole experiment is read once


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of some runs: the attempts of each in the store, newest first, and what is alive on this machine."""

    runs: Path
    past: Mapping[str, Sequence[AttemptRecord]]
    held: Mapping[str, bool]
    queued: Collection[str] = frozenset()
    slurm: SlurmView = field(default_factory=SlurmView)

    def states(self, ignoring: Collection[str] = ()) -> dict[str, RunState]:
        """The state of every run; results whose MLflow ids are in `ignoring` do not count."""
        return {run_id: state_of(self._facts(run_id), ignoring) for run_id in self.past}

    def explained(self, ignoring: Collection[str] = ()) -> dict[str, RunState]:
        """The same, with Slurm's reason for runs that did not record why they ended; may query Slurm's accounting."""
        return with_slurms_reasons(self.states(ignoring), self.slurm)

    def results(self, run_id: str) -> list[AttemptRecord]:
        """The finished attempts at a run, newest first."""
        return [one for one in self.past[run_id] if one.is_result]

    def _facts(self, run_id: str) -> Facts:
        folder = RunFolder(self.runs / run_id, self.held[run_id])
        return Facts(run_id, folder, run_id in self.queued, self.slurm, self.past[run_id])


def look_at(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> Snapshot:
    """What is known of the runs. Writes nothing: a store that does not exist holds no run."""
    # Locks first: a run that ends between the two queries then counts as running, not as dead.
    held = {run_id: is_held(runs / run_id) for run_id in run_ids}
    waiting, in_slurm = queued(runs), view_or_warn(runs)
    return Snapshot(runs, past_attempts(run_ids, core, uri), held, waiting, in_slurm)


def past_attempts(run_ids: Sequence[str], core: str, uri: str) -> dict[str, list[AttemptRecord]]:
    """All attempts that the store at `uri` knows, newest first. Writes nothing."""
    experiment = schema.experiment_name(core)
    with open_reader(uri) as reader:
        if reader is None:
            return {run_id: [] for run_id in run_ids}
        if len(run_ids) <= FEW:
            return {run_id: attempts_at(reader, experiment, run_id) for run_id in run_ids}
        return attempts(reader, experiment, run_ids)


def run_states(run_ids: Sequence[str], core: str, uri: str, runs: Path) -> dict[str, RunState]:
    """The state of every run. Writes nothing."""
    return look_at(run_ids, core, uri, runs).explained()
