"""Checks before verl starts: verl's own checks, and those that it lacks."""

import types
import typing
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cppo_lab.cores.verl import check_api
from cppo_lab.cores.verl.rollout.settings import RolloutSettings
from cppo_lab.cores.verl.run_settings import top_k
from cppo_lab.errors import UserError
from cppo_lab.estimate import estimate
from cppo_lab.spec import LayoutSpec, VerlRun

# Sections that our runs do not use; some of verl's own values there do not match their declared types.
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
    for key, (value, wanted) in expected.items():
        if value != wanted:
            raise UserError(
                f"verl's {key}={value} must be {wanted} for run {spec.run_id}: drop it from layout.verl"
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
    kept, needed = RolloutSettings.read(rollout.engine_kwargs).topk, top_k(spec)
    if kept != needed or (loss.estimator == "topk" and loss.k != needed):
        raise UserError(
            f"the rollout keeps {kept} of mu's most likely tokens (rollout.engine_kwargs.cppo_lab.topk), the loss has "
            f"estimator {loss.estimator!r} with k={loss.k}, and the run's divergence needs {needed}: they must agree"
        )


def _typed_values(config: DictConfig, before: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, value, declared type) of the values that belong to one of verl's config classes."""
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
        return any(_fits(value, one) for one in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not (hint in (bool, str, types.NoneType) and not isinstance(value, hint))
