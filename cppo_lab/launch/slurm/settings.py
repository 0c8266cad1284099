"""The settings of the Slurm launcher."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from cppo_lab.launch.base import LauncherSpec
from cppo_lab.launch.slurm.container_settings import NO_CONTAINER, ContainerSpec, Line

# Options of sbatch that the launcher sets: values from another source would be silently overridden.
OURS = {
    "array": "one array is made of equal runs",
    "clusters": "jobs are looked for on this cluster",
    "comment": "it names the submission",
    "cpus-per-task": "set resources.cpus",
    "error": "see `cppo logs`",
    "gpus-per-node": "set layout.devices_per_node",
    "job-name": "it is cppo",
    "mem": "set resources.memory_gb",
    "nodes": "set layout.nodes",
    "ntasks": "one task runs on each node",
    "ntasks-per-node": "one task runs on each node",
    "open-mode": "output is appended to",
    "output": "see `cppo logs`",
    "parsable": "sbatch's answer is read",
    "quiet": "sbatch's answer is read",
    "requeue": "set launcher.requeues",
    "no-requeue": "set launcher.requeues",
    "signal": "set launcher.grace_seconds",
    "tasks-per-node": "one task runs on each node",
    "test-only": "`cppo plan` submits nothing",
    "time": "set resources.hours",
    "partition": "set resources.partition",
    "account": "set resources.account",
    "qos": "set resources.qos",
    "constraint": "set resources.constraint",
    "wait": "`cppo launch` does not wait",
    "wckey": "clusters that check it refuse unknown ones",
    "wrap": "a run is what is submitted",
}
WHOLE = {"gpus"}  # allowed, although it is a prefix of an option above

# A name of sbatch's.
Option = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]


class SlurmSpec(LauncherSpec):
    """How runs become Slurm jobs.

    `sbatch` holds options of sbatch that `resources` and `layout` do not cover; `setup` shell lines to run before
    Python starts (modules, environments); `python` the command that starts it, inside the image if there is one.
    """

    requeues: Annotated[int, Field(ge=0, le=1000)]  # after preemption, time limit, or a node's failure
    grace_seconds: Annotated[int, Field(ge=10, le=3600)]  # from Slurm's warning to the time limit
    python: Line | None
    setup: tuple[Line, ...]
    srun: tuple[Line, ...]
    sbatch: dict[Option, Line | int | bool]
    container: ContainerSpec = NO_CONTAINER

    @property
    def contained(self) -> bool:
        """Whether runs are in a container."""
        return self.container.runtime is not None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, value in self.sbatch.items():
            # sbatch accepts any unambiguous prefix of a long option.
            ours = [
                option for option in OURS if option == name or (option.startswith(name) and name not in WHOLE)
            ]
            if ours:
                raise ValueError(f"sbatch.{name}={value!r} must not be set here: {OURS[ours[0]]}")
        return self
