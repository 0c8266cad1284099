"""What the agent loop asks of the server, what it hands to TransferQueue, and when it refuses."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, DictConfigWrap, _agent_loop_registry
from verl.utils import tensordict_utils
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.replica import TokenOutput

from cppo_lab.cores.verl.rollout.agent_loop import (
    VALIDATE,
    MarkedAgentLoopManager,
    TopKAgentLoop,
    TopKAgentLoopOutput,
)
from cppo_lab.cores.verl.rollout.settings import RolloutSettings
from cppo_lab.errors import UserError

pytestmark = pytest.mark.verl
K, LIMIT = 4, 6
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

    async def generate(self, *, sampling_params: dict[str, Any], **rest: Any) -> TokenOutput:
        self.asked.append(sampling_params)
        extra: dict[str, Any] = {"global_steps": 9, "min_global_steps": 9, "max_global_steps": 9}
        topk = sampling_params.get("cppo_topk", 0)
        if topk and self.rows:
            shape = (self.rows, topk)
            ids, logp = (
                np.arange(self.rows * topk, dtype=np.int32),
                -np.arange(self.rows * topk, dtype=np.float16),
            )
            extra |= {"rollout_topk_ids": ids.reshape(shape), "rollout_topk_logp": logp.reshape(shape)}
            for array in extra.values():
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False  # as what comes over Ray
        return TokenOutput(
            token_ids=list(range(6, 6 + self.n)),
            log_probs=[-0.5 * t for t in range(self.n)],
            extra_fields=extra,
        )


def loop(tiny_model: Path, server: Server, **settings: Any) -> TopKAgentLoop:
    rollout = {
        "prompt_length": 16,
        "response_length": LIMIT,
        "engine_kwargs": {"cppo_lab": {"topk": K, "seed": 3} | settings},
    }
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})

    async def within_a_loop() -> TopKAgentLoop:  # verl's constructor asks for the running event loop
        return TopKAgentLoop(
            DictConfigWrap(config),
            server,
            AutoTokenizer.from_pretrained(tiny_model),
            None,
            SimpleNamespace,
            DictConfigWrap(config.data),
            hf_model_type="qwen3",
        )

    return asyncio.run(within_a_loop())


def run(made: TopKAgentLoop, **changes: Any) -> Any:
    async def one() -> Any:
        made.loop = asyncio.get_running_loop()
        return await made.run(SAMPLING, **ROW | changes)

    return asyncio.run(one())


def test_it_is_known_to_verl_by_name() -> None:
    target = _agent_loop_registry["cppo_single_turn"]["_target_"]
    assert target == "cppo_lab.cores.verl.rollout.agent_loop.TopKAgentLoop"


@pytest.mark.parametrize("n", [1, LIMIT, LIMIT + 3])
def test_training_rows_carry_their_topk_as_columns(tiny_model: Path, n: int) -> None:
    server = Server(n)
    output = run(loop(tiny_model, server))
    columns = output.as_dict()
    kept = min(n, LIMIT)
    assert columns["responses"].tolist() == list(range(6, 6 + kept))
    assert columns["rollout_topk_ids"].dtype == torch.int32
    assert columns["rollout_topk_logp"].dtype == torch.float16
    assert columns["rollout_topk_ids"].tolist() == np.arange(kept * K).reshape(kept, K).tolist()
    assert columns["rollout_topk_logp"].tolist() == (-np.arange(kept * K)).reshape(kept, K).tolist()
    assert columns["rollout_log_probs"].tolist() == [-0.5 * t for t in range(kept)]
    # Neither reaches the reward workers, which get `extra_fields` as objects.
    assert not [name for name in output.extra_fields if "topk" in name]
    assert columns["extra_fields"]["min_global_steps"] == 9 and columns["extra_fields"]["turn_scores"] == []
    assert isinstance(output.metrics, AgentLoopMetrics)
    assert "seed" not in SAMPLING  # verl shares one dict among the sessions of a prompt


def test_validation_asks_for_no_topk_and_seeds_every_step_alike(tiny_model: Path) -> None:
    server = Server(3)
    made = loop(tiny_model, server)
    outputs = [run(made, **{VALIDATE: True, "global_steps": step}) for step in (10, 20)]
    assert all("rollout_topk_ids" not in output.as_dict() for output in outputs)
    assert all("cppo_topk" not in asked for asked in server.asked)
    assert server.asked[0]["seed"] == server.asked[1]["seed"]
    assert server.asked[0]["seed"] == RolloutSettings(seed=3).request_seed(-1, "toy", 5, 1)


def test_training_seeds_name_step_problem_and_session(tiny_model: Path) -> None:
    server = Server(3)
    made = loop(tiny_model, server)
    for changes in (
        {},
        {"global_steps": 10},
        {"session_id": 2},
        {"extra_info": {"index": 6}},
        {"data_source": "other"},
        {"uid": "a new one after resuming"},
    ):
        run(made, **changes)
    seeds = [asked["seed"] for asked in server.asked]
    assert seeds[0] == seeds[-1] and len(set(seeds)) == len(seeds) - 1
    unseeded = Server(3)
    run(loop(tiny_model, unseeded, seed_requests=False), extra_info={})
    assert "seed" not in unseeded.asked[0]
    run(loop(tiny_model, unseeded, seed_requests=False), **{VALIDATE: True})
    assert "seed" in unseeded.asked[1]


def test_without_topk_rows_are_verls_own(tiny_model: Path) -> None:
    output = run(loop(tiny_model, Server(3), topk=0))
    assert not isinstance(output, TopKAgentLoopOutput) and "rollout_topk_ids" not in output.as_dict()


@pytest.mark.parametrize(
    ("server", "changes", "message"),
    [
        (Server(3, rows=0), {}, "no Top-K although engine_kwargs.cppo_lab.topk=4: use rollout.name=vllm"),
        (Server(3, rows=2), {}, r"shapes \(2, 4\)"),
        (Server(3, rows=4), {}, r"shapes \(4, 4\)"),
        (Server(3), {"extra_info": {}}, "seed_requests=false"),
    ],
)
def test_what_would_train_wrongly_is_refused(
    tiny_model: Path, server: Server, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run(loop(tiny_model, server), **changes)


def test_a_row_that_is_not_marked_is_refused(tiny_model: Path) -> None:
    made = loop(tiny_model, Server(3))
    row = {name: value for name, value in ROW.items() if name != VALIDATE}
    with pytest.raises(UserError, match="agent_loop_manager_class=cppo_lab"):
        asyncio.run(made.run(SAMPLING, **row))


def test_rows_of_different_length_become_jagged_tensors_of_their_type(tiny_model: Path) -> None:
    columns = [run(loop(tiny_model, Server(n))).as_dict() for n in (2, 5)]
    batch = list_of_dict_to_tensordict(columns)
    for name, dtype in (("rollout_topk_ids", torch.int32), ("rollout_topk_logp", torch.float16)):
        column = batch[name]
        assert column.is_nested and column.dtype == dtype
        for row, original in zip(column.unbind(), columns, strict=True):
            assert torch.equal(row, original[name])


@pytest.mark.parametrize("validate", [True, False])
def test_the_manager_marks_every_batch(validate: bool) -> None:
    manager = object.__new__(MarkedAgentLoopManager)
    manager.agent_loop_workers = []
    batch = tensordict_utils.get_tensordict({"index": ["a", "b"]})
    if validate:
        tensordict_utils.assign_non_tensor_data(batch, "validate", True)
    sent: list[Any] = []
    worker = SimpleNamespace(generate_sequences=SimpleNamespace(remote=lambda chunk: sent.append(chunk)))
    manager.agent_loop_workers = [worker, worker]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verl.trainer.ppo.v1.agent_loop_tq.ray.get", lambda references: references)
        manager.generate_sequences(batch)
    assert [chunk[VALIDATE] for chunk in sent] == [validate] * 2
