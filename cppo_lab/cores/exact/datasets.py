"""The exact core's datasets: the starts that a run draws, and those of each benchmark."""

import json

from cppo_lab import schema
from cppo_lab.cores.base import Resources
from cppo_lab.schema import Dataset
from cppo_lab.spec import ExactRun
from cppo_lab.spec.run import digest

SOURCE = "cppo_lab.cores.exact.process"


def datasets(spec: ExactRun, resources: Resources) -> tuple[Dataset, ...]:
    """The starting symbols that the run's seed draws, batch after batch, and the benchmarks' shares of them."""
    data = spec.data
    process = data.model_dump(mode="json", exclude={"name", "benchmarks"})
    process["horizon"] = spec.rollout.max_response_length
    drawn = {"process": process, "seed": spec.seed, "prompts": spec.batch.prompts}
    profile = {"problems": spec.training.t_stop * spec.batch.prompts, "seed": spec.seed, **process}
    training = Dataset(data.name, _digest(drawn), SOURCE, schema.CODE, schema.TRAINING, profile)
    count = len(data.benchmarks)
    held = []
    for i, benchmark in enumerate(data.benchmarks):
        starts = range(1 + i, data.vocabulary, count)
        name = _digest({"process": process, "starts": list(starts)})
        profile = {"problems": len(starts), **process}
        held.append(Dataset(benchmark, name, SOURCE, schema.CODE, schema.VALIDATION, profile))
    return (training, *held)


def _digest(values: dict[str, object]) -> str:
    return digest(json.dumps(values, sort_keys=True))
