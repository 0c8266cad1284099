"""The whole way of a response, in Ray: two CPU servers, verl's client and agent loop workers, TransferQueue.

Run by `test_rollout_on_ray` in a process of its own, because Ray's environment must be set before it is imported.
Prints one JSON object.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

import ray
import torch
import transfer_queue
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import get_rollout_replica_class
from verl.workers.rollout.router import get_router_handle

from cppo_lab.cores.verl.ray_local import plugin_environment
from cppo_lab.cores.verl.rollout.dispatch import MarkedAgentLoopManager

TOPK = 6
OVERRIDES = [
    "data.max_prompt_length=16",
    "data.max_response_length=10",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.rollout.name=cppo_cpu",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.val_kwargs.n=2",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.7",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.95",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.rollout.agent.default_agent_loop=cppo_single_turn",
    "+actor_rollout_ref.rollout.agent.agent_loop_manager_class="
    "cppo_lab.cores.verl.rollout.dispatch.MarkedAgentLoopManager",
    f"+actor_rollout_ref.rollout.engine_kwargs.cppo_lab={{topk:{TOPK},topk_dtype:float16,seed:1,seed_requests:true}}",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "transfer_queue.enable=true",
    "trainer.device=cpu",
]


def prompts(step: int, validate: bool) -> Any:
    """A batch of three problems as verl's trainer hands it to the agent loop manager."""
    rows = [
        {
            "raw_prompt": [{"role": "user", "content": text}],
            "data_source": "toy",
            "reward_model": {"ground_truth": "1"},
            "extra_info": {"index": index},
            "index": index,
            "uid": f"{'val' if validate else 'train'}{step}-{index}",
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
        }
        for index, text in enumerate(["1 + 1 =", "2", "3 * 4 - 5 ="])
    ]
    batch = tensordict_utils.get_tensordict(collate_fn(rows))
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", step)
    if validate:
        tensordict_utils.assign_non_tensor_data(batch, "validate", True)
    return batch


def responses(manager: MarkedAgentLoopManager, step: int, validate: bool) -> dict[str, dict[str, Any]]:
    """Sends a batch and waits for its responses: key without uid -> columns."""
    partition = "val" if validate else "train"
    batch = prompts(step, validate)
    names = list(batch["uid"])
    manager.generate_sequences(batch)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        listed = transfer_queue.kv_list(partition).get(partition, {})
        states = [listed.get(name, {}).get("status") for name in names]
        if all(state in ("finished", "failure") for state in states):
            break
        time.sleep(0.2)
    assert states == ["finished"] * 3, states
    keys = sorted(key for key in listed if key.split("_")[0] in names and "_" in key)
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition)
    found = {}
    for i, key in enumerate(keys):
        found[key.split("-")[1]] = {name: data[name][i] for name in COLUMNS if name in data} | {
            "tag": listed[key]
        }
    return found


COLUMNS = (
    "prompts",
    "responses",
    "rollout_log_probs",
    "rollout_topk_ids",
    "rollout_topk_logp",
    "response_mask",
)


def alignment(model: Any, found: dict[str, dict[str, Any]]) -> float:
    """Largest error of log mu and of the Top-K against a forward pass, over all responses."""
    worst = 0.0
    for row in found.values():
        prompt, tokens = row["prompts"], row["responses"]
        with torch.no_grad():
            logits = model(torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits, -1)
        worst = max(
            worst, float((logp.gather(-1, tokens[:, None])[:, 0] - row["rollout_log_probs"]).abs().max())
        )
        kept = logp.gather(-1, row["rollout_topk_ids"].long())
        worst = max(
            worst, float((kept.half() - row["rollout_topk_logp"]).abs().max()) / 10
        )  # float16: 3 digits
    return worst


async def push(config: DictConfig, model: Any, step: int) -> None:
    """What the training workers of two ranks do after an update."""
    for rank in (0, 1):
        os.environ["RANK"] = str(rank)
        rollout = config.actor_rollout_ref.rollout
        adapter = get_rollout_class(rollout.name)(rollout, config.actor_rollout_ref.model, None)
        await adapter.update_weights(iter(model.state_dict().items()), global_steps=step, peft_config=None)


def main(model_path: str, arguments: str) -> None:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*OVERRIDES, f"actor_rollout_ref.model.path={model_path}"])
    ray.init(
        **json.loads(arguments), runtime_env={"env_vars": plugin_environment(cpu=True)}, log_to_driver=True
    )
    transfer_queue.init(config.transfer_queue)
    replica_class = get_rollout_replica_class("cppo_cpu")
    replicas = [
        replica_class(rank, config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, gpus_per_node=2)
        for rank in (0, 1)
    ]

    async def launch() -> None:
        await asyncio.gather(*(replica.launch_servers() for replica in replicas))

    asyncio.run(launch())
    balancer = get_router_handle({replica.server_address: replica.server_handle for replica in replicas})
    manager = MarkedAgentLoopManager.create(
        config=config,
        llm_client=LLMServerClient(config, balancer),
        teacher_client=None,
        reward_loop_worker_handles=None,
    )
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    asyncio.run(push(config, model, 3))
    first, again = responses(manager, 3, False), responses(manager, 3, False)
    before, error = first, alignment(model, first)
    validation = [responses(manager, step, True) for step in (3, 4)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    asyncio.run(push(config, model, 4))
    after = responses(manager, 4, False)
    some = next(iter(first.values()))
    print(
        json.dumps(
            {
                "sessions": sorted(first),
                "columns": sorted(name for name in some if name != "tag"),
                "dtypes": [str(some[name].dtype) for name in ("rollout_topk_ids", "rollout_topk_logp")],
                "rows": [list(row["rollout_topk_ids"].shape) for row in first.values()],
                "lengths": [len(row["responses"]) for row in first.values()],
                "error": error,
                "error_after": alignment(model, after),
                "repeated": [
                    a["responses"].tolist() == b["responses"].tolist()
                    for a, b in zip(first.values(), again.values(), strict=True)
                ],
                "validation_columns": sorted(
                    name for name in next(iter(validation[0].values())) if name != "tag"
                ),
                "validations_equal": [
                    validation[0][key]["responses"].tolist() == validation[1][key]["responses"].tolist()
                    for key in validation[0]
                ],
                "sessions_differ": first["0_0_0"]["responses"].tolist()
                != first["0_1_0"]["responses"].tolist(),
                "steps": sorted(
                    {row["tag"]["min_global_steps"] for row in [*before.values(), *after.values()]}
                ),
            }
        )
    )
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
