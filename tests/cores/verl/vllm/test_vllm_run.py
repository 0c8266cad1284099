"""A whole run with verl's own trainer and a real vLLM, through `cppo launch`: killed on its way, and continued."""

import contextlib
from pathlib import Path

import pytest

from cppo_lab import schema
from tests.cores.verl.story import EVERY, KILLED_AFTER, SAMPLES, STEPS, Story, tell
from tests.requirement import VLLM, VLLM_PYTHON

VERSION = "0.28.0+cpu"

pytestmark = pytest.mark.slow

# One minibatch a step: the policy that is trained is the one that has sampled, to the last bit but rounding.
OVERRIDES = ("layout=cpu_vllm", "batch.minibatch_prompts=8", "model.architecture.head_dim=32")
SCORE = schema.validation_metric(schema.MEAN, SAMPLES)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    VLLM.demand()
    return tell(tmp_path_factory.mktemp("vllm"), *OVERRIDES, python=str(VLLM_PYTHON))


def test_a_run_is_killed_and_continues(story: Story) -> None:
    assert story.killed == list(range(KILLED_AFTER + 1))
    assert story.run.info.run_id == story.first.info.run_id
    assert story.run.info.status == "FINISHED", story.output[-5000:]
    assert [step for step, _ in story.history(SCORE)] == list(range(0, STEPS + 1, EVERY))
    assert [step for step, _ in story.history("train/reward")] == list(range(1, STEPS + 1))


def test_new_weights_reach_vllm_after_every_update(story: Story) -> None:
    """Its log-probabilities of each step are the trainer's of the same step, which has moved since the one before."""
    errors, norms = story.history("train/relative_logprob_error"), story.history("train/grad_norm")
    assert len(errors) == len(norms) >= 3
    assert all(norm > 0 for _, norm in norms)
    assert max(value for _, value in errors) < 1e-4
    assert max(value for _, value in story.history("rule/divergence_mean")) < 1e-5
    assert max(value for _, value in story.history("rule/masked_fraction")) == 0


def test_it_was_vllm(story: Story) -> None:
    tags = story.run.data.tags
    assert tags["cppo.layout"].startswith("cpu_vllm@")
    assert tags[schema.TAG_ROLLOUT] == f"vllm {VERSION}, model runner 1"
    assert float(tags[schema.TAG_SELF_TEST].split()[3]) < 1e-4  # log mu within ... nats
    logs = [path.read_text() for path in (story.own_folder / "attempts").glob("*_log.out")]
    assert len(logs) == 2
    assert all("TopKServer" in log for log in logs)


def test_nothing_is_left_running(story: Story) -> None:
    mine = str(VLLM_PYTHON.parent.parent).encode()
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if mine in (words := path.read_bytes()) and b"cppo" in words:
                left.append(path.parent.name)
    assert left == []
