"""What must hold before verl starts: its own checks, and those that it leaves out."""

from typing import Any

from cppo_lab.cores.verl import compat
from cppo_lab.errors import UserError
from cppo_lab.spec import LayoutSpec, VerlRun


def check_config(spec: VerlRun, layout: LayoutSpec, config: Any) -> None:
    """Check verl's whole configuration for a run. Needs no GPU.

    Raises UserError naming the key, its value and the remedy.
    """
    from hydra.errors import InstantiationException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    problem = compat.version_problem()
    if problem is not None:
        raise UserError(problem)
    _check_ours(spec, layout, config)
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        for section in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm"):
            value = config
            for part in section.split("."):
                value = value[part]
            omega_conf_to_dataclass(value)
    except InstantiationException as error:  # around whatever a config class of verl, or of ours, has raised
        raise UserError(f"verl's configuration: {error.__cause__ or error}") from error
    except (AssertionError, ValueError, TypeError) as error:
        raise UserError(f"verl refuses the configuration: {error}") from error


def _check_ours(spec: VerlRun, layout: LayoutSpec, config: Any) -> None:
    actor, rollout, model = (config.actor_rollout_ref[name] for name in ("actor", "rollout", "model"))
    rows = spec.batch.minibatch_prompts * spec.batch.responses
    ranks = data_parallel_ranks(layout)
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
    if actor.get("pad_to_length"):
        raise UserError(
            "verl's actor.pad_to_length=True pads the rows that D_t is measured on: drop it from layout.verl"
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    limit = layout.tokens_per_device * layout.sequence_parallel
    if longest > limit:
        raise UserError(
            f"layout.tokens_per_device={layout.tokens_per_device} x sequence_parallel={layout.sequence_parallel} holds "
            f"{limit} tokens, but a prompt and its response may have {longest}: raise one of them"
        )


def data_parallel_ranks(layout: LayoutSpec) -> int:
    """Ranks that train different responses."""
    if layout.megatron is None:
        return layout.devices // layout.sequence_parallel
    sizes = layout.megatron
    return layout.devices // (sizes.tensor * sizes.pipeline * sizes.context)
