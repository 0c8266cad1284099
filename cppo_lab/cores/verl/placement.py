"""Checks a run against its layout for errors that would otherwise only show up after hours in the queue."""

from cppo_lab.errors import UserError, nearest
from cppo_lab.rules import ENTROPY, MINIBATCH
from cppo_lab.spec import LayoutSpec, VerlRun
from cppo_lab.spec.estimate import KEPT_CHECKPOINTS, KEPT_KEY

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# The keys of verl that `layout.verl` may set, by section. A run's id does not cover its layout, so these change what a
# run takes in time and memory, and of its numbers no more than the rounding.
PERFORMANCE = tuple(
    f"{section}.{name}"
    for section, names in {
        ACTOR: "use_torch_compile",
        f"{ACTOR}.fsdp_config": "forward_prefetch fsdp_size offload_policy reshard_after_forward "
        "use_torch_compile",
        f"{ACTOR}.megatron": "expert_tensor_parallel_size sequence_parallel use_distributed_optimizer "
        "virtual_pipeline_model_parallel_size",
        f"{ACTOR}.megatron.override_ddp_config": "overlap_grad_reduce overlap_param_gather",
        f"{ACTOR}.megatron.override_transformer_config": "moe_grouped_gemm moe_permute_fusion "
        "moe_token_dispatcher_type recompute_granularity recompute_method recompute_modules recompute_num_layers",
        f"{ACTOR}.optim.override_optimizer_config": "optimizer_cpu_offload optimizer_offload_fraction "
        "overlap_cpu_optimizer_d2h_h2d use_precision_aware_optimizer",
        f"{ACTOR}.profiler": "all_ranks enable ranks",
        "actor_rollout_ref.model": "enable_activation_offload enable_gradient_checkpointing use_shm",
        "actor_rollout_ref": "nccl_timeout",
        ROLLOUT: "cudagraph_capture_sizes disable_log_stats enable_chunked_prefill enable_prefix_caching "
        "enable_sleep_mode enforce_eager free_cache_engine max_num_batched_tokens max_num_seqs",
        f"{ROLLOUT}.agent": "num_workers",
        f"{ROLLOUT}.checkpoint_engine": "update_weights_bucket_megabytes",
        f"{ROLLOUT}.engine_kwargs.vllm": "disable_custom_all_reduce",
        "data": "filter_overlong_prompts_workers",
        "global_profiler": "profile_continuous_steps save_path steps tool",
        "reward": "num_workers",
        "trainer": "logger max_actor_ckpt_to_keep",
        "transfer_queue.backend.SimpleStorage": "num_data_storage_units total_storage_size",
    }.items()
    for name in names.split()
)
# Fields of a layout that set keys of verl.
FIELDS = {
    "trainer.nnodes": "nodes",
    "trainer.n_gpus_per_node": "devices_per_node",
    "trainer.device": "device",
    f"{ROLLOUT}.name": "rollout",
    f"{ROLLOUT}.gpu_memory_utilization": "rollout_memory",
    f"{ROLLOUT}.tensor_model_parallel_size": "rollout_tensor_parallel",
    f"{ROLLOUT}.engine_kwargs.cppo_lab.topk_dtype": "topk_dtype",
    f"{ACTOR}.strategy": "strategy",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "tokens_per_device",
    f"{ACTOR}.ulysses_sequence_parallel_size": "sequence_parallel",
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": "sequence_parallel",
    **{
        f"{ACTOR}.megatron.{size}_model_parallel_size": f"megatron.{size}"
        for size in ("tensor", "pipeline", "expert")
    },
    f"{ACTOR}.megatron.context_parallel_size": "megatron.context",
    **{
        f"{ACTOR}.{engine}.{part}_offload": "offload"
        for engine in ("fsdp_config", "megatron")
        for part in ("param", "optimizer")
    },
    "trainer.save_freq": "checkpoint_every",
}
# Fields of a run that do, since they change its numbers.
RUN_FIELDS = {
    "actor_rollout_ref.model.lora_rank": "optim.lora_rank",
    "actor_rollout_ref.model.lora_alpha": "optim.lora_alpha",
    f"{ACTOR}.fsdp_config.model_dtype": "optim.master_dtype",
    f"{ACTOR}.megatron.router_replay.mode": "rollout.router_replay",
    f"{ROLLOUT}.enable_rollout_routing_replay": "rollout.router_replay",
    f"{ROLLOUT}.quantization": "rollout.quantization",
}


def check_placement(run: VerlRun, layout: LayoutSpec) -> None:
    """Raises UserError for a run that cannot train on the layout."""
    if run.rule.needs(MINIBATCH):
        raise UserError(
            f"configuration: rule={run.rule.name} decides over a whole minibatch, which core=verl cuts into "
            "micro-batches and spreads over ranks: choose core=mini, or another rule"
        )
    if run.objective is not None and layout.strategy == "megatron":
        raise UserError(
            f"configuration: objective.centering=true with layout={layout.name}: Megatron gives no gradient in log pi "
            "at mu's Top-K; choose a layout with FSDP"
        )
    if run.rule.needs(ENTROPY) and run.divergence.estimator not in ("topk", "exact"):
        raise UserError(
            f"configuration: rule={run.rule.name} needs the entropy of mu, which core=verl takes from mu's Top-K: "
            "choose divergence=topk_tv or topk_kl"
        )
    _check_length(run, layout)
    _check_ranks(run, layout)
    _check_engine(run, layout)
    check_keys(layout)


def _check_length(run: VerlRun, layout: LayoutSpec) -> None:
    """A micro-batch must hold a sequence of maximum length; verl would fail only at the first such update."""
    prompt = run.longest_prompt
    longest = prompt + run.rollout.max_response_length
    group = layout.sequence_parallel * (layout.megatron.context if layout.megatron else 1)
    if layout.tokens_per_device * group < longest:
        raise UserError(
            f"configuration: layout.tokens_per_device={layout.tokens_per_device} on {group} devices per sequence is "
            f"less than the longest sequence, {prompt} + {run.rollout.max_response_length} tokens: set "
            f"layout.tokens_per_device={-(-longest // group)} or more, or raise layout.sequence_parallel"
        )


def _check_engine(run: VerlRun, layout: LayoutSpec) -> None:
    """What verl's engines carry of a run's settings, and what `cppo export` reads of it."""
    rollout, optim, fsdp = run.rollout, run.optim, layout.strategy == "fsdp2"
    if rollout.staleness and not fsdp:
        raise UserError(
            f"configuration: rollout.staleness={rollout.staleness} with layout={layout.name}: Megatron's weights are "
            "views of its optimiser's buffers, and that they come back unchanged from an earlier policy has not been "
            "tested: choose a layout with strategy fsdp2, or rollout.staleness=0"
        )
    for key, value, works, remedy in (
        # Untested: that Megatron's engine meets rollouts that go on.
        ("rollout.mode", rollout.mode, fsdp, "a layout with strategy fsdp2: one_node"),
        (
            "rollout.router_replay",
            rollout.router_replay,
            not fsdp,
            "a layout with Megatron: four_nodes_megatron",
        ),
        ("rollout.quantization", rollout.quantization, layout.device == "cuda", "a layout with GPUs"),
        ("optim.master_dtype", optim.master_dtype, fsdp, "a layout with strategy fsdp2: four_nodes_moe"),
        ("optim.lora_rank", optim.lora_rank, fsdp, "a layout with strategy fsdp2: one_node"),
    ):
        if value is not None and not works:
            raise UserError(
                f"configuration: {key}={value!r} cannot be had with layout={layout.name!r}, strategy={layout.strategy} "
                f"on device={layout.device}: choose {remedy}, or set {key}=null"
            )


def _check_ranks(run: VerlRun, layout: LayoutSpec) -> None:
    rows = run.batch.minibatch_prompts * run.batch.responses
    if rows % layout.data_parallel_ranks:
        raise UserError(
            f"configuration: layout={layout.name!r} has {layout.data_parallel_ranks} data-parallel ranks, which cannot "
            f"share a minibatch of {run.batch.minibatch_prompts} prompts x {run.batch.responses} responses equally: "
            f"choose a layout whose ranks divide {rows}"
        )


def check_keys(layout: LayoutSpec) -> None:
    """Raises UserError for a key of `layout.verl` that may change a run's numbers, but not its id."""
    for key, value in layout.verl.items():
        name = key.removeprefix("+")
        if name not in PERFORMANCE:
            raise UserError(
                f"configuration: layout {layout.name}: layout.verl sets {key}={value!r}. It may set only keys that "
                f"cost time and memory, since a run's id does not cover its layout: {_remedy(name)}"
            )
        few = value is not None and not (isinstance(value, int) and value >= KEPT_CHECKPOINTS)
        if name == KEPT_KEY and few:
            raise UserError(
                f"configuration: layout {layout.name}: layout.verl sets {key}={value!r}, and verl deletes a checkpoint "
                f"before it writes the next: set {KEPT_CHECKPOINTS} or more, or null to keep all"
            )


def _remedy(name: str) -> str:
    """What to do instead of setting the key `name`."""
    if name in FIELDS:
        return f"set layout.{FIELDS[name]}"
    if name in RUN_FIELDS:
        return f"set {RUN_FIELDS[name]}, which enters the id"
    meant = " or ".join(map(repr, sorted(nearest(name, PERFORMANCE))))
    hint = f"; did you mean {meant}?" if meant else ""
    return (
        "drop it, or set the run's own field if it has one (`cppo list keys`). docs/verl.md lists the keys"
        + hint
    )
