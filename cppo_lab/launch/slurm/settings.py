"""The settings of the Slurm launcher."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from cppo_lab.launch.base import LauncherSpec

# sbatch's options that are ours to set: a second source for them would be silently overruled.
OURS = {
    "array": "one array is made of equal runs",
    "comment": "it names the submission",
    "cpus-per-task": "set resources.cpus",
    "error": "see `cppo logs`",
    "gpus-per-node": "set layout.devices_per_node",
    "job-name": "it is cppo",
    "mem": "set resources.memory_gb",
    "nodes": "set layout.nodes",
    "ntasks-per-node": "one task runs on each node",
    "open-mode": "output is appended to",
    "output": "see `cppo logs`",
    "requeue": "set launcher.requeues",
    "no-requeue": "set launcher.requeues",
    "signal": "set launcher.grace_seconds",
    "time": "set resources.hours",
    "partition": "set resources.partition",
    "account": "set resources.account",
    "qos": "set resources.qos",
    "constraint": "set resources.constraint",
}

# A name of sbatch's, and words in which no shell and no batch script reads anything else.
Option = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
Line = Annotated[str, Field(pattern=r"^[^\n\r\x00]*$", max_length=4096)]


class SlurmSpec(LauncherSpec):
    """How runs become Slurm jobs.

    `sbatch` holds options of sbatch for which `resources` and `layout` have no word; `setup` lines of shell before
    Python starts (modules, environments); `python` the command that starts it (within a container, say).
    """

    requeues: Annotated[int, Field(ge=0, le=1000)]  # after preemption, time limit, or a node's failure
    grace_seconds: Annotated[int, Field(ge=10, le=3600)]  # from Slurm's warning to the time limit
    python: Line | None
    setup: tuple[Line, ...]
    srun: tuple[Line, ...]
    sbatch: dict[Option, Line | int | bool]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.sbatch:
            if name in OURS:
                raise ValueError(f"sbatch.{name}={self.sbatch[name]!r} is not to be set here: {OURS[name]}")
        return self
