"""The embedded core logs the metrics between sampler and trainer: which, of which state, and not where they are off."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cppo_lab import schema
from cppo_lab.cores.mini.model import Rollout
from cppo_lab.cores.mini.trainer import Trainer
from tests.cores.test_mini import trainer_of

ERROR = "token_mult_prob_error"


def of_mismatch(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(schema.MISMATCH)}


def error(trainer: Trainer, rollout: Rollout) -> float:
    """token_mult_prob_error of these responses at the trainer's weights, by a loop over tokens."""
    with torch.no_grad():
        logits = rollout.logits(trainer.model, trainer.tokenizer.pad).double()
    logp = logits.log_softmax(-1)
    values = [
        math.exp(abs(float(logp[b, t, rollout.responses[b, t]]) - float(rollout.logp[b, t])))
        for b, length in enumerate(rollout.lengths.tolist())
        for t in range(length)
    ]
    return math.fsum(values) / len(values)


def test_the_state_before_the_update_is_that_of_the_first_minibatch(tmp_path: Path) -> None:
    """mu is a lower precision of pi: the gap of the engines is there before anything has been trained."""
    trainer = trainer_of(tmp_path, "rollout.precision=bfloat16")
    batch = trainer.collect()
    batch = replace(batch, keep=torch.ones_like(batch.keep))
    rows = trainer.spec.batch.minibatch_prompts * trainer.spec.batch.responses
    assert rows < len(batch.keep)
    before = error(trainer, batch.rollout.select(torch.arange(rows)))
    found = trainer.update(batch)
    assert 1.0001 < before < 1.03  # that of bfloat16
    assert found[schema.mismatch_metric(ERROR, before_update=True)] == pytest.approx(before, rel=1e-5)
    assert 0 < found[schema.DIVERGENCE_BEFORE] < found[schema.DIVERGENCE_BEFORE_P90]
    assert found[schema.DIVERGENCE_BEFORE] < found["rule/divergence_mean"]
    assert found[schema.mismatch_metric(ERROR)] != found[schema.mismatch_metric(ERROR, before_update=True)]


def test_one_precision_and_the_same_weights_leave_rounding(tmp_path: Path) -> None:
    """Every metric of the schema is logged, of both states and of each third."""
    trainer = trainer_of(tmp_path)
    batch = trainer.collect()
    trainer.collect = lambda: batch  # type: ignore[method-assign]
    metrics = trainer.step()
    before, after = (schema.mismatch_metric(ERROR, before_update=state) for state in (True, False))
    assert metrics[before] == pytest.approx(1, abs=1e-5)
    assert metrics[after] > 1  # later minibatches are off-policy
    assert metrics[schema.DIVERGENCE_BEFORE] < 1e-5
    assert metrics[schema.DIVERGENCE_BEFORE_P90] == 0
    plain = [name.name for name in schema.METRICS if name.name.startswith(schema.MISMATCH)]
    assert of_mismatch(metrics).keys() == {
        schema.mismatch_metric(name.removeprefix(schema.MISMATCH), third, before_update=state)
        for name in plain
        for third in ("", *schema.THIRDS)
        for state in (False, True)
    }
    lengths, longest = batch.rollout.lengths, trainer.spec.rollout.max_response_length
    assert metrics["train/truncated_share"] == pytest.approx(float((lengths == longest).double().mean()))


def test_switched_off_they_are_left_out_and_change_nothing(tmp_path: Path) -> None:
    on, off = trainer_of(tmp_path), trainer_of(tmp_path, mismatch=False)
    for _ in range(2):
        with_them, without = on.step(), off.step()
        assert of_mismatch(with_them) and not of_mismatch(without)
        for name, value in without.items():
            assert name.startswith("perf/") or with_them[name] == value
