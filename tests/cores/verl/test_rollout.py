"""Decoding against a plain forward pass, the server's batching, and the weights it takes."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, Qwen3ForCausalLM
from verl.workers.config import RolloutConfig
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl.rollout import TOPK_IDS, TOPK_LOGP
from cppo_lab.cores.verl.rollout.cpu import (
    CpuServer,
    Request,
    SamplingRule,
    decode,
    draw,
    end_tokens,
    load_named_tensors,
    log_policy,
    truncate,
)
from tests.conftest import user_error
from tests.cores.test_mini import TOKENIZER, check_frequencies, nucleus, seeded
from tests.cores.verl.conftest import with_experts
from tests.waiting import CEILING_SECONDS

EOS = TOKENIZER.eos
PLAIN = SamplingRule()
LIMITS = RolloutConfig("cppo_cpu", prompt_length=8, response_length=12, max_num_seqs=64), 256
TRAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
PROMPTS = [[3, 5, 15, 6], [4, 7], [3, 8, 9, 10, 11, 12, 4], [5]]


@pytest.fixture
def model(tiny_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


def recomputed(
    model: PreTrainedModel, prompt: list[int], tokens: list[int], temperature: float
) -> torch.Tensor:
    """log mu [n, V] by one forward pass over prompt and response, one row per response token."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].double() / temperature, -1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("topk", [5, TOKENIZER.vocabulary])
def test_logp_and_topk_are_those_of_a_full_forward_pass(
    model: PreTrainedModel, temperature: float, topk: int
) -> None:
    # Different prompt lengths, limits and stops: rows are padded, and leave the batch at different steps.
    requests = [Request(prompt, 6 + 3 * i, seed=i) for i, prompt in enumerate(PROMPTS)]
    together, moved = decode(model, requests, SamplingRule(temperature, topk=topk), [EOS]), []
    for asked, response in zip(requests, together, strict=True):
        expected = recomputed(model, list(asked.prompt), response.tokens, temperature)
        n = len(response.tokens)
        ids, logp = np.stack(response.topk_ids), np.stack(response.topk_logp)
        assert ids.shape == logp.shape == (n, topk)
        np.testing.assert_allclose(response.logp, expected[range(n), response.tokens], atol=5e-5)
        np.testing.assert_allclose(logp, expected.topk(topk, -1).values, atol=5e-5)
        np.testing.assert_allclose(logp, expected.gather(-1, torch.tensor(ids).long()), atol=5e-5)
        moved += np.abs(logp[1:] - logp[:-1]).max(1).tolist()
    assert max(moved) > 1e-2  # neighbouring states differ, so rows moved by one would have failed
    # A sample depends on its seed and not on its batch.
    alone = [decode(model, [asked], SamplingRule(temperature), [EOS])[0].tokens for asked in requests]
    assert [response.tokens for response in together] == alone
    reseeded = [Request(list(asked.prompt), 12, seed=100) for asked in requests]
    other = decode(model, reseeded, SamplingRule(temperature), [EOS])
    assert [response.tokens for response in other] != alone


def test_a_response_ends_with_its_first_stop_token_or_at_its_own_limit(model: PreTrainedModel) -> None:
    def tokens(*limits: int, stop: tuple[int, ...] = (), rule: SamplingRule = PLAIN) -> list[list[int]]:
        requests = [Request(PROMPTS[2], limit, seed=1) for limit in limits]
        return [response.tokens for response in decode(model, requests, rule, stop)]

    [free] = tokens(20)
    assert len(free) == 20
    assert tokens(20, stop=(free[6],)) == [free[: free.index(free[6]) + 1]]
    assert tokens(1, 7, 20) == [free[:1], free[:7], free]
    [greedy] = tokens(8, rule=SamplingRule(temperature=0.0))
    assert recomputed(model, PROMPTS[2], greedy, 1.0).argmax(-1).tolist() == greedy


@pytest.mark.parametrize("rule", [PLAIN, SamplingRule(0.6, 0.9)])
def test_draws_follow_the_truncated_softmax(rule: SamplingRule) -> None:
    logits = torch.randn(1, 12, generator=seeded(0)) * 2
    log_mu = log_policy(logits, rule)
    uniforms = torch.tensor(np.random.default_rng(1).random(40_000))
    tokens = draw(log_mu.expand(len(uniforms), -1), rule, uniforms)
    check_frequencies(tokens, nucleus(log_mu[0].exp().tolist(), rule.top_p))


def test_extreme_uniforms_never_draw_an_impossible_token() -> None:
    log_mu = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    last = np.nextafter(1.0, 0.0)
    assert draw(log_mu.expand(2, -1), PLAIN, torch.tensor([0.0, last])).tolist() == [1, 1]
    assert truncate(torch.tensor([[0.5, 0.25, 0.25]]), 0.5).tolist() == [[0.5, 0.0, 0.0]]


def test_diverged_weights_fail(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="diverged"):
        decode(model, [Request([3], 4)], PLAIN, [EOS])


async def all_of(
    server: CpuServer, *calls: tuple[list[int], dict[str, Any]], failing: bool = False
) -> list[Any]:
    requests = (server.generate(prompt, dict(params), str(i)) for i, (prompt, params) in enumerate(calls))
    return await asyncio.gather(*requests, return_exceptions=failing)


def ask(server: CpuServer, *calls: tuple[list[int], dict[str, Any]]) -> list[TokenOutput]:
    return asyncio.run(all_of(server, *calls))


def test_requests_of_different_rules_are_served_at_once(model: PreTrainedModel) -> None:
    server = CpuServer(model, *LIMITS, {EOS})
    calls = [(prompt, TRAIN | {"seed": i, "cppo_topk": 4}) for i, prompt in enumerate(PROMPTS)]
    calls += [(prompt, TRAIN | {"temperature": 0, "logprobs": False}) for prompt in PROMPTS]
    outputs = ask(server, *calls)
    for i, (prompt, sampled, best) in enumerate(zip(PROMPTS, outputs[:4], outputs[4:], strict=True)):
        limit = min(12, 8 + 12 - len(prompt))
        [expected] = decode(model, [Request(prompt, limit, seed=i)], SamplingRule(topk=4), [EOS])
        assert sampled.token_ids == expected.tokens
        np.testing.assert_allclose(sampled.log_probs, expected.logp, atol=5e-5)
        np.testing.assert_array_equal(sampled.extra_fields[TOPK_IDS], expected.topk_ids)
        assert sampled.extra_fields[TOPK_LOGP].dtype == np.float32
        [greedy] = decode(model, [Request(prompt, limit)], SamplingRule(temperature=0.0), [EOS])
        assert best.token_ids == greedy.tokens
        assert best.log_probs is None and TOPK_IDS not in best.extra_fields
        assert best.stop_reason == "completed"


def test_limits_are_those_of_verl(model: PreTrainedModel) -> None:
    server = CpuServer(model, *LIMITS, ())
    free = TRAIN | {"seed": 0}
    calls = [
        ([3] * 4, free),  # response_length
        ([3] * 8 + [4] * 5, free),  # a prompt beyond prompt_length: what is left of the sum
        ([3], free | {"max_tokens": 5}),
        ([3] * 250, free | {"max_tokens": 50}),  # the model's context
    ]
    assert [len(output.token_ids) for output in ask(server, *calls)] == [12, 7, 5, 6]


@pytest.mark.parametrize(
    "prompt, change, message",
    [
        ([3], {"repetition_penalty": 1.2, "top_k": 4}, "top_k=4, repetition_penalty=1.2"),
        ([3], {"cppo_topk": 17}, "vocabulary of 16"),
        ([3] * 256, {}, "max_model_len=256"),
    ],
)
def test_what_the_server_cannot_do_is_refused(
    model: PreTrainedModel, prompt: list[int], change: dict[str, Any], message: str
) -> None:
    with user_error(message):
        ask(CpuServer(model, *LIMITS, {EOS}), (prompt, TRAIN | change))


def test_a_batch_that_fails_and_a_client_that_gives_up_harm_no_others(model: PreTrainedModel) -> None:
    server = CpuServer(model, *LIMITS, {EOS})
    # Token 999 has no embedding; the greedy request is decoded apart.
    calls = [([3], TRAIN), ([999], TRAIN), ([4], TRAIN | {"temperature": 0})]

    async def answers() -> Any:
        failed, too, apart = await asyncio.wait_for(all_of(server, *calls, failing=True), CEILING_SECONDS)
        assert isinstance(failed, IndexError) and isinstance(too, IndexError)
        assert isinstance(apart, TokenOutput)
        stays = asyncio.create_task(server.generate([3], dict(TRAIN), "a"))
        leaves = asyncio.create_task(server.generate([4], dict(TRAIN), "b"))
        await asyncio.sleep(0)
        leaves.cancel()
        return await asyncio.wait_for(stays, CEILING_SECONDS)

    assert asyncio.run(answers()).token_ids


def test_experts_come_one_by_one(model: PreTrainedModel) -> None:
    """As verl takes them apart."""
    source, target = with_experts(model.config, 12), with_experts(model.config, 12)
    sent = dict(unfuse_moe_params(source.state_dict().items(), "qwen3_moe"))
    assert "model.layers.1.mlp.experts.11.up_proj.weight" in sent
    load_named_tensors(target, sent)
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value), name
    del sent["model.layers.1.mlp.gate.weight"]
    with user_error(r"missing \['model.layers.1.mlp.gate.weight'\], unexpected none"):
        load_named_tensors(target, sent)


def test_wrong_weights_are_named(model: PreTrainedModel) -> None:
    weights = dict(model.state_dict())
    norm = weights.pop("model.norm.weight")
    with user_error(r"missing \['model.norm.weight'\], unexpected \['norm'\]"):
        load_named_tensors(model, weights | {"norm": norm})
    with pytest.raises(RuntimeError, match=r"size mismatch for model\.norm\.weight"):
        load_named_tensors(model, weights | {"model.norm.weight": norm[:31]})
    whole = weights | {"model.norm.weight": norm}
    for tied in ("lm_head.weight", "model.embed_tokens.weight"):
        load_named_tensors(model, {name: whole[name] for name in whole.keys() - {tied}})
    untied = Qwen3ForCausalLM(type(model.config)(**model.config.to_dict() | {"tie_word_embeddings": False}))
    del whole["lm_head.weight"]
    with user_error(r"missing \['lm_head.weight'\]"):
        load_named_tensors(untied, whole)


def test_end_tokens_are_the_tokenizers_and_the_generation_configs() -> None:
    assert end_tokens(1, None) == {1}
    assert end_tokens(1, GenerationConfig(eos_token_id=4)) == {1, 4}
    assert end_tokens(1, GenerationConfig(eos_token_id=[4, 5])) == {1, 4, 5}
