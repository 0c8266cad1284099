"""Everything of verl that the verl core touches, in one table, and a check that names what is no longer as expected.

Supported: verl >=0.9.1,<0.9.2. Half of the table are not public interfaces but methods we override and one private
dict, which verl changes without notice even between patch releases; 0.9.1 is the version they were read and run in.
To move to another verl, run `check_touch_points()`, mend what it names, then run the tests marked `verl`.
"""

import ast
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

VERL_RANGE = ">=0.9.1,<0.9.2"
_FIRST, _BELOW = (0, 9, 1), (0, 9, 2)

REGISTRY, OVERRIDE, CALL, FIELDS, PRIVATE = (
    "public registry",
    "overridden",
    "called",
    "fields",
    "private dict",
)


@dataclass(frozen=True)
class TouchPoint:
    """One attribute of verl that we rely on."""

    module: str
    attribute: str  # dotted below the module
    kind: str
    parameters: tuple[
        str, ...
    ]  # of the function, or of the class's constructor; for FIELDS and PRIVATE: names in it

    @property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"


def _points(kind: str, module: str, attributes: dict[str, str]) -> list[TouchPoint]:
    """Touch points of one module: attribute -> its parameters, separated by spaces."""
    return [TouchPoint(module, name, kind, tuple(names.split())) for name, names in attributes.items()]


_REPLICA = "replica_rank config model_config gpus_per_node is_reward_model is_teacher_model name_suffix"
_INPUTS = "image_data video_data audio_data mm_processor_kwargs"
_VLLM = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_DEVICE = {"PlatformRegistry.register": "platform", "set_platform": "platform"}
_ENGINE = {"FSDPEngineWithLMHead": "model_config engine_config optimizer_config checkpoint_config"}
_REPLICAS = {
    "RolloutReplica": _REPLICA,
    "RolloutReplica.launch_servers": "self",
    "RolloutReplica.abort_all_requests": "self reject_request",
}
_TOKEN_OUTPUT = {"TokenOutput": "token_ids log_probs routed_experts stop_reason num_preempted extra_fields"}
_ADAPTER = {
    "BaseRollout": "config model_config device_mesh args kwargs",
    "BaseRollout.resume": "self tags",
    "BaseRollout.release": "self",
    "BaseRollout.update_weights": "self weights wire_format kwargs",
}
_VLLM_SERVER = {
    "vLLMHttpServer.generate": f"self prompt_ids sampling_params request_id {_INPUTS} priority kv_transfer_params",
    "vLLMHttpServer.run_server": "self args",
    "vLLMHttpServer._preprocess_engine_kwargs": "self engine_kwargs",
    "vLLMReplica.__init__": f"self {_REPLICA}",
}
_LOOP_OUTPUT = {
    "AgentLoopOutput": "prompt_ids response_ids response_mask response_logprobs routed_experts multi_modal_data "
    "reward_score num_turns metrics extra_fields mm_processor_kwargs mm_processor_output"
}
_LOOP = {
    "AgentLoopOutput.as_dict": "self",
    "AgentLoopWorker._run_agent_loop": "self sampling_params trajectory agent_name trace kwargs",
}
_TENSORDICT = {
    "get_non_tensor_data": "data key default",
    "assign_non_tensor_data": "tensor_dict key val",
    "list_of_dict_to_tensordict": "list_of_dicts",
}
_TRAINER = {
    "PPOTrainer": "config",
    "PPOTrainer._build_replay_buffer": "self",
    "PPOTrainer._init_resource_pool_mgr": "self",
    "PPOTrainer._load_checkpoint": "self",
    "PPOTrainer._submit_batch_to_rollout": "self batch",
    "PPOTrainer._balance_batch": "self batch metrics logging_prefix keep_minibatch",
    "PPOTrainer._compute_old_log_prob": "self batch metrics",
    "PPOTrainer._compute_advantage": "self batch metrics",
    "PPOTrainer._update_actor": "self batch metrics",
    "PPOTrainer._validate": "self",
    "PPOTrainer._compute_metrics": "self batch metrics timing_raw global_steps epoch",
    "PPOTrainer._save_checkpoint": "self",
}
_BUFFER = {
    "ReplayBuffer.__init__": "self trainer_mode trainer_config max_off_policy_threshold max_off_policy_strategy "
    "sampler_kwargs poll_interval refill_fn filter_groups_metric train_batch_size gen_batch_size "
    "max_inflight_gen_batches sync_refill_failed_groups",
    "ReplayBuffer.sample": "self global_steps partition_id batch_size",
}
_PADDING = {
    "construct_minimal_padding_template": "source_td source_tag eos_token_id",
}
_MAIN = {
    "run_ppo": "config task_runner_class",
    "TaskRunnerV1.run": "self config",
    "TaskRunnerV1.init_agent_loop_manager": "self",
}
_WORKER = {
    "ActorRolloutRefWorker.init_model": "self",
    "ActorRolloutRefWorker.update_actor": "self data",
    "ActorRolloutRefWorker.update_weights": "self global_steps mode",
    "TrainingWorker.train_mini_batch": "self data",
    "TrainingWorker.train_batch": "self data",
    "TrainingWorker.set_loss_fn": "self loss_fn",
}

_LOOPS = "verl.experimental.agent_loop"
_V1 = "verl.trainer.ppo.v1"
TOUCH_POINTS: tuple[TouchPoint, ...] = (
    # Loading, device and engine
    *_points(CALL, "verl.utils.import_utils", {"import_external_libs": "external_libs"}),
    *_points(REGISTRY, "verl.plugin.platform", _DEVICE),
    *_points(
        REGISTRY, "verl.workers.engine", {"EngineRegistry.register": "model_type backend device vendor"}
    ),
    *_points(CALL, "verl.workers.engine.fsdp.transformer_impl", _ENGINE),
    *_points(
        CALL, "verl.utils.distributed", {"initialize_global_process_group_ray": "timeout_second backend"}
    ),
    *_points(CALL, "verl.utils.config", {"omega_conf_to_dataclass": "config dataclass_type"}),
    # Rollout servers
    *_points(REGISTRY, "verl.workers.rollout.replica", {"RolloutReplicaRegistry.register": "name loader"}),
    *_points(OVERRIDE, "verl.workers.rollout.replica", _REPLICAS),
    *_points(FIELDS, "verl.workers.rollout.replica", _TOKEN_OUTPUT),
    *_points(PRIVATE, "verl.workers.rollout.base", {"_ROLLOUT_REGISTRY": "vllm/async"}),
    *_points(OVERRIDE, "verl.workers.rollout.base", _ADAPTER),
    *_points(CALL, "verl.workers.rollout.utils", {"get_max_position_embeddings": "hf_config"}),
    *_points(
        CALL,
        "verl.workers.rollout.llm_server",
        {"LLMServerClient.generate": f"self request_id prompt_ids sampling_params {_INPUTS} kwargs"},
    ),
    *_points(OVERRIDE, _VLLM, _VLLM_SERVER),
    # Agent loop
    *_points(REGISTRY, f"{_LOOPS}.agent_loop", {"register": "agent_name"}),
    *_points(FIELDS, f"{_LOOPS}.agent_loop", _LOOP_OUTPUT),
    *_points(OVERRIDE, f"{_LOOPS}.agent_loop", _LOOP),
    *_points(
        OVERRIDE,
        f"{_LOOPS}.single_turn_agent_loop",
        {"SingleTurnAgentLoop.run": "self sampling_params priority kwargs"},
    ),
    *_points(OVERRIDE, f"{_V1}.agent_loop_tq", {"AgentLoopManagerTQ.generate_sequences": "self prompts"}),
    *_points(CALL, "verl.utils.tensordict_utils", _TENSORDICT),
    # Trainer
    *_points(REGISTRY, _V1, {"register_trainer": "name"}),
    *_points(OVERRIDE, f"{_V1}.trainer_base", _TRAINER),
    *_points(OVERRIDE, f"{_V1}.trainer_sync", {"PPOTrainerSync": "config"}),
    *_points(OVERRIDE, f"{_V1}.replay_buffer", _BUFFER),
    *_points(CALL, "verl.trainer.ppo.padding_utils", _PADDING),
    *_points(CALL, "verl.trainer.main_ppo", _MAIN),
    # Worker
    *_points(OVERRIDE, "verl.workers.engine_workers", _WORKER),
)
# Modules that cannot be imported without vLLM: their signatures are read from the source.
_NEEDS_VLLM = {_VLLM}


def version_problem() -> str | None:
    """What is wrong with the installed version of verl, or None."""
    installed = version("verl")
    release = tuple(int(part) for part in installed.split(".")[:3] if part.isdigit())
    if _FIRST <= release < _BELOW:
        return None
    return f"verl {installed} is installed, but {VERL_RANGE} is supported: pip install 'verl{VERL_RANGE}'"


def check_touch_points(points: tuple[TouchPoint, ...] = TOUCH_POINTS) -> list[str]:
    """One line for every touch point that the installed verl lacks or has changed; empty when all is well."""
    return [problem for point in points if (problem := _problem(point)) is not None]


def _problem(point: TouchPoint) -> str | None:
    from_source = point.module in _NEEDS_VLLM and find_spec("vllm") is None
    read: Callable[[TouchPoint], tuple[str, ...]] = _in_source if from_source else _installed
    try:
        found = read(point)
    except (ImportError, AttributeError) as missing:
        return f"{point.name} ({point.kind}) is missing: {missing}"
    if point.kind == PRIVATE and set(point.parameters) <= set(found):
        return None
    if point.kind != PRIVATE and found == point.parameters:
        return None
    return f"{point.name} ({point.kind}) has changed: expected {list(point.parameters)}, found {list(found)}"


def _installed(point: TouchPoint) -> tuple[str, ...]:
    """Parameter, field or key names of a touch point as installed.

    Raises ImportError or AttributeError when it is not there.
    """
    found: Any = importlib.import_module(point.module)
    for part in point.attribute.split("."):
        found = _plain(getattr(found, part))
    if point.kind == PRIVATE:
        return tuple("/".join(key) for key in found)
    if point.kind == FIELDS:
        return tuple(found.model_fields)
    # Ray adds parameters of its own to the methods of actor classes.
    return tuple(name for name in inspect.signature(found).parameters if not name.startswith("_ray_"))


def _plain(found: Any) -> Any:
    """The class behind a Ray actor class; anything else as it is."""
    actor = getattr(found, "__ray_metadata__", None)
    return found if actor is None else actor.modified_class


def _in_source(point: TouchPoint) -> tuple[str, ...]:
    """Parameter names of a method as the source of its module has them, for a module that cannot be imported."""
    package, *inner = point.module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"no package {package}")
    body: list[ast.stmt] = ast.parse(
        Path(spec.origin).parent.joinpath(*inner).with_suffix(".py").read_text()
    ).body
    for part in point.attribute.split("."):
        defined = (
            node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        )
        node = next((node for node in defined if node.name == part), None)
        if node is None:
            raise AttributeError(f"no {part} in {point.module}")
        body = node.body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return tuple(argument.arg for argument in node.args.args)


def register_rollout_adapter(name: str, target: str) -> None:
    """Makes `rollout.name=name` known to verl's training workers: `target` is the adapter class's dotted name.

    verl has no public way to add one (verl/workers/rollout/base.py).
    """
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY

    _ROLLOUT_REGISTRY[(name, "async")] = target
