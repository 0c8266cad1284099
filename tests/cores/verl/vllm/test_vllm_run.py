"""A whole run with verl's own trainer and a real vLLM, through `cppo launch`.

How a run that is killed continues does not depend on who samples: tests/cores/verl/test_core.py.
"""

import pytest

from cppo_lab import schema
from tests.cores.verl.conftest import running
from tests.cores.verl.story import EVERY, SAMPLES, STEPS, Trained, train
from tests.requirement import VLLM, VLLM_PYTHON

VERSION = "0.28.0+cpu"

pytestmark = pytest.mark.slow

# One minibatch a step: the policy that is trained is the one that has sampled, to the last bit but rounding.
OVERRIDES = ("layout=cpu_vllm", "batch.minibatch_prompts=8", "model.architecture.head_dim=32")
SCORE = schema.validation_metric(schema.MEAN, SAMPLES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    VLLM.demand()
    return train(tmp_path_factory.mktemp("vllm"), *OVERRIDES, python=str(VLLM_PYTHON))


def test_it_ends_with_every_step(trained: Trained) -> None:
    assert trained.run.info.status == "FINISHED", trained.output[-5000:]
    assert [step for step, _ in trained.history(SCORE)] == list(range(0, STEPS + 1, EVERY))
    assert [step for step, _ in trained.history("train/reward")] == list(range(1, STEPS + 1))


def test_new_weights_reach_vllm_after_every_update(trained: Trained) -> None:
    """Its log-probabilities of each step are the trainer's of the same step, which has moved since the one before."""
    errors, norms = trained.history("train/relative_logprob_error"), trained.history("train/grad_norm")
    assert len(errors) == len(norms) >= 3
    assert all(norm > 0 for _, norm in norms)
    assert max(value for _, value in errors) < 1e-4
    assert max(value for _, value in trained.history("rule/divergence_mean")) < 1e-5
    assert max(value for _, value in trained.history("rule/masked_fraction")) == 0


def test_it_was_vllm(trained: Trained) -> None:
    tags = trained.run.data.tags
    assert tags["cppo.layout"].startswith("cpu_vllm@")
    assert tags[schema.TAG_ROLLOUT] == f"vllm {VERSION}, model runner 1"
    assert float(tags[schema.TAG_SELF_TEST].split()[3]) < 1e-4  # log mu within ... nats
    logs = [path.read_text() for path in (trained.own_folder / "attempts").glob("*_log.out")]
    assert len(logs) == 1 and "TopKServer" in logs[0]


def test_nothing_is_left_running(trained: Trained) -> None:
    assert [line for line in running(VLLM_PYTHON.parent.parent) if "cppo" in line] == []
