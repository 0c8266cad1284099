"""The values that a run sets in verl's tree: everything that determines its numbers, and its parallelism."""

from collections.abc import Mapping
from typing import Any

from cppo_lab.cores.base import CHECKPOINTS
from cppo_lab.cores.mini.tasks.base import make_task
from cppo_lab.cores.verl.files import Files
from cppo_lab.cores.verl.placement import KEPT_CHECKPOINTS
from cppo_lab.cores.verl.rollout.settings import CPU_ROLLOUT, ENGINE_KEY
from cppo_lab.spec import HubModel, LayoutSpec, MathData, TaskData, VerlRun

EPOCHS = 1_000_000  # only the number of steps ends a run


def settings(spec: VerlRun, layout: LayoutSpec, files: Files) -> dict[str, Any]:
    """The values that a run sets in verl's tree, by dotted key."""
    return (
        _data(spec, files)
        | _actor(spec, layout)
        | _rollout(spec, layout)
        | _trainer(spec, layout, files)
        | _engine(spec, layout, files)
    )


def _data(spec: VerlRun, files: Files) -> dict[str, Any]:
    data = spec.data
    prompt = data.max_prompt_length if isinstance(data, MathData) else data.prompt_length
    values: dict[str, Any] = {
        "train_files": str(files.train),
        "val_files": [str(path) for path in files.validation],
        "train_batch_size": spec.batch.prompts,
        "max_prompt_length": prompt,
        "max_response_length": spec.rollout.max_response_length,
        "filter_overlong_prompts": True,
        "truncation": "error",
        "shuffle": True,
        "seed": spec.seed,
        # In the trainer's process, so that checkpoints have the exact state of the data order.
        "dataloader_num_workers": 0,
        "validation_shuffle": False,
    }
    return {f"data.{key}": value for key, value in values.items()}


def _actor(spec: VerlRun, layout: LayoutSpec) -> dict[str, Any]:
    loss, own = spec.rule.verl_loss, spec.divergence
    values: dict[str, Any] = {
        "strategy": layout.strategy,
        "ppo_mini_batch_size": spec.batch.minibatch_prompts,
        "ppo_epochs": 1,
        "shuffle": False,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": layout.tokens_per_device,
        "loss_agg_mode": spec.training.aggregation,
        "loss_scale_factor": _horizon(spec),
        "entropy_coeff": 0,
        "calculate_entropy": False,  # our loss computes it in the same pass over the logits
        "use_kl_loss": False,
        "optim.lr": spec.optim.learning_rate,
        "optim.betas": [spec.optim.beta1, spec.optim.beta2],
        "optim.weight_decay": spec.optim.weight_decay,
        "optim.clip_grad": spec.optim.clip_grad_norm,
        "policy_loss._target_": "cppo_lab.cores.verl.loss_config.TrustRegionLossConfig",
        "policy_loss.loss_mode": loss or "trust_region",
        "+policy_loss.rule": "" if loss else spec.rule.name,
        "+policy_loss.path": spec.rule.path,
        "+policy_loss.constants": {} if loss else spec.rule.arguments(spec.rollout.max_response_length),
        "+policy_loss.estimator": own.estimator,
        "+policy_loss.measure": own.measure,
        "+policy_loss.k": own.k,
        "+policy_loss.convention": own.convention,
        "+policy_loss.horizon": spec.rollout.max_response_length,
    }
    if layout.strategy == "fsdp2":
        values["optim.lr_scheduler_type"] = "constant"
        values["grad_clip"] = spec.optim.clip_grad_norm
    else:
        values["optim.lr_decay_style"] = "constant"
    for name, value in (spec.rule.options or {} if loss else {}).items():
        values[OPTIONS.get(name, name)] = value
    return {_below("actor_rollout_ref.actor", key): value for key, value in values.items()}


# Constants of verl's own losses that live in the section of the loss, not of the actor.
OPTIONS = {
    name: f"policy_loss.{name}"
    for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
}


def _is_moe(spec: VerlRun) -> bool:
    return isinstance(spec.model, HubModel) and spec.model.active_parameters < spec.model.parameters


def _horizon(spec: VerlRun) -> int | None:
    return (
        spec.rollout.max_response_length if spec.training.aggregation == "seq-mean-token-sum-norm" else None
    )


def _below(section: str, key: str) -> str:
    """`key` in `section`, with a leading `+` kept in front."""
    return f"+{section}.{key[1:]}" if key.startswith("+") else f"{section}.{key}"


def top_k(spec: VerlRun) -> int:
    """How many of mu's most likely tokens the rollout must keep; 0: none. D_t is reported for verl's own losses too."""
    if spec.divergence.estimator == "exact":
        assert isinstance(spec.data, TaskData)

        return make_task(spec.data).tokenizer.vocabulary
    return spec.divergence.k or 0


def _rollout(spec: VerlRun, layout: LayoutSpec) -> dict[str, Any]:
    cpu = layout.rollout == CPU_ROLLOUT
    values: dict[str, Any] = {
        "name": layout.rollout,
        "n": spec.batch.responses,
        "temperature": spec.rollout.temperature,
        "top_p": spec.rollout.top_p,
        "top_k": -1,
        "dtype": spec.rollout.precision,
        "seed": spec.seed,
        "calculate_log_probs": True,
        "tensor_model_parallel_size": layout.rollout_tensor_parallel,
        "gpu_memory_utilization": layout.rollout_memory,
        "val_kwargs.n": spec.validation.samples,
        "val_kwargs.temperature": spec.validation.temperature,
        "val_kwargs.top_p": spec.validation.top_p,
        "val_kwargs.do_sample": True,
        "agent.num_workers": 1 if cpu else min(8, layout.devices),
        "agent.default_agent_loop": "cppo_single_turn",
        "+agent.agent_loop_manager_class": "cppo_lab.cores.verl.rollout.dispatch.MarkedAgentLoopManager",
        f"+engine_kwargs.{ENGINE_KEY}": {
            "topk": top_k(spec),
            "topk_dtype": layout.topk_dtype,
            "seed": spec.seed,
            # vLLM's sampler launches a kernel for each request that has a seed: too many in the batches of the mixture
            # of experts, 4,096 responses a step.
            "seed_requests": not _is_moe(spec),
        },
    }
    return {_below("actor_rollout_ref.rollout", key): value for key, value in values.items()}


def _trainer(spec: VerlRun, layout: LayoutSpec, files: Files) -> dict[str, Any]:
    values: dict[str, Any] = {
        "total_epochs": EPOCHS,
        "total_training_steps": spec.training.t_stop,
        "test_freq": spec.validation.every,
        "save_freq": spec.validation.every,
        "val_before_train": files.resume is None,
        "logger": ["console"],  # metrics go to our recorder; this is for the log file
        "project_name": "cppo",
        "experiment_name": spec.run_id,
        "default_local_dir": str(files.folder / CHECKPOINTS),
        "max_actor_ckpt_to_keep": KEPT_CHECKPOINTS,
        "resume_mode": "disable" if files.resume is None else "resume_path",
        "resume_from_path": None if files.resume is None else str(files.resume),
        "nnodes": layout.nodes,
        "n_gpus_per_node": layout.devices_per_node,
        "device": layout.device,
        "v1.sampler.custom_sampler.path": "pkg://cppo_lab.cores.verl.replay",
        "v1.sampler.custom_sampler.name": "LabReplayBuffer",
    }
    return {f"trainer.{key}": value for key, value in values.items()} | {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": spec.advantage.normalize_std,
        "algorithm.use_kl_in_reward": False,
        # mu is the rollout engine's own probability, for every method alike.
        "algorithm.rollout_correction.bypass_mode": True,
        # Our trainer drops groups without variance; verl would sample others in their place.
        "algorithm.filter_groups.enable": False,
    }


def _engine(spec: VerlRun, layout: LayoutSpec, files: Files) -> dict[str, Any]:
    cpu = layout.device == "cpu"
    values: dict[str, Any] = {
        "actor_rollout_ref.model.path": files.model,
        "actor_rollout_ref.model.use_fused_kernels": False,  # they would hide the logits that D_t needs
        "actor_rollout_ref.model.use_remove_padding": not cpu,
        "actor_rollout_ref.model.enable_gradient_checkpointing": not cpu,
        "reward.num_workers": 1 if cpu else 8,
    }
    if isinstance(spec.model, HubModel):
        values["reward.custom_reward_function.path"] = "pkg://cppo_lab.data.reward"
        values["reward.custom_reward_function.name"] = "compute_score"
    else:
        values["reward.reward_manager.source"] = "importlib"
        values["reward.reward_manager.name"] = "TaskRewardManager"
        values["reward.reward_manager.module.path"] = "pkg://cppo_lab.cores.verl.task_reward"
    if cpu:
        values["+actor_rollout_ref.model.override_config"] = {"attn_implementation": "sdpa"}
        values["transfer_queue.backend.SimpleStorage.num_data_storage_units"] = 1
    if layout.strategy == "fsdp2":
        dtype = {"float32": "fp32", "bfloat16": "bf16"}[spec.rollout.precision]
        engine: dict[str, Any] = {
            "ulysses_sequence_parallel_size": layout.sequence_parallel,
            "param_offload": layout.offload,
            "optimizer_offload": layout.offload,
            "use_torch_compile": not cpu,
            "dtype": spec.rollout.precision,
            "+mixed_precision": {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        }
        values |= {_below("actor_rollout_ref.actor.fsdp_config", key): value for key, value in engine.items()}
        values["actor_rollout_ref.actor.ulysses_sequence_parallel_size"] = layout.sequence_parallel
        return values
    assert layout.megatron is not None
    megatron: Mapping[str, Any] = {
        "tensor_model_parallel_size": layout.megatron.tensor,
        "pipeline_model_parallel_size": layout.megatron.pipeline,
        "expert_model_parallel_size": layout.megatron.expert,
        "context_parallel_size": layout.megatron.context,
        "param_offload": layout.offload,
        "optimizer_offload": layout.offload,
        "+override_transformer_config.moe_router_dtype": "fp32",  # as in the authors' settings
    }
    return values | {
        _below("actor_rollout_ref.actor.megatron", key): value for key, value in megatron.items()
    }
