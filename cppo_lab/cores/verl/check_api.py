"""Checks that the installed verl is the version that this core was written for: its version, and every touch point.

Supported: verl >=0.9.1,<0.9.2; the touch points were written for and tested with 0.9.1. To move to another version, run
`check_api()`, fix what it names, then run the tests marked `verl`.

The contract lists everything of verl that the core calls, overrides, registers with or reads, with parameters. Half of
the entries are not public interfaces but methods that we override and a private dict, which verl changes without
notice even between patch releases.
"""

import ast
import importlib
import inspect
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

REGISTRY, OVERRIDE, CALL = "public registry", "overridden", "called"
FIELDS, PRIVATE = "fields", "private dict"


class ContractItem(NamedTuple):
    """One attribute of verl that we rely on."""

    module: str
    attribute: str  # dotted below the module
    kind: str
    # Of the function, or of the class's constructor; for FIELDS and PRIVATE: names in it.
    parameters: tuple[str, ...]


_REPLICA = "replica_rank config model_config gpus_per_node is_reward_model is_teacher_model name_suffix"
_INPUTS = "image_data video_data audio_data mm_processor_kwargs"
VLLM = "verl.workers.rollout.vllm_rollout.vllm_async_server"
VLLM_WORKER = "verl.workers.rollout.vllm_rollout.utils"
_LOOPS = "verl.experimental.agent_loop"
_V1 = "verl.trainer.ppo.v1"
API_CONTRACT = tuple(
    ContractItem(module, attribute, kind, tuple(parameters.split()))
    for kind, modules in {
        REGISTRY: {
            "verl.plugin.platform": {
                "PlatformRegistry.register": "platform",
                "set_platform": "platform",
                "get_platform": "",
            },
            "verl.workers.engine": {"EngineRegistry.register": "model_type backend device vendor"},
            "verl.workers.rollout.replica": {"RolloutReplicaRegistry.register": "name loader"},
            f"{_LOOPS}.agent_loop": {"register": "agent_name"},
        },
        OVERRIDE: {
            "verl.workers.rollout.replica": {
                "RolloutReplica": _REPLICA,
                "RolloutReplica.launch_servers": "self",
                "RolloutReplica.abort_all_requests": "self reject_request",
            },
            "verl.workers.rollout.base": {
                "BaseRollout": "config model_config device_mesh args kwargs",
                "BaseRollout.resume": "self tags",
                "BaseRollout.release": "self",
                "BaseRollout.update_weights": "self weights wire_format kwargs",
            },
            "verl.workers.rollout.llm_server": {
                f"{name}.generate": f"self request_id prompt_ids sampling_params {_INPUTS} kwargs"
                for name in ("LLMServerClient", "FullyAsyncLLMServerClient")
            },
            VLLM: {
                "vLLMHttpServer.generate": f"self prompt_ids sampling_params request_id {_INPUTS} priority "
                "kv_transfer_params",
                "vLLMHttpServer.run_server": "self args",
                "vLLMHttpServer._preprocess_engine_kwargs": "self engine_kwargs",
                "vLLMHttpServer._get_worker_extension_cls": "self",
                "vLLMReplica.__init__": f"self {_REPLICA}",
            },
            VLLM_WORKER: {
                "vLLMColocateWorkerExtension._update_weights": "self weights peft_config base_sync_done"
            },
            f"{_LOOPS}.agent_loop": {
                "AgentLoopOutput.as_dict": "self",
                "AgentLoopWorker._run_agent_loop": "self sampling_params trajectory agent_name trace kwargs",
            },
            f"{_LOOPS}.single_turn_agent_loop": {
                "SingleTurnAgentLoop.run": "self sampling_params priority kwargs"
            },
            f"{_V1}.agent_loop_tq": {"AgentLoopManagerTQ.generate_sequences": "self prompts"},
            f"{_V1}.trainer_base": {
                "PPOTrainer": "config",
                "PPOTrainer._init_dataloader": "self",
                "PPOTrainer._init_resource_pool_mgr": "self",
                "PPOTrainer._load_checkpoint": "self",
                "PPOTrainer.on_init_end": "self",
                "PPOTrainer.on_step_end": "self",
                "PPOTrainer.on_validate_end": "self",
                "PPOTrainer.on_sample_end": "self",
                "PPOTrainer.step": "self metrics timing_raw",
                "PPOTrainer.get_llm_client": "self",
                "PPOTrainer._submit_batch_to_rollout": "self batch",
                "PPOTrainer._balance_batch": "self batch metrics logging_prefix keep_minibatch",
                "PPOTrainer._compute_old_log_prob": "self batch metrics",
                "PPOTrainer._compute_advantage": "self batch metrics",
                "PPOTrainer._update_actor": "self batch metrics",
                "PPOTrainer._validate": "self",
                "PPOTrainer._compute_metrics": "self batch metrics timing_raw global_steps epoch",
                "PPOTrainer._save_checkpoint": "self",
            },
            _V1: {"PPOTrainerSync": "config", "PPOTrainerColocateAsync": "config"},
            f"{_V1}.replay_buffer": {
                "ReplayBuffer.__init__": "self trainer_mode trainer_config max_off_policy_threshold "
                "max_off_policy_strategy sampler_kwargs poll_interval refill_fn filter_groups_metric "
                "train_batch_size gen_batch_size max_inflight_gen_batches sync_refill_failed_groups",
                "ReplayBuffer.sample": "self global_steps partition_id batch_size",
                "ReplayBuffer._select_prompt_uids": "self partition_id sampleable_keys batch_size",
                "ReplayBuffer._wait_for_next_poll": "self partition_id last_debug_time",
                "ReplayBuffer._evict_terminal_groups": "self global_steps partition_id eviction_reasons",
                "ReplayBufferAsync.sample": "self global_steps partition_id batch_size",
            },
            "verl.workers.engine_workers": {
                "ActorRolloutRefWorker.init_model": "self",
                "ActorRolloutRefWorker.update_actor": "self data",
                "ActorRolloutRefWorker.update_weights": "self global_steps mode",
                "ActorRolloutRefWorker.save_checkpoint": "self local_path hdfs_path global_step max_ckpt_to_keep",
                "ActorRolloutRefWorker.load_checkpoint": "self local_path hdfs_path del_local_after_load",
                "TrainingWorker.train_mini_batch": "self data",
                "TrainingWorker.train_batch": "self data",
                "TrainingWorker.infer_batch": "self data",
                "TrainingWorker.set_loss_fn": "self loss_fn",
            },
            "verl.experimental.reward_loop.reward_manager.base": {
                "RewardManagerBase": "config tokenizer compute_score",
                "RewardManagerBase.run_single": "self data",
            },
        },
        CALL: {
            "verl.utils.import_utils": {
                "import_external_libs": "external_libs",
                "load_class_from_fqn": "fqn description",
            },
            "verl.workers.engine.fsdp.transformer_impl": {
                "FSDPEngineWithLMHead": "model_config engine_config optimizer_config checkpoint_config"
            },
            "verl.utils.distributed": {"initialize_global_process_group_ray": "timeout_second backend"},
            "verl.utils.config": {
                "omega_conf_to_dataclass": "config dataclass_type",
                "validate_config": "config use_reference_policy use_critic",
            },
            "verl.workers.rollout.utils": {"get_max_position_embeddings": "hf_config"},
            "verl.workers.rollout.llm_server": {"LLMServerManager.get_client": "self client_cls kwargs"},
            "verl.utils.tensordict_utils": {
                "get_non_tensor_data": "data key default",
                "assign_non_tensor_data": "tensor_dict key val",
                "list_of_dict_to_tensordict": "list_of_dicts",
            },
            "verl.utils.transferqueue_utils": {"kv_batch_meta2batch_meta": "meta"},
            "verl.workers.engine": {
                "BaseEngine.get_data_parallel_rank": "self",
                "BaseEngine.is_mp_src_rank_with_outputs": "self",
            },
            "verl.checkpoint_engine": {
                "CheckpointEngineManager.update_weights": "self global_steps",
                "CheckpointEngineManager.sleep_replicas": "self",
                "CheckpointEngineManager.resume_generation_replicas": "self",
            },
            "verl.utils.debug": {"marked_timer": "name timing_raw color domain category"},
            "verl.trainer.ppo.padding_utils": {
                "construct_minimal_padding_template": "source_td source_tag eos_token_id"
            },
            "verl.trainer.main_ppo": {"run_ppo": "config task_runner_class"},
            "verl.workers.utils.losses": {"ppo_loss": "config model_output data dp_group"},
            "verl.workers.utils.padding": {"no_padding_2_padding": "tensor data"},
            "verl.utils.metric": {"Metric": "aggregation value"},
            "verl.utils.ulysses": {
                "get_ulysses_sequence_parallel_world_size": "group",
                "slice_input_tensor": "x dim padding group",
            },
            "verl.trainer.ppo.utils": {"need_critic": "config", "need_reference_policy": "config"},
            "verl.utils.device": {"get_device_name": "", "get_torch_device": ""},
            "verl.single_controller.base.decorator": {
                "register": "dispatch_mode execute_mode blocking materialize_futures",
                "make_nd_compute_dataproto_dispatch_fn": "mesh_name",
            },
        },
        FIELDS: {
            "verl.workers.rollout.replica": {
                "TokenOutput": "token_ids log_probs routed_experts stop_reason num_preempted extra_fields"
            },
            f"{_LOOPS}.agent_loop": {
                "AgentLoopOutput": "prompt_ids response_ids response_mask response_logprobs routed_experts "
                "multi_modal_data reward_score num_turns metrics extra_fields mm_processor_kwargs mm_processor_output"
            },
        },
        PRIVATE: {
            "verl.workers.rollout.base": {"_ROLLOUT_REGISTRY": "vllm/async"},
        },
    }.items()
    for module, attributes in modules.items()
    for attribute, parameters in attributes.items()
)


VERL_RANGE = ">=0.9.1,<0.9.2"
# Modules that cannot be imported without vLLM: their signatures are read from the source.
_NEEDS_VLLM = {VLLM, VLLM_WORKER}


def version_problem() -> str | None:
    """An error message if the installed version of verl is not supported, or None."""
    installed = version("verl")
    if SpecifierSet(VERL_RANGE).contains(Version(installed).base_version):
        return None
    return f"verl {installed} is installed, but {VERL_RANGE} is supported: pip install 'verl{VERL_RANGE}'"


def check_api(points: tuple[ContractItem, ...] = API_CONTRACT) -> list[str]:
    """One line for every touch point that the installed verl lacks or has changed; empty if there are none."""
    problems = []
    for point in points:
        from_source = point.module in _NEEDS_VLLM and find_spec("vllm") is None
        named, expected = f"{point.module}.{point.attribute} ({point.kind})", point.parameters
        try:
            parameters = (_in_source if from_source else _installed)(point)
        except (ImportError, AttributeError) as missing:
            problems.append(f"{named} is missing: {missing}")
            continue
        if {*expected} - {*parameters} if point.kind == PRIVATE else parameters != expected:
            problems.append(f"{named} has changed: expected {list(expected)}, found {list(parameters)}")
    return problems


def _installed(point: ContractItem) -> tuple[str, ...]:
    """Parameter, field or key names of a touch point as installed.

    Raises ImportError or AttributeError if it does not exist.
    """
    target: Any = importlib.import_module(point.module)  # noqa: TID251  a literal name of the touch points
    for part in point.attribute.split("."):
        target = getattr(target, part)
        if (actor := getattr(target, "__ray_metadata__", None)) is not None:
            target = actor.modified_class  # the class behind a Ray actor class
    if point.kind == PRIVATE:
        return tuple("/".join(key) for key in target)
    if point.kind == FIELDS:
        return tuple(target.model_fields)
    # Ray adds parameters to the methods of actor classes.
    return tuple(name for name in inspect.signature(target).parameters if not name.startswith("_ray_"))


def _in_source(point: ContractItem) -> tuple[str, ...]:
    """Parameter names of a method from the source of its module, for a module that cannot be imported."""
    package, *inner = point.module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"no package {package}")
    try:
        source = Path(spec.origin).parent.joinpath(*inner).with_suffix(".py").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ImportError(f"no module {point.module}") from None
    body: list[ast.stmt] = ast.parse(source).body
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
