"""What the agent loop asks of the server, what it hands to TransferQueue, and when it refuses."""

import asyncio
import copy
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl.rollout import POLICY_STEP, TOPK_IDS, TOPK_LOGP, cpu, seed_of
from cppo_lab.cores.verl.rollout.agent_loop import VALIDATE, ResumingClient, TopKAgentLoop
from cppo_lab.cores.verl.rollout.cpu import CpuServer
from tests.conftest import user_error
from tests.cores.verl.test_rollout import LIMITS, PROMPTS, TRAIN, recomputed
from tests.waiting import until

K, LIMIT = 4, 6
ASKED = {POLICY_STEP, TOPK_IDS, TOPK_LOGP}  # in training
SAMPLING = {"temperature": 1.0, "logprobs": True}
ROW = {
    "raw_prompt": [{"role": "user", "content": "1 + 2 ="}],
    "data_source": "toy",
    "extra_info": {"index": 5},
    "index": 5,
    "uid": "u",
    "session_id": 1,
    "global_steps": 9,
    VALIDATE: False,
}


class Server:
    """Answers every request with `n` tokens and as many rows of Top-K, and remembers what was asked."""

    def __init__(self, n: int, rows: int | None = None) -> None:
        self.n, self.rows = n, n if rows is None else rows
        self.asked: list[dict[str, Any]] = []

    async def generate(self, *, sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        self.asked.append(sampling_params)
        extra: dict[str, Any] = {"global_steps": 9, "min_global_steps": 9, "max_global_steps": 9}
        extra[POLICY_STEP] = np.arange(self.n, dtype=np.int32)
        if self.rows and (topk := sampling_params.get("cppo_topk", 0)):
            numbers = np.arange(self.rows * topk).reshape(self.rows, topk)
            extra |= {TOPK_IDS: numbers.astype(np.int32), TOPK_LOGP: -numbers.astype(np.float16)}
            for column in (TOPK_IDS, TOPK_LOGP):
                extra[column].flags.writeable = False  # as what comes over Ray
        tokens = list(range(6, 6 + self.n))
        return TokenOutput(token_ids=tokens, log_probs=[-0.5 * t for t in range(self.n)], extra_fields=extra)


def loop(tiny_model: Path, server: Server, **settings: Any) -> TopKAgentLoop:
    engine_kwargs = {"cppo_lab": {"topk": K, "seed": 3} | settings}
    rollout = {"prompt_length": 16, "response_length": LIMIT, "engine_kwargs": engine_kwargs}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    config, data = DictConfigWrap(config), DictConfigWrap(config.data)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    async def within_a_loop() -> TopKAgentLoop:  # verl's constructor asks for the running event loop
        return TopKAgentLoop(config, server, tokenizer, None, SimpleNamespace, data, hf_model_type="qwen3")

    return asyncio.run(within_a_loop())


def run(made: TopKAgentLoop, **changes: Any) -> Any:
    async def within_a_loop() -> Any:
        made.loop = asyncio.get_running_loop()
        return await made.run(SAMPLING, **ROW | changes)

    return asyncio.run(within_a_loop())


@pytest.mark.parametrize("n", [1, LIMIT, LIMIT + 3])
def test_training_rows_carry_their_topk_as_columns(tiny_model: Path, n: int) -> None:
    server = Server(n)
    output = run(loop(tiny_model, server))
    columns = output.as_dict()
    length = min(n, LIMIT)
    numbers = torch.arange(length * K).view(length, K)
    expected = {
        "responses": torch.arange(6, 6 + length), TOPK_IDS: numbers.int(), TOPK_LOGP: -numbers.half(),
        "rollout_log_probs": -0.5 * torch.arange(length), POLICY_STEP: torch.arange(length).int(),
    }  # fmt: skip
    torch.testing.assert_close({name: columns[name] for name in expected}, expected, rtol=0, atol=0)
    # None reaches the reward workers, which get `extra_fields` as objects.
    assert not ASKED & {*output.extra_fields, *run(loop(tiny_model, server), **{VALIDATE: True}).as_dict()}
    assert ASKED & {*run(loop(tiny_model, server, topk=0)).as_dict()} == {POLICY_STEP}
    assert columns["extra_fields"]["min_global_steps"] == 9 and columns["extra_fields"]["turn_scores"] == []
    assert isinstance(output.metrics, AgentLoopMetrics)
    assert "seed" not in SAMPLING  # verl shares one dict among the sessions of a prompt


def test_seeds_name_step_problem_and_session(tiny_model: Path) -> None:
    server = Server(3)
    made = loop(tiny_model, server)
    other = {"global_steps": 10, "session_id": 2, "extra_info": {"index": 6}, "data_source": "other"}
    run(made)
    for name, value in (*other.items(), ("uid", "a new one after resuming")):
        run(made, **{name: value})
    first, *others, last = (asked["seed"] for asked in server.asked)
    assert first == last and len({first, *others}) == 5
    # A recorded run must draw the same responses when it is resumed by a later version.
    assert seed_of(7, 1, "dapo", 3, 0) == 6841481850812842704
    # Validation asks for no Top-K and seeds every step alike, whether training has seeds or not.
    server.asked.clear()
    unseeded = loop(tiny_model, server, seed_requests=False)
    for asking, step in ((made, 10), (made, 20), (unseeded, 9)):
        run(asking, **{VALIDATE: True, "global_steps": step})
    assert all("cppo_topk" not in asked for asked in server.asked)
    assert {asked["seed"] for asked in server.asked} == {seed_of(3, -1, "toy", 5, 1)}
    run(unseeded, extra_info={})
    assert "seed" not in server.asked[-1]


@pytest.mark.parametrize(
    "server, changes, message",
    [
        (
            Server(3, rows=0),
            {},
            r"shapes \[None, None\] for 3 response tokens and engine_kwargs.cppo_lab.topk=4",
        ),
        (Server(3, rows=2), {}, r"shapes \[\(2, 4\), \(2, 4\)\]"),
        (Server(3), {"extra_info": {}}, "seed_requests=false"),
    ],
)
def test_what_would_train_wrongly_is_refused(
    tiny_model: Path, server: Server, changes: dict[str, Any], message: str
) -> None:
    with user_error(message):
        run(loop(tiny_model, server), **changes)


# Answers that are interrupted for new weights.

ABORTS, BETWEEN = 3, 3  # interruptions, and tokens before each


def moved(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Another policy."""
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weights in other.parameters():
            weights += 0.05 * torch.randn(weights.shape, generator=generator)
    return other


def test_each_piece_of_an_answer_has_mu_of_the_policy_that_sampled_it(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is interrupted three times in the middle, and goes on with other weights each time."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    policies = {10 + number: moved(model, number) for number in range(ABORTS + 1)}
    server = CpuServer(copy.deepcopy(model), *LIMITS, ())
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "cppo_cpu"}}})
    client, limits, seeds = ResumingClient(config=config), [5, 8, 20], []

    async def remote(**asked: Any) -> TokenOutput:
        seeds.append(asked["sampling_params"].get("seed"))
        return await server.generate(**asked)

    async def acquire(*_: Any, **__: Any) -> tuple[str, Any]:
        return "", SimpleNamespace(generate=SimpleNamespace(remote=remote))

    # verl's client, ours and a server, without Ray between them.
    client._acquire_server, client._vllm_request_id = acquire, str
    client._release_server = lambda *_, **__: None
    reached, decoded, log_mu = threading.Event(), itertools.count(1), cpu.log_policy

    def counted(logits: torch.Tensor, rule: cpu.SamplingRule) -> torch.Tensor:
        if next(decoded) in range(BETWEEN, ABORTS * BETWEEN + 1, BETWEEN):
            reached.set()
            until("the abort", lambda: not server._running.is_set())
        return log_mu(logits, rule)

    monkeypatch.setattr(cpu, "log_policy", counted)

    async def asked(number: int) -> TokenOutput:
        sampling = TRAIN | {"temperature": 0.8, "cppo_topk": K, "seed": number, "max_tokens": limits[number]}
        return await client.generate(str(number), prompt_ids=PROMPTS[number], sampling_params=sampling)

    async def train() -> None:
        for step in list(policies)[1:]:
            while not reached.is_set():
                await asyncio.sleep(0.01)
            reached.clear()
            await server.abort_all_requests()
            await server.load_weights(dict(policies[step].state_dict()), step)
            await server.resume_generation()

    async def all_of() -> list[TokenOutput]:
        await server.load_weights(dict(policies[10].state_dict()), 10)
        return (await asyncio.gather(*map(asked, range(len(limits))), train()))[:-1]

    for number, output in enumerate(asyncio.run(all_of())):
        steps = output.extra_fields[POLICY_STEP]
        assert steps.dtype == np.int32 and len(steps) == len(output.token_ids) == limits[number]
        assert steps.tolist() == sorted([10, 11, 12] * BETWEEN + [13] * 20)[: limits[number]]
        ids, logp = output.extra_fields[TOPK_IDS], output.extra_fields[TOPK_LOGP]
        for step in set(steps.tolist()):
            here = steps == step
            expected = recomputed(policies[step], PROMPTS[number], output.token_ids, 0.8)
            taken, top = expected[range(len(here)), output.token_ids], expected.topk(K, -1)
            np.testing.assert_allclose(np.array(output.log_probs)[here], taken[here], atol=5e-5)
            np.testing.assert_allclose(logp[here], top.values[here], atol=5e-5)
            np.testing.assert_array_equal(ids[here], top.indices[here])
            assert np.abs(logp[~here] - top.values.numpy()[~here]).max() > 1e-2
    assert output.extra_fields["global_steps"] == 13
    asyncio.run(server.load_weights(dict(model.state_dict()), None))
    assert server.global_steps == 13
    # No piece draws another one's numbers once more.
    assert len(seeds) == len(set(seeds)) == 2 + 3 + 4
