"""What cores share beside their interface (`core_records.py`): the lines of their steps' times, and the datasets of the
embedded cores, which are known without drawing any (verl's runs on an arithmetic task name the same sets).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cppo_lab import schema
from cppo_lab.core_records import *  # noqa: F403  cores of other packages import the interface from here
from cppo_lab.core_records import PHASES, CoreChecks, Resources
from cppo_lab.errors import UserError
from cppo_lab.files import open_append
from cppo_lab.plugins import Requirement
from cppo_lab.schema import Dataset, digest
from cppo_lab.spec import ExactRun, MiniRun, RunSpec, TaskData


def require_same_task(spec: RunSpec, other: RunSpec) -> None:
    """Raises UserError if the data of `other` is of another task or vocabulary than that of a run."""
    ours, theirs = (
        [getattr(data, name, None) for name in ("task", "modulus", "spellings")]
        for data in (spec.data, other.data)
    )
    if ours != theirs:
        raise UserError(
            f"benchmark {other.data.name!r}: run {spec.run_id} trained on {spec.data.name!r}, another task or "
            "vocabulary: choose one of its own"
        )


_EMBEDDED = (
    Requirement("torch", ">=2.4,<3", "core=mini", extra="train"),
    Requirement("numpy", ">=1.26", "core=mini", extra="train"),
)
EMBEDDED = CoreChecks(requirements=lambda run, layout: _EMBEDDED)


_MEMORY = ("max_memory_allocated_gb", "max_memory_reserved_gb", "cpu_memory_used_gb")


def write_phases(folder: Path, step: int, seconds: Mapping[str, float], metrics: Mapping[str, float]) -> None:
    """Add the line of `step`; `metrics` are all of verl's, of which those on memory are kept."""
    memory = {
        name: max(values)
        for name in _MEMORY
        if (values := [value for key, value in metrics.items() if key.endswith(name)])
    }
    with open_append(folder / PHASES) as file:
        file.write(json.dumps({"step": step, "seconds": dict(seconds), "memory": memory}) + "\n")


# The code that draws them.
PROCESS = "cppo_lab.cores.exact.process"
TASKS = "cppo_lab.cores.mini.tasks"


def exact_datasets(spec: ExactRun, resources: Resources) -> tuple[Dataset, ...]:
    """The starting symbols that the run's seed draws, batch after batch, and the benchmarks' shares of them."""
    data = spec.data
    process = data.model_dump(mode="json", exclude={"name", "benchmarks"})
    process["horizon"] = spec.rollout.max_response_length
    drawn = {"process": process, "seed": spec.seed, "prompts": spec.batch.prompts}
    profile = {"problems": spec.training.t_stop * spec.batch.prompts, "seed": spec.seed, **process}
    training = Dataset(data.name, _identity(drawn), PROCESS, schema.CODE, schema.TRAINING, profile)
    count = len(data.benchmarks)
    held = []
    for i, benchmark in enumerate(data.benchmarks):
        starts = range(1 + i, data.vocabulary, count)
        name = _identity({"process": process, "starts": list(starts)})
        profile = {"problems": len(starts), **process}
        held.append(Dataset(benchmark, name, PROCESS, schema.CODE, schema.VALIDATION, profile))
    return (training, *held)


def mini_datasets(spec: MiniRun, resources: Resources) -> tuple[Dataset, ...]:
    """The training problems that the run's seed draws, batch after batch, and the held-out sets."""
    drawn = {"stream": "batches", "seed": spec.seed, "prompts": spec.batch.prompts}
    return (
        training_set(spec.data, drawn, spec.training.t_stop * spec.batch.prompts),
        *held_out_sets(spec.data),
    )


def training_set(data: TaskData, drawn: dict[str, Any], problems: int) -> Dataset:
    """The `problems` training problems of a run; `drawn` are the settings, besides the task, that determine them."""
    profile = {"problems": problems, "seed": drawn["seed"], **_parameters(data)}
    name = _identity({"training": drawn, "task": _definition(data)})
    return Dataset(data.name, name, f"{TASKS}.{data.task}", schema.CODE, schema.TRAINING, profile)


def held_out_sets(data: TaskData) -> tuple[Dataset, ...]:
    """The validation sets: the same for every run on `data`, whatever core trains it."""
    profile = {"problems": data.validation_problems, "seed": data.validation_seed, **_parameters(data)}
    return tuple(
        Dataset(
            benchmark,
            # The sets are drawn in turn and are disjoint, so its index determines a set.
            _identity({"validation": i, "task": _definition(data)}),
            f"{TASKS}.{data.task}",
            schema.CODE,
            schema.VALIDATION,
            profile,
        )
        for i, benchmark in enumerate(data.benchmarks)
    )


def _definition(data: TaskData) -> dict[str, Any]:
    """Everything that determines the problems: the number of sets does, their names do not."""
    values = data.model_dump(mode="json", exclude={"name", "benchmarks"})
    return values | {"benchmarks": len(data.benchmarks)}


def _parameters(data: TaskData) -> dict[str, int | str]:
    return data.model_dump(include={"task", "modulus", "operations", "spellings"})


def _identity(values: dict[str, Any]) -> str:
    return digest(json.dumps(values, sort_keys=True))
