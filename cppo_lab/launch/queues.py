"""What the launchers have yet to start or end: the lists of the live ones on this machine, and Slurm's queue."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cppo_lab.launch.slurm.queue import SlurmView, view, view_or_warn
from cppo_lab.runs.queue import queued
from cppo_lab.runs.state import Place, Queued


def look(runs: Path, warn: bool = False) -> Queued:
    """One look at all queues. Writes nothing.

    `warn`: say on standard error if the record of Slurm jobs cannot be read or Slurm does not answer. Otherwise the
    first raises UserError, and the second is in the reasons of the runs.
    """
    listed, slurm = queued(runs), view_or_warn(runs) if warn else view(runs)
    return Queued(listed, places(slurm), lambda run_ids: _why_ended(slurm, run_ids))


def places(slurm: SlurmView) -> dict[str, Place]:
    """The places of the runs that Slurm or the record of its jobs has."""
    return {
        run_id: Place(
            slurm.job_of(run_id), slurm.waiting(run_id), slurm.is_active(run_id), slurm.is_ending(run_id)
        )
        for run_id in {**slurm.tasks, **slurm.here}
    }


def _why_ended(slurm: SlurmView, run_ids: Sequence[str]) -> Mapping[str, str]:
    words = slurm.words(run_ids)
    return {run_id: f"Slurm job {slurm.job_of(run_id)}: {word}" for run_id, word in words.items()}
