"""The configuration of verl's trainer for a run: settings, and checks before anything starts.

The values that a run sets in verl's tree: everything that determines its numbers, and its parallelism.
"""

import copy
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from cppo_lab.cores.base import CHECKPOINTS
from cppo_lab.cores.mini.tasks.base import make_task
from cppo_lab.cores.verl import check_api
from cppo_lab.cores.verl.files import Files, planned_files
from cppo_lab.cores.verl.placement import KEPT_CHECKPOINTS, check_keys
from cppo_lab.cores.verl.rollout.settings import CPU_ROLLOUT, ENGINE_KEY, RolloutSettings
from cppo_lab.errors import UserError, unknown
from cppo_lab.estimate import estimate
from cppo_lab.spec import AnswersSpec, HubModel, LayoutSpec, MathData, PathsSpec, TaskData, VerlRun
from cppo_lab.spec.parse import parse_run

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
    loss, divergence = spec.rule.verl_loss, spec.divergence
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
        "policy_loss._target_": "cppo_lab.cores.verl.loss.TrustRegionLossConfig",
        "policy_loss.loss_mode": loss or "trust_region",
        "+policy_loss.rule": "" if loss else spec.rule.name,
        "+policy_loss.path": spec.rule.path,
        "+policy_loss.constants": {} if loss else spec.rule.arguments(spec.rollout.max_response_length),
        "+policy_loss.estimator": divergence.estimator,
        "+policy_loss.measure": divergence.measure,
        "+policy_loss.k": divergence.k,
        "+policy_loss.convention": divergence.convention,
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


# Constants of verl's losses that live in the section of the loss, not of the actor.
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
    """How many of mu's most likely tokens the rollout must keep; 0: none. D_t is reported for verl's losses too."""
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
        "+agent.agent_loop_manager_class": "cppo_lab.cores.verl.rollout.agent_loop.MarkedAgentLoopManager",
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
        # mu is the rollout engine's probability, for every method alike.
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


# Checks before verl starts: those of verl, and those that it lacks.


# Sections that our runs do not use; some of verl's values there do not match their declared types.
UNUSED = ("critic", "actor_rollout_ref.ref", "qat")
PADDING = ("pad_to_length", "fsdp_config.pad_to_length", "megatron.pad_to_length")


def check_config(spec: VerlRun, layout: LayoutSpec, config: Any) -> None:
    """Check verl's whole configuration for a run. Needs no GPU.

    Raises UserError naming the key, its value and the remedy.
    """
    from hydra.errors import InstantiationException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    problem = check_api.version_problem()
    if problem is not None:
        raise UserError(problem)
    _check_ours(spec, layout, config)
    _check_top_k(spec, config)
    _check_memory(spec, layout)
    for key, value, hint in _typed_values(config):
        if not _fits(value, hint):
            name = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
            raise UserError(f"verl's {key}={value!r} must be {name}: fix it in layout.verl")
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        for section in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm"):
            value = config
            for part in section.split("."):
                value = value[part]
            omega_conf_to_dataclass(value)
    except InstantiationException as error:  # wraps whatever a config class of verl or ours has raised
        raise UserError(f"verl's configuration: {error.__cause__ or error}") from error
    except (AssertionError, ValueError, TypeError) as error:
        raise UserError(f"verl refuses the configuration: {error}") from error


def _check_ours(spec: VerlRun, layout: LayoutSpec, config: Any) -> None:
    actor, rollout, model = (config.actor_rollout_ref[name] for name in ("actor", "rollout", "model"))
    rows = spec.batch.minibatch_prompts * spec.batch.responses
    ranks = layout.data_parallel_ranks
    if rows % ranks:
        raise UserError(
            f"a minibatch of {spec.batch.minibatch_prompts} prompts x {spec.batch.responses} responses = {rows} rows "
            f"cannot be shared equally by {ranks} data-parallel ranks: choose a layout whose ranks divide {rows}"
        )
    expected = {
        "data.train_batch_size": (config.data.train_batch_size, spec.batch.prompts),
        "actor.ppo_mini_batch_size": (actor.ppo_mini_batch_size, spec.batch.minibatch_prompts),
        "rollout.n": (rollout.n, spec.batch.responses),
        "trainer.v1.trainer_mode": (config.trainer.v1.trainer_mode, "sync"),
        "trainer.use_v1": (config.trainer.use_v1, True),
        "algorithm.rollout_correction.bypass_mode": (config.algorithm.rollout_correction.bypass_mode, True),
        "algorithm.filter_groups.enable": (config.algorithm.filter_groups.enable, False),
        "rollout.calculate_log_probs": (rollout.calculate_log_probs, True),
        "model.use_fused_kernels": (model.use_fused_kernels, False),
        "model.trust_remote_code": (model.trust_remote_code, False),
    }
    for key, (value, required) in expected.items():
        if value != required:
            raise UserError(
                f"verl's {key}={value} must be {required} for run {spec.run_id}: drop it from layout.verl"
            )
    for key in PADDING:
        if OmegaConf.select(actor, key):
            raise UserError(
                f"verl's actor.{key}=True pads the rows that D_t is measured on: drop it from layout.verl"
            )


def _check_memory(spec: VerlRun, layout: LayoutSpec) -> None:
    """Check the memory estimate. It may be wrong: a larger `layout.device_memory_gb` overrides it."""
    cost = estimate(spec, layout)
    if cost is not None and not cost.memory.fits:
        raise UserError(
            f"layout {layout.name}: run {spec.run_id} {cost.memory.verdict} by the estimate: choose another layout, a "
            f"smaller layout.tokens_per_device={layout.tokens_per_device} or layout.rollout_memory="
            f"{layout.rollout_memory:g}, or GPUs with more memory (layout.device_memory_gb={layout.device_memory_gb:g})"
        )


def _check_top_k(spec: VerlRun, config: Any) -> None:
    """Check that the rollout records what the loss needs of mu."""
    loss, rollout = config.actor_rollout_ref.actor.policy_loss, config.actor_rollout_ref.rollout
    topk, needed = RolloutSettings.read(rollout.engine_kwargs).topk, top_k(spec)
    if topk != needed or (loss.estimator == "topk" and loss.k != needed):
        raise UserError(
            f"the rollout keeps {topk} of mu's most likely tokens (rollout.engine_kwargs.cppo_lab.topk), the loss has "
            f"estimator {loss.estimator!r} with k={loss.k}, and the run's divergence needs {needed}: they must agree"
        )


def _typed_values(config: DictConfig, before: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, value, declared type) of the values that belong to verl's config classes."""
    from hydra.utils import get_class

    target = OmegaConf.select(config, "_target_")
    hints = typing.get_type_hints(get_class(target)) if target else {}
    for name in map(str, config):
        key = f"{before}{name}"
        if key in UNUSED or name in UNUSED or OmegaConf.is_missing(config, name):
            continue
        value = config[name]
        if name in hints:
            yield key, value, hints[name]
        if isinstance(value, DictConfig):
            yield from _typed_values(value, f"{key}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a plain value is of a declared type; other values pass, since Hydra instantiates them."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, member) for member in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not (hint in (bool, str, types.NoneType) and not isinstance(value, hint))


# verl's configuration for a run: our values override verl's tree. A key that verl does not have is an error.


SECTION = "cppo_lab"  # ours in verl's tree


@dataclass(frozen=True)
class LabSettings:
    """Our section of verl's tree: the settings of the run that the trainer's process needs."""

    spec: VerlRun
    folder: Path
    answers: AnswersSpec | None = None  # which responses to keep; None: none


def lab_settings(config: DictConfig) -> LabSettings:
    """Our section of `config`, typed again."""
    values = OmegaConf.to_container(config[SECTION], resolve=True)
    assert isinstance(values, dict)
    spec = parse_run(values["spec"], "cppo_lab.spec")
    assert isinstance(spec, VerlRun)
    answers = values.get("answers")
    return LabSettings(
        spec, Path(values["folder"]), None if answers is None else AnswersSpec.model_validate(answers)
    )


def verl_config(spec: VerlRun, layout: LayoutSpec, files: Files) -> DictConfig:
    """The complete tree for verl's `main_ppo`.

    Raises UserError for a key of `layout.verl` that verl's tree does not have, or that a layout must not set.
    """
    defaults = _verl_tree("megatron" if layout.strategy == "megatron" else "dp")
    config = copy.deepcopy(defaults)
    values = settings(spec, layout, files)
    for key, value in values.items():
        _check_exists(defaults, key, "settings of a run")
        _set(config, key, value)
    check_keys(layout)
    for key, value in layout.verl.items():
        _check_exists(defaults, key, f"layout {layout.name}")
        _set(config, key, value)
    with open_dict(config):
        config[SECTION] = {
            "spec": spec.model_dump(mode="json", exclude_none=True),
            "folder": str(files.folder),
        }
    OmegaConf.resolve(config)  # once, not at every access
    return config


def plain_config(spec: VerlRun, layout: LayoutSpec, paths: PathsSpec, runs: Path) -> dict[str, Any]:
    """verl's tree for a run as plain values, with the checks that precede training. Needs no files and no GPU.

    Raises UserError as `verl_config` and `checks.check_config`.
    """
    config = verl_config(spec, layout, planned_files(spec, paths, runs, runs / spec.run_id))
    check_config(spec, layout, config)
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


@cache
def _verl_tree(engine: str) -> DictConfig:
    """verl's defaults."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"model_engine={engine}"])


def _set(config: DictConfig, key: str, value: Any) -> None:
    with open_dict(config):
        OmegaConf.update(config, key.removeprefix("+"), value, merge=False, force_add=True)


def set_mismatch(config: DictConfig, reported: bool) -> None:
    """Set whether the loss reports the sums of `mismatch/*`, which is not part of a run's identity."""
    _set(config, "actor_rollout_ref.actor.policy_loss.mismatch", reported)


def set_answers(config: DictConfig, answers: AnswersSpec | None) -> None:
    """Set which responses the trainer keeps, which is not part of a run's identity."""
    if answers is not None and answers.keep:
        _set(config, f"{SECTION}.answers", answers.model_dump(mode="json"))


def _check_exists(defaults: DictConfig, key: str, where: str) -> None:
    """Raise UserError for a key that verl does not have; the message lists the keys next to its first wrong part.

    A key that begins with `+` may be new, as in Hydra, and so may any key in a section that verl leaves empty.
    """
    section: Any = defaults
    before = ""
    for part in () if key.startswith("+") else key.split("."):
        if not isinstance(section, DictConfig) or part not in list(section):
            if isinstance(section, DictConfig) and not section:
                return
            beside = list(section) if isinstance(section, DictConfig) else []
            raise unknown(f"key of verl ({where})", f"{before}{part}", [f"{before}{name}" for name in beside])
        section, before = OmegaConf.select(defaults, f"{before}{part}"), f"{before}{part}."
