"""vLLM with Top-K, on a stand-in for vLLM: its output types and verl's own `generate` around a fake engine."""

import asyncio
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cppo_lab.cores.verl.rollout.settings import TOPK_IDS, TOPK_LOGP
from cppo_lab.cores.verl.rollout.vllm_topk import CAPTURE, TopKEngine, flat_topk
from cppo_lab.errors import UserError
from tests.cores.verl import stand_in_vllm

pytestmark = pytest.mark.verl
N, V, K = 30, 50, 20
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
TRAIN = SAMPLING | {"cppo_topk": K, "cppo_topk_dtype": "float16", "seed": 3}


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(N, V, generator=torch.Generator().manual_seed(0)) * 2


@pytest.fixture
def tokens() -> list[int]:
    return np.random.default_rng(0).integers(0, V, N).tolist()


@pytest.fixture
def server_module() -> Iterator[Any]:
    with stand_in_vllm.installed():
        from cppo_lab.cores.verl.rollout import vllm_server

        yield vllm_server
    sys.modules.pop("cppo_lab.cores.verl.rollout.vllm_server", None)


def server(module: Any, logits: torch.Tensor, tokens: list[int], **changes: Any) -> Any:
    """verl's server with all it reads in `generate`, around the stand-in engine."""
    made = object.__new__(module.TopKServer)
    config = {
        "max_model_len": 128,
        "prompt_length": 16,
        "response_length": 64,
        "full_determinism": False,
        "logprobs_mode": "processed_logprobs",
        "enable_rollout_routing_replay": False,
        "mtp": None,
        "engine_kwargs": {"cppo_lab": {"topk": K}, "vllm": {}},
    } | changes
    made.config = SimpleNamespace(get=lambda name, default=None: config.get(name, default), **config)
    made.model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
    made._disaggregation_role, made._pd_decode_peers = "null", []
    made._submission_paused, made._admitting, made.replica_rank, made.global_steps = False, 0, 0, 4
    made.engine = TopKEngine(stand_in_vllm.Engine(logits, tokens))
    return made


def test_flat_columns_are_taken_apart(logits: torch.Tensor, tokens: list[int]) -> None:
    logp = torch.log_softmax(logits, -1)
    sampled, ids, values = flat_topk(stand_in_vllm.flat(logp.numpy(), tokens, K), tokens, K)
    expected = logp.topk(K, -1)
    np.testing.assert_array_equal(sampled, logp[range(N), tokens])
    np.testing.assert_array_equal(ids, expected.indices)
    np.testing.assert_array_equal(values, expected.values)
    assert ids.dtype == np.int32 and values.dtype == np.float32


def test_misaligned_columns_are_refused(logits: torch.Tensor, tokens: list[int]) -> None:
    made = stand_in_vllm.flat(torch.log_softmax(logits, -1).numpy(), tokens, K)
    with pytest.raises(ValueError, match="do not begin with the sampled token"):
        flat_topk(made, tokens[1:] + tokens[:1], K)
    with pytest.raises(ValueError, match="for 30 tokens of 29"):
        flat_topk(made, tokens[1:], K)
    with pytest.raises(ValueError, match="not 20 per token"):
        flat_topk(made, tokens, K - 1)


def test_a_training_request_brings_its_topk(
    server_module: Any, logits: torch.Tensor, tokens: list[int]
) -> None:
    made = server(server_module, logits, tokens)
    output = asyncio.run(made.generate(list(range(5)), dict(TRAIN), "a"))
    logp = torch.log_softmax(logits, -1)
    assert output.token_ids == tokens and output.stop_reason == "completed"
    np.testing.assert_allclose(output.log_probs, logp[range(N), tokens], rtol=1e-6)
    np.testing.assert_array_equal(output.extra_fields[TOPK_IDS], logp.topk(K, -1).indices)
    np.testing.assert_array_equal(output.extra_fields[TOPK_LOGP], logp.topk(K, -1).values.half())
    assert output.extra_fields["global_steps"] == 4
    asked = made.engine.asked[0]
    assert (asked.logprobs, asked.flat_logprobs, asked.detokenize, asked.seed) == (K, True, False, 3)
    assert CAPTURE.get() is None


def test_requests_at_once_keep_their_own_topk(
    server_module: Any, logits: torch.Tensor, tokens: list[int]
) -> None:
    made = server(server_module, logits, tokens)

    async def three() -> list[Any]:
        wanted = [TRAIN | {"cppo_topk": 3}, dict(SAMPLING), TRAIN | {"cppo_topk": 7, "max_tokens": 5}]
        return await asyncio.gather(
            *(made.generate([1, 2], params, str(i)) for i, params in enumerate(wanted))
        )

    first, second, third = asyncio.run(three())
    assert first.extra_fields[TOPK_IDS].shape == (N, 3)
    assert TOPK_IDS not in second.extra_fields and len(second.log_probs) == N
    assert third.extra_fields[TOPK_IDS].shape == (5, 7) and len(third.token_ids) == 5
    assert [asked.logprobs for asked in made.engine.asked] == [3, 0, 7]
    assert not made.engine.asked[1].flat_logprobs


@pytest.mark.parametrize(
    ("config", "request_", "message"),
    [
        ({"logprobs_mode": "raw_logprobs"}, {}, "logprobs_mode=processed_logprobs"),
        ({}, {"top_p": 0.9}, "rollout.top_p=0.9"),
        ({}, {"top_k": 50}, "rollout.top_k=50"),
        ({}, {"repetition_penalty": 1.1}, "rollout.repetition_penalty=1.1"),
    ],
)
def test_a_topk_that_is_not_mus_is_refused(
    server_module: Any,
    logits: torch.Tensor,
    tokens: list[int],
    config: dict[str, Any],
    request_: dict[str, Any],
    message: str,
) -> None:
    made = server(server_module, logits, tokens, **config)
    with pytest.raises(UserError, match=message):
        asyncio.run(made.generate([1], TRAIN | request_, "a"))
    asyncio.run(made.generate([1], SAMPLING | request_, "b"))  # validation may sample as it likes


@pytest.mark.parametrize(
    ("topk", "given", "expected"), [(20, {}, None), (64, {}, 64), (64, {"max_logprobs": 80}, 80)]
)
def test_vllm_is_told_to_allow_the_topk(
    server_module: Any,
    logits: torch.Tensor,
    tokens: list[int],
    topk: int,
    given: dict[str, int],
    expected: int | None,
) -> None:
    made = server(server_module, logits, tokens, engine_kwargs={"cppo_lab": {"topk": topk}})
    engine_kwargs = dict(given)
    made._preprocess_engine_kwargs(engine_kwargs)
    assert engine_kwargs.get("max_logprobs") == expected


def test_the_engine_behind_stays_in_reach(logits: torch.Tensor, tokens: list[int]) -> None:
    engine = stand_in_vllm.Engine(logits, tokens)
    assert TopKEngine(engine).logp is engine.logp
