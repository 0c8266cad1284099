"""A core of another package: a policy that learns by itself, in pure Python. The tests install it in a folder."""

import json
import random
from typing import Literal

from pydantic import model_validator

from cppo_lab import schema
from cppo_lab.cores.base import CHECKPOINT, MetricSink, Resources
from cppo_lab.files import replace_file
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec, Spec, SyntheticModel, TaskData


class AcmeSettings(Spec):
    """A section of its own in the configuration."""

    noise: float


class AcmeRun(RunSpec):
    """What it trains."""

    core: Literal["acme"]
    model: SyntheticModel
    data: TaskData
    acme: AcmeSettings

    @model_validator(mode="after")
    def _check_acme(self) -> "AcmeRun":
        if self.rollout.staleness:
            raise ValueError(
                f"rollout.staleness={self.rollout.staleness}: acme samples from the current policy"
            )
        return self


def train(spec: AcmeRun, sink: MetricSink, resources: Resources) -> Outcome:
    """Each step adds noise drawn from the seed; the state is one number and the steps done."""
    path = resources.folder / CHECKPOINT
    done, skill, rows = -1, 0.2, []
    if path.exists():
        done, skill, rows = json.loads(path.read_text())
    sink.begin(None if done < 0 else done)
    for step, metrics in rows:
        sink.log(step, metrics)
    for step in range(done + 1, spec.training.t_stop + 1):
        chance = random.Random(f"{spec.seed} {step}").random()
        skill = min(1.0, skill + spec.acme.noise * chance)
        metrics = {"train/reward": skill, "perf/step_seconds": 0.1 + chance} if step else {}
        if step % spec.validation.every == 0:
            for name in (schema.MEAN, *spec.data.benchmarks):
                metrics[schema.validation_metric(name, spec.validation.samples)] = skill
        rows.append((step, metrics))
        sink.log(step, metrics)
        if step % spec.validation.every == 0:
            replace_file(path, json.dumps([step, skill, rows]))
    sink.artifact("diagnostics/skill.json", {"skill": skill})
    return Outcome(schema.DONE, spec.training.t_stop)


def datasets(spec: AcmeRun, resources: Resources) -> tuple[schema.Dataset, ...]:
    """It reads none."""
    return ()
