"""Runs whose curves look like training, without any: for tests of what is done with runs."""

import math

from cppo_lab import schema
from cppo_lab.answers.texts import Texts, texts_name, write
from cppo_lab.spec import RunSpec
from tests.answers import made

TOPS = {"grpo": 0.5, "dppo": 0.65, "cppo": 0.8}
LAST_STEP = 40
HOSTILE_ANSWER = "<img src=x onerror=alert(1)>"


def score(spec: RunSpec, step: int) -> float:
    """The validation of a run at a step: it saturates, at another height for each rule and seed."""
    return TOPS[spec.rule.name] * (1 - math.exp(-step / 12)) + 0.01 * spec.seed


def train(spec: RunSpec, recorder: object, resources: object) -> schema.Outcome:
    """In place of a trainer core."""
    from cppo_lab.runs.recorder import Recorder

    assert isinstance(recorder, Recorder)
    recorder.begin(None)
    for step in range(LAST_STEP + 1):
        metrics = {}
        if step % 4 == 0:
            metrics[schema.validation_metric(schema.MEAN, spec.validation.samples)] = score(spec, step)
        if step:
            metrics |= {
                "train/reward": score(spec, step) * 0.9,
                "train/response_length": 30 + step / 5,
                "train/relative_logprob_error": math.sqrt(step) / 100,
                "rule/masked_fraction": 0.02 + step / 1000,
            }
        recorder.log(step, metrics)
    last = made.sample(
        step=LAST_STEP, prompt=HOSTILE_ANSWER, response=f"{spec.rule.name} at step {LAST_STEP}"
    )
    recorder.file(texts_name(LAST_STEP), write(Texts(LAST_STEP, (last,))))
    return schema.Outcome(schema.DONE, LAST_STEP)
