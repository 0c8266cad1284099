"""From a job's resources and the launcher's settings to the parameters of submitit's Slurm executor."""

import json
import math
from collections.abc import Iterable
from typing import Any

from cppo_lab.errors import UserError
from cppo_lab.launch.base import J, Job
from cppo_lab.launch.slurm.container import wrapping
from cppo_lab.launch.slurm.settings import SlurmSpec
from cppo_lab.spec import ResourcesSpec

EARLY_SECONDS = 30  # Slurm checks limits at this interval: its warning may come that much too early
START_SECONDS = 15  # until a job receives the warning


def parameters(job: Job, spec: SlurmSpec) -> dict[str, Any]:
    """Keyword arguments of `SlurmExecutor.update_parameters`, and `python`, the command that starts it on a node.

    None stands for the cluster's default. Raises UserError for a job whose folders cannot be mounted in its container.
    """
    taken = job.resources
    wrapped = wrapping(job, spec.container, spec.python) if spec.container.runtime else None
    srun = [
        *(["--kill-on-bad-exit=1"] if job.nodes > 1 else []),
        *(wrapped.srun if wrapped else ()),
        *spec.srun,
    ]
    values: dict[str, Any] = {
        "job_name": "cppo",
        "nodes": job.nodes,
        "ntasks_per_node": 1,
        "gpus_per_node": job.gpus or None,
        "cpus_per_task": (taken.cpus if taken else None) or (None if job.gpus else spec.threads),
        "signal_delay_s": spec.grace_seconds,
        "python": wrapped.python if wrapped else spec.python,
        # The cluster may not pass on the variable that `cppo` sets for its children (SBATCH_EXPORT).
        "setup": [*spec.setup, *(wrapped.setup if wrapped else ()), "export PYTHONSAFEPATH=1"],
        # If one of several tasks fails, the job ends.
        "srun_args": srun or None,
        "stderr_to_stdout": True,
        "wckey": None,  # unset submitit's own, which clusters that check keys refuse
        # Whether Slurm may requeue a job that is preempted or whose node fails.
        "additional_parameters": {"requeue" if spec.requeues else "no-requeue": True, **spec.sbatch},
    }
    if taken is None:
        values["time"] = 0  # no limit, where submitit would set five minutes
    else:
        values |= {
            "time": minutes(taken.hours, spec.grace_seconds),
            "mem": f"{math.ceil(taken.memory_gb * 1024)}M" if taken.memory_gb else None,
            "partition": taken.partition,
            "account": taken.account,
            "qos": taken.qos,
            "constraint": taken.constraint,
        }
    return {key: value for key, value in values.items() if value is not None or key == "wckey"}


def check_time(spec: SlurmSpec, resources: ResourcesSpec) -> None:
    """Raises UserError for a time limit as `minutes` does."""
    minutes(resources.hours, spec.grace_seconds)


def minutes(hours: float, grace_seconds: int) -> int:
    """The time limit in minutes, as Slurm counts it. Raises UserError if its warning would precede any progress."""
    minutes = max(1, math.ceil(hours * 60))
    if minutes * 60 < grace_seconds + EARLY_SECONDS + START_SECONDS:
        raise UserError(
            f"resources.hours={hours:g} is a limit of {minutes} min, but Slurm warns launcher.grace_seconds="
            f"{grace_seconds} before it and up to {EARLY_SECONDS} s earlier, and a run starts in {START_SECONDS} s: "
            "it would make no progress; set resources.hours higher or launcher.grace_seconds lower"
        )
    return minutes


def groups(jobs: Iterable[J], spec: SlurmSpec) -> list[tuple[dict[str, Any], list[J]]]:
    """Jobs grouped by their parameters, in order: each group can be one array."""
    found: dict[str, tuple[dict[str, Any], list[J]]] = {}
    for job in jobs:
        values = parameters(job, spec)
        found.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(job)
    return list(found.values())
