"""What the launchers have yet to start or end: the lists of the live ones on this machine, and Slurm's queue."""

from pathlib import Path

from cppo_lab.launch.slurm.queue import SlurmView, view, view_or_warn
from cppo_lab.runs.folder import queued
from cppo_lab.runs.state import Place, Queued


def look(runs: Path, warn: bool = False) -> Queued:
    """One look at all queues. Writes nothing.

    `warn`: say on standard error if the record of Slurm jobs cannot be read or Slurm does not answer. Otherwise the
    first raises UserError, and the second is in the reasons of the runs.
    """
    listed, slurm = queued(runs), view_or_warn(runs) if warn else view(runs)
    return Queued(listed, places(slurm), slurm.words)


def places(slurm: SlurmView) -> dict[str, Place]:
    """The places of the runs that Slurm or the record of its jobs has."""
    return {
        run_id: Place(
            job=slurm.job_of(run_id),
            kind="Slurm job",
            waits=slurm.waiting(run_id),
            active=slurm.is_active(run_id),
            ending=slurm.is_ending(run_id),
        )
        for run_id in {**slurm.tasks, **slurm.here}
    }
