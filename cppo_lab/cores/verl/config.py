"""The configuration of verl's trainer for a run: the values that the run sets, and verl's tree with them, checked
before anything starts.
"""

import copy
import glob
import json
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from cppo_lab.core_records import CHECKPOINTS
from cppo_lab.cores.verl import check_api
from cppo_lab.cores.verl.checks import ACTOR, ROLLOUT, check_keys, check_placement
from cppo_lab.cores.verl.files import Files, planned_files
from cppo_lab.cores.verl.rollout import CPU_ROLLOUT, ENGINE_KEY
from cppo_lab.errors import UserError, unknown
from cppo_lab.spec import AnswersSpec, LayoutSpec, MathData, PathsSpec, TaskData, VerlRun
from cppo_lab.spec.job import KEPT_CHECKPOINTS, estimate

# The values that a run sets in verl's tree: everything that determines its numbers, and its parallelism.

EPOCHS = 1_000_000  # only the number of steps ends a run


def settings(spec: VerlRun, layout: LayoutSpec, files: Files) -> dict[str, Any]:
    """The values that a run sets in verl's tree, by dotted key."""
    sections = {
        "data": {
            # Escaped for Hugging Face's `datasets`, which take them for patterns.
            "train_files": glob.escape(str(files.train)),
            "val_files": [glob.escape(str(path)) for path in files.validation],
            "train_batch_size": spec.batch.prompts,
            "max_prompt_length": spec.longest_prompt,
            "max_response_length": spec.rollout.max_response_length,
            "filter_overlong_prompts": True,
            "truncation": "error",
            "shuffle": True,
            "seed": spec.seed,
            # In the trainer's process, so that checkpoints have the exact state of the data order.
            "dataloader_num_workers": 0,
            "validation_shuffle": False,
        },
        ACTOR: _actor(spec, layout),
        ROLLOUT: {
            "name": layout.rollout,
            "n": spec.batch.responses,
            "temperature": spec.rollout.temperature,
            "top_p": spec.rollout.top_p,
            "top_k": -1,
            "dtype": spec.rollout.precision,
            "quantization": spec.rollout.quantization,
            "enable_rollout_routing_replay": spec.rollout.router_replay == "R3",
            "seed": spec.seed,
            "calculate_log_probs": True,
            "tensor_model_parallel_size": layout.rollout_tensor_parallel,
            "gpu_memory_utilization": layout.rollout_memory,
            "val_kwargs.n": spec.validation.samples,
            "val_kwargs.temperature": spec.validation.temperature,
            "val_kwargs.top_p": spec.validation.top_p,
            "val_kwargs.do_sample": True,
            "agent.num_workers": 1 if layout.rollout == CPU_ROLLOUT else min(8, layout.devices),
            "agent.default_agent_loop": "cppo_single_turn",
            "agent.agent_loop_manager_class": "cppo_lab.cores.verl.rollout.agent_loop.MarkedAgentLoopManager",
            f"engine_kwargs.{ENGINE_KEY}": {
                "topk": top_k(spec),
                "topk_dtype": layout.topk_dtype,
                "seed": spec.seed,
                # vLLM's sampler launches a kernel for each request that has a seed: too many in the batches of the
                # mixture of experts, 4,096 responses a step.
                "seed_requests": not spec.has_experts,
            },
        },
        "trainer": _trainer(spec, layout, files),
        "algorithm": {
            "adv_estimator": "grpo",
            "norm_adv_by_std_in_grpo": spec.advantage.normalize_std,
            "use_kl_in_reward": False,
            # mu is the rollout engine's probability, for every method alike; decoupled, verl computes pi_old's, and our
            # loss the weights between them, by which rejected tokens stay in the prefix.
            "rollout_correction.bypass_mode": spec.rollout.correction is None,
            # Our trainer drops groups without variance; verl would sample others in their place.
            "filter_groups.enable": False,
        },
    }
    values = {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}
    return values | _engine(spec, layout, files)


def _actor(spec: VerlRun, layout: LayoutSpec) -> dict[str, Any]:
    loss, longest = spec.rule.verl_loss, spec.rollout.max_response_length
    values: dict[str, Any] = {
        "strategy": layout.strategy,
        "ppo_mini_batch_size": spec.batch.minibatch_prompts,
        "ppo_epochs": 1,
        "shuffle": False,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": layout.tokens_per_device,
        "loss_agg_mode": spec.training.aggregation,
        "loss_scale_factor": longest if spec.training.aggregation == "seq-mean-token-sum-norm" else None,
        "entropy_coeff": 0,
        "calculate_entropy": False,  # our loss computes it in the same pass over the logits
        "use_kl_loss": False,
        "optim.lr": spec.optim.learning_rate,
        "optim.betas": [spec.optim.beta1, spec.optim.beta2],
        "optim.weight_decay": spec.optim.weight_decay,
        "optim.clip_grad": spec.optim.clip_grad_norm,
        # verl makes this class of the section; `loss.trust_region_loss` gets it within the worker's `actor_config`.
        "policy_loss._target_": "cppo_lab.cores.verl.loss.TrustRegionLossConfig",
        "policy_loss.loss_mode": loss or "trust_region",
        "policy_loss.rule": "" if loss else spec.rule.name,
        "policy_loss.path": spec.rule.path,
        "policy_loss.constants": {} if loss else spec.rule.arguments(longest),
        **{f"policy_loss.{name}": value for name, value in spec.divergence},
        "policy_loss.horizon": longest,
        "policy_loss.centering": spec.objective is not None,
        "policy_loss.weights": spec.rollout.weights,
    }
    if layout.strategy == "fsdp2":
        values["optim.lr_scheduler_type"] = "constant"
        values["grad_clip"] = spec.optim.clip_grad_norm
    else:
        values["optim.lr_decay_style"] = "constant"
    for name, value in (spec.rule.options or {} if loss else {}).items():
        values[f"policy_loss.{name}" if name in OPTIONS else name] = value
    return values


# Constants of verl's losses that live in the section of the loss, not of the actor.
OPTIONS = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")


def top_k(spec: VerlRun) -> int:
    """How many of mu's most likely tokens the rollout must keep; 0: none. D_t is reported for verl's losses too."""
    if spec.divergence.estimator == "exact":
        assert isinstance(spec.data, TaskData)
        return spec.data.vocabulary
    return spec.divergence.k or 0


def _trainer(spec: VerlRun, layout: LayoutSpec, files: Files) -> dict[str, Any]:
    values: dict[str, Any] = {
        "total_epochs": EPOCHS,
        "total_training_steps": spec.training.t_stop,
        "test_freq": spec.validation.every,
        "save_freq": 1,  # our trainer decides which steps it saves
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
        "v1.sampler.custom_sampler.path": "pkg://cppo_lab.cores.verl.trainer",
        "v1.sampler.custom_sampler.name": "LabReplayBuffer",
    }
    if spec.rollout.max_staleness is not None:
        values |= {
            "v1.trainer_mode": "colocate_async",
            # One batch ahead. With more of them, more prompts than a batch has may reach the largest age at once, and
            # verl would train some of them later.
            "v1.colocate_async.num_warmup_batches": 1,
            # verl counts from the step that a prompt is submitted in, which is 1.
            "v1.sampler.max_off_policy_threshold": 1 + spec.rollout.max_staleness,
            "v1.sampler.max_off_policy_strategy": "wait",  # dropping would prefer short responses
            "v1.sampler.custom_sampler.name": "AsyncLabReplayBuffer",
        }
    return values


def _engine(spec: VerlRun, layout: LayoutSpec, files: Files) -> dict[str, Any]:
    cpu = layout.device == "cpu"
    values: dict[str, Any] = {
        "actor_rollout_ref.nccl_timeout": 3600,  # seconds; a checkpoint may take longer than verl's ten minutes
        "actor_rollout_ref.model.path": files.model,
        "actor_rollout_ref.model.use_fused_kernels": False,  # they would hide the logits that D_t needs
        "actor_rollout_ref.model.use_remove_padding": not cpu,
        "actor_rollout_ref.model.enable_gradient_checkpointing": not cpu,
        "reward.num_workers": 1 if cpu else 8,
    }
    if spec.optim.lora_rank:
        values["actor_rollout_ref.model.lora_rank"] = spec.optim.lora_rank
        values["actor_rollout_ref.model.lora_alpha"] = spec.optim.lora_alpha
        # The rollout engine gets whole weights, so that every engine can serve them.
        values["actor_rollout_ref.model.lora.merge"] = True
    if isinstance(spec.data, MathData):
        module, name = "data.grading", "compute_score"
        if spec.own_reward:
            module, name = "cores.verl.rewards", "own_score"
            values["reward.custom_reward_function.reward_kwargs"] = {"function": spec.own_reward}
        values["reward.custom_reward_function.path"] = f"pkg://cppo_lab.{module}"
        values["reward.custom_reward_function.name"] = name
    else:
        values["reward.reward_manager.source"] = "importlib"
        values["reward.reward_manager.name"] = "TaskRewardManager"
        values["reward.reward_manager.module.path"] = "pkg://cppo_lab.cores.verl.rewards"
    if cpu:
        values["actor_rollout_ref.model.override_config"] = {"attn_implementation": "sdpa"}
        values["transfer_queue.backend.SimpleStorage.num_data_storage_units"] = 1
    if layout.strategy == "fsdp2":
        dtype = {"float32": "fp32", "bfloat16": "bf16"}[spec.rollout.precision]
        engine: dict[str, Any] = {
            "ulysses_sequence_parallel_size": layout.sequence_parallel,
            "param_offload": layout.offload,
            "optimizer_offload": layout.offload,
            "use_torch_compile": not cpu,
            "dtype": spec.rollout.precision,
            "model_dtype": spec.optim.master_dtype or "fp32",
            "mixed_precision": {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        }
        values |= {f"{ACTOR}.fsdp_config.{key}": value for key, value in engine.items()}
        values[f"{ACTOR}.ulysses_sequence_parallel_size"] = layout.sequence_parallel
        return values
    assert layout.megatron is not None
    megatron: Mapping[str, Any] = {
        "tensor_model_parallel_size": layout.megatron.tensor,
        "pipeline_model_parallel_size": layout.megatron.pipeline,
        "expert_model_parallel_size": layout.megatron.expert,
        "context_parallel_size": layout.megatron.context,
        "param_offload": layout.offload,
        "optimizer_offload": layout.offload,
        "override_transformer_config.moe_router_dtype": "fp32",  # as in the authors' settings
        "router_replay.mode": spec.rollout.router_replay or "disabled",
    }
    return values | {f"{ACTOR}.megatron.{key}": value for key, value in megatron.items()}


def check_config(spec: VerlRun, layout: LayoutSpec, config: Any) -> None:
    """Check verl's whole configuration for a run, as `verl_config` makes it. Needs no GPU.

    Raises UserError naming the key, its value and the remedy.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import get_class
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    if problem := check_api.version_problem():
        raise UserError(problem)
    check_placement(spec, layout)
    cost = estimate(spec, layout)
    if (
        cost is not None and not cost.memory.fits
    ):  # which may be wrong: a larger device_memory_gb overrides it
        raise UserError(
            f"layout {layout.name}: run {spec.run_id} {cost.memory.verdict} by the estimate: choose another layout, a "
            f"smaller layout.tokens_per_device={layout.tokens_per_device} or layout.rollout_memory="
            f"{layout.rollout_memory:g}, or GPUs with more memory (layout.device_memory_gb={layout.device_memory_gb:g})"
        )
    # What the layout sets against the types that verl's config classes declare: verl itself does not check them.
    for key in layout.verl:
        section, _, name = key.removeprefix("+").rpartition(".")
        target = OmegaConf.select(config, f"{section}._target_")
        hint = typing.get_type_hints(get_class(target)).get(name) if target else None
        value = OmegaConf.select(config, f"{section}.{name}")
        plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        try:
            if hint is not None:
                TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(plain)
        except ValidationError as error:
            kind = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
            raise UserError(f"verl's {key}={plain!r} must be {kind}: fix it in layout.verl") from error
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        for section in (ACTOR, ROLLOUT, "algorithm"):
            omega_conf_to_dataclass(OmegaConf.select(config, section))
    except InstantiationException as error:  # wraps whatever a config class of verl or ours has raised
        raise UserError(f"verl's configuration: {error.__cause__ or error}") from error
    except (AssertionError, ValueError, TypeError) as error:
        raise UserError(f"verl refuses the configuration: {error}") from error


# verl's configuration for a run: our values override verl's tree. A key that verl does not have is an error.

SECTION = "cppo_lab"  # ours in verl's tree


class LabSettings(BaseModel):
    """Our section of verl's tree: the settings of the run that the trainer's process needs."""

    spec: VerlRun
    folder: Path
    answers: AnswersSpec | None  # which responses to keep; None: none
    checkpoint_every: int | None  # steps; None: at validations alone
    deadline: float | None  # when the run is ended, in seconds since the epoch


def lab_settings(config: DictConfig) -> LabSettings:
    """Our section of `config`, typed again."""
    return LabSettings.model_validate_json(json.dumps(OmegaConf.to_container(config[SECTION], resolve=True)))


def verl_config(
    spec: VerlRun,
    layout: LayoutSpec,
    files: Files,
    answers: AnswersSpec | None = None,
    mismatch: bool = True,
    deadline: float | None = None,
) -> DictConfig:
    """The complete tree for verl's `main_ppo`.

    `answers`: which responses the trainer keeps; `mismatch`: whether the loss reports the sums of `mismatch/*`;
    `deadline`: when the run is ended. None of them is part of a run's identity.

    Raises UserError for a key of `layout.verl` that verl's tree does not have, or that a layout must not set.
    """
    check_keys(layout)
    defaults = _verl_tree("megatron" if layout.strategy == "megatron" else "dp")
    config = copy.deepcopy(defaults)
    for key in layout.verl:
        section: Any = defaults
        before = ""
        # A key with a + may be new, as in Hydra, and so may any key in a section that verl leaves empty.
        for part in () if key.startswith("+") else key.split("."):
            if isinstance(section, DictConfig) and not section:
                break
            names: list[Any] = list(section) if isinstance(section, DictConfig) else []
            if part not in names:
                beside = [f"{before}{name}" for name in names]
                raise unknown(f"key of verl (layout {layout.name})", f"{before}{part}", beside)
            section, before = OmegaConf.select(defaults, f"{before}{part}"), f"{before}{part}."
    for key, value in (settings(spec, layout, files) | layout.verl).items():
        with open_dict(config):
            OmegaConf.update(config, key.removeprefix("+"), value, merge=False, force_add=True)
    ours = LabSettings(
        spec=spec,
        folder=files.folder,
        answers=answers if answers is not None and answers.keep else None,
        checkpoint_every=layout.checkpoint_every,
        deadline=deadline,
    )
    with open_dict(config):
        plain = ours.model_dump(mode="json")
        config[SECTION] = plain | {"spec": spec.model_dump(mode="json", exclude_none=True)}
        config.actor_rollout_ref.actor.policy_loss.mismatch = mismatch
    OmegaConf.resolve(config)  # once, not at every access
    return config


def plain_config(spec: VerlRun, layout: LayoutSpec, paths: PathsSpec, runs: Path) -> dict[str, Any]:
    """verl's tree for a run as plain values, with the checks that precede training. Needs no files and no GPU.

    Raises UserError as `verl_config` and `check_config`.
    """
    config = verl_config(spec, layout, planned_files(spec, paths, runs, runs / spec.run_id))
    check_config(spec, layout, config)
    values: Any = OmegaConf.to_container(config, resolve=True)
    return dict(values)


@cache
def _verl_tree(engine: str) -> DictConfig:
    """verl's defaults."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"model_engine={engine}"])
