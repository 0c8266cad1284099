"""The processes that are training, and those that upload for them."""

from dataclasses import dataclass
from pathlib import Path

from cppo_lab.runs.folder import holder
from dev.chaos.study import steps_on_file
from dev.slurm.daemons import PROC, Process, everything, look_up

_TRAINER, _SHIPPER = "submitit.core._submit", "cppo_lab.tracking.uploader"


@dataclass(frozen=True)
class Training:
    """A run that a live process trains, as Slurm job `job` on `node`."""

    run_id: str
    process: Process
    step: int  # the number of recorded steps, minus one
    job: str
    node: str

    def __str__(self) -> str:
        return f"{self.run_id} at step {self.step} on {self.node}"


def trainings(runs: Path) -> list[Training]:
    """The runs that are being trained and have recorded a step, ordered by id."""
    found = []
    for folder in sorted(runs.iterdir()):
        held = holder(folder) if (folder / "lock").is_file() else None
        process = look_up(held[1]) if held else None
        if process is None or _TRAINER not in _words(process):
            continue
        env, steps = process.environment(), steps_on_file(folder)
        job = env.get("SLURM_JOB_ID", "")
        if "SLURM_ARRAY_JOB_ID" in env:
            job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
        if steps and job:
            found.append(Training(folder.name, process, steps - 1, job, env.get("SLURMD_NODENAME", "")))
    return found


def shippers(runs: Path) -> list[tuple[Training, Process]]:
    """The processes that send the points of runs, each with its run."""
    going = {one.process.pid: one for one in trainings(runs)}
    return [
        (going[process.parent], process)
        for process in everything()
        if process.parent in going and _SHIPPER in _words(process)
    ]


def _words(process: Process) -> str:
    try:
        return (
            (PROC / str(process.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""
