"""The datasets of the embedded cores, known without drawing any: the exact core's starts, and arithmetic problems.

Verl's runs on an arithmetic task name the same sets.
"""

import json
from typing import Any

from cppo_lab import schema
from cppo_lab.cores.base import Resources
from cppo_lab.schema import Dataset
from cppo_lab.spec import ExactRun, MiniRun, TaskData
from cppo_lab.spec.run import digest

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
    training = Dataset(data.name, digest(_text(drawn)), PROCESS, schema.CODE, schema.TRAINING, profile)
    count = len(data.benchmarks)
    held = []
    for i, benchmark in enumerate(data.benchmarks):
        starts = range(1 + i, data.vocabulary, count)
        name = digest(_text({"process": process, "starts": list(starts)}))
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
    name = digest(_text({"training": drawn, "task": _definition(data)}))
    return Dataset(data.name, name, f"{TASKS}.{data.task}", schema.CODE, schema.TRAINING, profile)


def held_out_sets(data: TaskData) -> tuple[Dataset, ...]:
    """The validation sets: the same for every run on `data`, whatever core trains it."""
    profile = {"problems": data.validation_problems, "seed": data.validation_seed, **_parameters(data)}
    return tuple(
        Dataset(
            benchmark,
            # The sets are drawn one after the other and are disjoint, so its index determines a set.
            digest(_text({"validation": i, "task": _definition(data)})),
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
    return {
        "task": data.task,
        "modulus": data.modulus,
        "operations": data.operations,
        "spellings": data.spellings,
    }


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
