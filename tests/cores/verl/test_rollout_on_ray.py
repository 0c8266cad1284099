"""The rollout as verl runs it: two servers, verl's client and agent loop workers, TransferQueue, its weight updates."""

import pytest

from tests.cores.verl.conftest import OnRay
from tests.cores.verl.on_ray import PROBLEMS

pytestmark = [pytest.mark.verl, pytest.mark.slow]
RESPONSES, K = 4, 8  # of tiny_qwen3: per problem, and most likely tokens kept per response token


def test_responses_reach_transfer_queue_with_their_topk(on_ray: OnRay) -> None:
    seen = on_ray.found("sampled")
    sessions = [f"{index}_{session}_0" for index in range(PROBLEMS) for session in range(RESPONSES)]
    assert seen["sessions"] == sessions
    assert {"rollout_log_probs", "rollout_topk_ids", "rollout_topk_logp"} <= set(seen["columns"])
    assert seen["dtypes"] == ["torch.int32", "torch.float16"]
    assert seen["rows"] == [[length, K] for length in seen["lengths"]]
    assert len(set(seen["lengths"])) > 1  # rows of different length in one batch
    assert seen["repeated"] and seen["validations_equal"] and seen["sessions_differ"]
    assert not {"rollout_topk_ids", "rollout_topk_logp"} & set(seen["validation_columns"])


def test_log_probabilities_are_those_of_the_model_that_verl_pushed(on_ray: OnRay) -> None:
    before, after = on_ray.found("sampled"), on_ray.found("sampled_after")
    for one in (before, after):
        sampled, kept = one["errors"]
        assert sampled < 1e-3
        assert kept < 1e-2  # float16: three digits
    assert after["missing"] == []
    assert after["moved"] > 1e-3
    assert before["steps"] == [0]
    assert after["steps"] == [on_ray.found("trained")[-1][1]]
