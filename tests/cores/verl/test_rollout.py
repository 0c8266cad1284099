"""Decoding against a plain forward pass, the server's batching, and the weights it takes."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, Qwen3ForCausalLM
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl.rollout.cpu import (
    CpuServer,
    Limits,
    Request,
    SamplingRule,
    decode,
    draw,
    end_tokens,
    load_named_tensors,
    log_policy,
    truncate,
)
from cppo_lab.cores.verl.rollout.settings import TOPK_IDS, TOPK_LOGP, RolloutSettings
from cppo_lab.errors import UserError
from tests.cores.verl.conftest import EOS
from tests.waiting import CEILING_SECONDS

pytestmark = pytest.mark.verl

NO_STOP: frozenset[int] = frozenset()
PLAIN = SamplingRule()
LIMITS = Limits(prompt_length=8, response_length=12, max_model_len=256, max_num_seqs=64)
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
@pytest.mark.parametrize("topk", [5, 40])
def test_logp_and_topk_are_those_of_a_full_forward_pass(
    model: PreTrainedModel, temperature: float, topk: int
) -> None:
    # Different prompt lengths, limits and stops: rows are padded, and leave the batch at different steps.
    requests = [Request(p, 6 + 3 * i, frozenset({EOS}), seed=i) for i, p in enumerate(PROMPTS)]
    for request, made in zip(requests, decode(model, requests, SamplingRule(temperature), topk), strict=True):
        expected = recomputed(model, list(request.prompt), made.tokens, temperature)
        n = len(made.tokens)
        np.testing.assert_allclose(made.logp, expected[range(n), made.tokens], atol=1e-5)
        assert made.topk_ids is not None and made.topk_logp is not None
        assert made.topk_ids.shape == made.topk_logp.shape == (n, topk)
        np.testing.assert_allclose(made.topk_logp, expected.topk(topk, -1).values, atol=1e-5)
        np.testing.assert_allclose(
            made.topk_logp, expected.gather(-1, torch.tensor(made.topk_ids).long()), atol=1e-5
        )
        if n > 1:  # neighbouring states differ, so rows moved by one would have failed
            assert np.abs(made.topk_logp[1:] - made.topk_logp[:-1]).max() > 1e-2


def test_on_policy_divergence_is_zero_only_for_the_aligned_rows(model: PreTrainedModel) -> None:
    made = decode(model, [Request(PROMPTS[0], 12, NO_STOP, seed=3)], PLAIN, 20)[0]
    expected = recomputed(model, PROMPTS[0], made.tokens, 1.0)
    assert made.topk_ids is not None and made.topk_logp is not None
    for shift, aligned in ((0, True), (1, False), (-1, False)):
        ids, logp = (torch.tensor(np.roll(part, shift, 0)) for part in (made.topk_ids, made.topk_logp))
        variation = 0.5 * (expected.gather(-1, ids.long()).exp() - logp.exp()).abs().sum(-1)
        assert variation.max() < 5e-6 if aligned else variation.max() > 0.05


def test_a_sample_depends_on_its_seed_and_not_on_its_batch(model: PreTrainedModel) -> None:
    requests = [Request(PROMPTS[i % 4], 10, frozenset({EOS}), seed=i) for i in range(12)]
    together = decode(model, requests, PLAIN, 0)
    alone = [decode(model, [request], PLAIN, 0)[0] for request in requests]
    assert [made.tokens for made in together] == [made.tokens for made in alone]
    other = decode(
        model, [Request(r.prompt, 10, r.stop, seed=100 + i) for i, r in enumerate(requests)], PLAIN, 0
    )
    assert [made.tokens for made in other] != [made.tokens for made in together]


def test_a_response_ends_with_its_first_stop_token_or_at_its_own_limit(model: PreTrainedModel) -> None:
    free = decode(model, [Request(PROMPTS[0], 20, NO_STOP, seed=1)], PLAIN, 0)[0].tokens
    assert len(free) == 20
    stop = free[6]
    cut = decode(model, [Request(PROMPTS[0], 20, frozenset({stop}), seed=1)], PLAIN, 3)[0]
    assert cut.tokens == free[: free.index(stop) + 1]
    assert cut.topk_ids is not None and len(cut.topk_ids) == len(cut.logp) == len(cut.tokens)
    limits = [1, 7, 20]
    made = decode(model, [Request(PROMPTS[0], limit, NO_STOP, seed=1) for limit in limits], PLAIN, 0)
    assert [one.tokens for one in made] == [free[:limit] for limit in limits]


def test_greedy_takes_the_most_likely_token(model: PreTrainedModel) -> None:
    tokens: list[int] = []
    for _ in range(8):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([PROMPTS[2] + tokens])).logits[0, -1].argmax()))
    made = decode(model, [Request(PROMPTS[2], 8, NO_STOP)], SamplingRule(temperature=0.0), 0)[0]
    assert made.tokens == tokens
    np.testing.assert_allclose(
        made.logp, recomputed(model, PROMPTS[2], tokens, 1.0)[range(8), tokens], atol=1e-5
    )


@pytest.mark.parametrize("rule", [PLAIN, SamplingRule(0.6, 0.9), SamplingRule(top_k=4)])
def test_draws_follow_the_truncated_softmax(rule: SamplingRule) -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0)) * 2
    log_mu = log_policy(logits, rule)
    # By a plain loop: the most likely tokens until top_p of the mass, at most top_k of them.
    order = sorted(range(12), key=lambda v: -float(log_mu[0, v]))
    expected, mass = np.zeros(12), 0.0
    for rank, v in enumerate(order):
        if mass >= rule.top_p or (rule.top_k > 0 and rank >= rule.top_k):
            break
        expected[v] = float(log_mu[0, v].exp())
        mass += expected[v]
    n = 40_000
    uniforms = torch.tensor(np.random.default_rng(1).random(n))
    counts = np.bincount(draw(log_mu.expand(n, -1), rule, uniforms).numpy(), minlength=12)
    assert not counts[expected == 0].any()
    kept = expected > 0
    share = expected[kept] / expected.sum() * n
    chi_square = ((counts[kept] - share) ** 2 / share).sum()
    assert chi_square < 40  # 11 degrees of freedom: exceeded with probability 4e-5


def test_extreme_uniforms_never_draw_an_impossible_token() -> None:
    log_mu = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    last = np.nextafter(1.0, 0.0)
    assert draw(log_mu.expand(2, -1), PLAIN, torch.tensor([0.0, last])).tolist() == [1, 1]
    assert truncate(torch.tensor([[0.5, 0.25, 0.25]]), SamplingRule(top_p=0.5)).tolist() == [[0.5, 0.0, 0.0]]


def test_diverged_weights_fail(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="diverged"):
        decode(model, [Request([3], 4, NO_STOP)], PLAIN, 0)


async def all_of(server: CpuServer, *calls: tuple[list[int], dict[str, Any]]) -> list[Any]:
    return await asyncio.gather(
        *(server.generate(prompt, dict(params), str(i)) for i, (prompt, params) in enumerate(calls)),
        return_exceptions=True,
    )


def ask(server: CpuServer, *calls: tuple[list[int], dict[str, Any]]) -> list[TokenOutput]:
    outputs = asyncio.run(all_of(server, *calls))
    for output in outputs:
        if isinstance(output, BaseException):
            raise output
    return outputs


def test_requests_of_different_rules_are_served_at_once(model: PreTrainedModel) -> None:
    server = CpuServer(model, LIMITS, {EOS})
    greedy = TRAIN | {"temperature": 0, "logprobs": False}
    train = [(prompt, TRAIN | {"seed": i, "cppo_topk": 4}) for i, prompt in enumerate(PROMPTS)]
    validation = [(prompt, greedy) for prompt in PROMPTS]
    mixed = [call for pair in zip(train, validation, strict=True) for call in pair]
    outputs = ask(server, *mixed)
    limits = [min(12, 8 + 12 - len(prompt)) for prompt in PROMPTS]
    for i, (prompt, limit) in enumerate(zip(PROMPTS, limits, strict=True)):
        sampled, best = outputs[2 * i], outputs[2 * i + 1]
        expected = decode(model, [Request(prompt, limit, frozenset({EOS}), seed=i)], PLAIN, 4)[0]
        assert sampled.token_ids == expected.tokens
        np.testing.assert_allclose(sampled.log_probs, expected.logp, atol=1e-5)
        np.testing.assert_array_equal(sampled.extra_fields[TOPK_IDS], expected.topk_ids)
        assert sampled.extra_fields[TOPK_LOGP].dtype == np.float32
        assert (
            best.token_ids
            == decode(model, [Request(prompt, limit, frozenset({EOS}))], SamplingRule(temperature=0.0), 0)[
                0
            ].tokens
        )
        assert best.log_probs is None and TOPK_IDS not in best.extra_fields
        assert best.stop_reason == "completed"


def test_limits_are_those_of_verl(model: PreTrainedModel) -> None:
    server = CpuServer(model, LIMITS, {EOS})
    free = TRAIN | {"ignore_eos": True, "seed": 0}
    lengths = [
        len(output.token_ids)
        for output in ask(
            server,
            ([3] * 4, free),  # response_length
            ([3] * 8 + [4] * 5, free),  # a prompt beyond prompt_length: what is left of the sum
            ([3], free | {"max_tokens": 5}),
            ([3], free | {"max_new_tokens": 3}),
            ([3] * 250, free | {"max_tokens": 50}),  # the model's context
        )
    ]
    assert lengths == [12, 7, 5, 3, 6]
    with pytest.raises(UserError, match="max_model_len=256"):
        ask(server, ([3] * 256, free))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ({"stop": ["."]}, "stop=\\['.'\\]"),
        ({"temperature": -1.0}, "temperature >= 0"),
        ({"cppo_topk": 41}, "vocabulary of 40"),
    ],
)
def test_what_the_server_cannot_do_is_refused(
    model: PreTrainedModel, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        ask(CpuServer(model, LIMITS, {EOS}), ([3], TRAIN | change))


def test_a_failed_batch_fails_its_requests_with_their_cause_and_the_server_lives(
    model: PreTrainedModel,
) -> None:
    server = CpuServer(model, LIMITS, {EOS})
    calls = [([3], TRAIN), ([999], TRAIN), ([4], TRAIN | {"temperature": 0})]

    async def answers() -> list[Any]:
        return await asyncio.wait_for(all_of(server, *calls), CEILING_SECONDS)

    first, second, third = asyncio.run(answers())
    assert isinstance(first, IndexError) and isinstance(second, IndexError)  # token 999 has no embedding
    assert isinstance(third, TokenOutput)  # decoded apart
    server._serving = None  # asyncio.run ends its loop, and a Ray actor has only one
    assert ask(server, ([3], TRAIN))[0].token_ids


def test_a_client_that_gives_up_does_not_stop_the_others(model: PreTrainedModel) -> None:
    server = CpuServer(model, LIMITS, {EOS})

    async def one_leaves() -> TokenOutput:
        stays = asyncio.create_task(server.generate([3], dict(TRAIN), "a"))
        leaves = asyncio.create_task(server.generate([4], dict(TRAIN), "b"))
        await asyncio.sleep(0)
        leaves.cancel()
        return await asyncio.wait_for(stays, CEILING_SECONDS)

    assert asyncio.run(one_leaves()).token_ids


def test_new_weights_change_responses_and_their_step(model: PreTrainedModel, tiny_model: Path) -> None:
    server = CpuServer(model, LIMITS, {EOS})
    call = (PROMPTS[0], TRAIN | {"seed": 5, "ignore_eos": True})
    before = ask(server, call)[0]
    assert before.extra_fields["global_steps"] is None
    other = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    # As FSDP sends them: bfloat16 or float32, with or without the tied head.
    weights = {name: tensor for name, tensor in other.state_dict().items() if name != "lm_head.weight"}
    asyncio.run(server.load_weights(weights, 7))
    after = ask(server, call)[0]
    assert after.extra_fields["global_steps"] == 7
    assert after.log_probs != before.log_probs
    expected = recomputed(other, PROMPTS[0], after.token_ids, 1.0)
    np.testing.assert_allclose(after.log_probs, expected[range(12), after.token_ids], atol=1e-5)
    asyncio.run(server.load_weights(other.state_dict(), None))
    assert server.global_steps == 7


def test_wrong_weights_are_named(model: PreTrainedModel) -> None:
    weights = dict(model.state_dict())
    norm = weights.pop("model.norm.weight")
    with pytest.raises(UserError, match=r"missing \['model.norm.weight'\], unexpected \['norm'\]"):
        load_named_tensors(model, weights | {"norm": norm})
    with pytest.raises(UserError, match=r"wrong shape \['model.norm.weight \(31,\) for \(32,\)'\]"):
        load_named_tensors(model, weights | {"model.norm.weight": norm[:31]})
    for head in ("lm_head.weight", "model.embed_tokens.weight"):
        load_named_tensors(model, {k: v for k, v in model.state_dict().items() if k != head})
    with pytest.raises(UserError, match=r"lm_head\.weight"):
        load_named_tensors(
            model,
            {k: v for k, v in weights.items() if "head" not in k and "embed" not in k}
            | {"model.norm.weight": norm},
        )


def test_an_untied_head_must_be_sent(model: PreTrainedModel) -> None:
    config = model.config.__class__(**model.config.to_dict() | {"tie_word_embeddings": False})
    untied = Qwen3ForCausalLM(config)
    with pytest.raises(UserError, match=r"missing \['lm_head.weight'\]"):
        load_named_tensors(untied, {k: v for k, v in untied.state_dict().items() if k != "lm_head.weight"})


def test_end_tokens_are_the_tokenizers_and_the_generation_configs() -> None:
    assert end_tokens(1, None) == {1}
    assert end_tokens(1, GenerationConfig(eos_token_id=4)) == {1, 4}
    assert end_tokens(1, GenerationConfig(eos_token_id=[4, 5])) == {1, 4, 5}


def test_settings_are_checked() -> None:
    assert RolloutSettings.read({"vllm": {}}) == RolloutSettings()
    assert RolloutSettings.read({"cppo_lab": {"topk": 20, "topk_dtype": "float32"}}).topk == 20
    with pytest.raises(UserError, match="did you mean 'topk'"):
        RolloutSettings.read({"cppo_lab": {"top_k": 20}})
    with pytest.raises(UserError, match="topk=-1"):
        RolloutSettings(topk=-1)
    with pytest.raises(UserError, match="bfloat16"):
        RolloutSettings(topk_dtype="bfloat16")


def test_seeds_differ_in_every_part_and_never_change() -> None:
    settings = RolloutSettings(seed=7)
    parts = [(1, "dapo", 3, 0), (2, "dapo", 3, 0), (1, "aime", 3, 0), (1, "dapo", 4, 0), (1, "dapo", 3, 1)]
    seeds = {settings.request_seed(*part) for part in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert RolloutSettings(seed=8).request_seed(*parts[0]) not in seeds
    # A recorded run must draw the same responses when it is resumed by a later version.
    assert settings.request_seed(1, "dapo", 3, 0) == 6841481850812842704
