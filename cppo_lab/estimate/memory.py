"""Memory of one GPU at its two peaks, training and rollout, and whether it fits."""

from dataclasses import dataclass

from cppo_lab.estimate import assumptions as given
from cppo_lab.estimate.shape import Amounts, ModelShape
from cppo_lab.estimate.time import kv_bytes
from cppo_lab.spec import LayoutSpec

# Keys of verl's tree for recomputation: the first for its FSDP2 engine, the others for its Megatron engine.
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
MEGATRON_RECOMPUTES = "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_"
CPU_OPTIMISER = "actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload"


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes per GPU. `state` is weights, gradients and AdamW's; `activations` those of one micro-batch.

    `training` and `rollout` are the two peaks, since the rollout engine sleeps while the policy trains. `kv_cache` is
    the room for keys and values of one engine besides its weights, on all its GPUs (negative: not even the weights
    fit); `kv_needed` is the size of one sequence of maximum length.
    """

    state: float
    activations: float
    logits: float
    training: float
    rollout: float
    kv_cache: float
    kv_needed: float
    available: float

    @property
    def peak(self) -> float:
        """The larger of the two peaks."""
        return max(self.training, self.rollout)

    @property
    def fits(self) -> bool:
        """Whether the GPU has the memory, and the rollout engine room for one longest sequence."""
        return self.peak <= self.available and self.kv_cache >= self.kv_needed

    @property
    def verdict(self) -> str:
        """`fits in 80 GB (...)`, or what does not."""
        where = "training" if self.training >= self.rollout else "rollout"
        peak = f"peak {self.peak / 1e9:.0f} GB, in {where}"
        if self.fits:
            return f"fits in {self.available / 1e9:.0f} GB ({peak})"
        if self.peak <= self.available:
            peak = (
                f"the rollout engine lacks {(self.kv_needed - self.kv_cache) / 1e9:.0f} GB for its weights and the "
                "keys and values of one longest sequence"
            )
        return f"does not fit in {self.available / 1e9:.0f} GB ({peak})"


def estimate_memory(
    shape: ModelShape, amounts: Amounts, layout: LayoutSpec, available: float
) -> MemoryEstimate:
    """The memory of one GPU of `layout` that has `available` bytes."""
    state = _state(shape, layout)
    split = layout.megatron.tensor if layout.megatron else 1  # sequence parallelism splits activations, too
    activations = _activations(shape, layout) / split + _gathered(shape, layout)
    logits = layout.tokens_per_device * shape.vocabulary * given.LOGIT / split
    training = state + activations + logits + given.RESERVE
    engine = layout.rollout_memory * available
    resting = 0.0 if layout.offload else state
    cache = layout.rollout_tensor_parallel * engine - shape.parameters * given.WEIGHT
    return MemoryEstimate(
        state=state,
        activations=activations,
        logits=logits,
        training=training,
        rollout=resting + engine + given.RESERVE,
        kv_cache=cache,
        kv_needed=amounts.longest * kv_bytes(shape),
        available=available,
    )


def _state(shape: ModelShape, layout: LayoutSpec) -> float:
    """Weights, gradients and optimiser of one GPU.

    For a mixture of experts, only `parameters - active` is counted as sharded over the expert-parallel GPUs. The
    experts that a token uses are counted on every GPU, so the figure is some 15 % too large for Qwen3-30B-A3B.
    """
    if layout.megatron is None:
        return shape.parameters * given.FSDP_STATE / layout.devices
    sizes = layout.megatron
    experts = (shape.parameters - shape.active) / sizes.expert
    local = (experts + shape.active / sizes.tensor) / sizes.pipeline
    optimiser = (
        0.0
        if layout.verl.get(CPU_OPTIMISER)
        else shape.parameters * given.MEGATRON_OPTIMISER / layout.devices
    )
    return local * given.MEGATRON_LOCAL + optimiser


def _activations(shape: ModelShape, layout: LayoutSpec) -> float:
    """The inputs of recomputed layers, and all activations of the layers that are not, or are being, recomputed."""
    layer = given.LAYER_MOE if shape.is_moe else given.LAYER
    kept, at_once = _recomputed(shape, layout)
    per_token = (kept - at_once) * given.CHECKPOINT + (shape.layers - kept + at_once) * layer
    return layout.tokens_per_device * shape.width * per_token


def _recomputed(shape: ModelShape, layout: LayoutSpec) -> tuple[int, int]:
    """How many layers are recomputed in the backward pass, and how many of them at a time.

    Megatron's `uniform` keeps the input of every n-th layer, `block` recomputes the first n one by one. Its selective
    recomputation covers core attention, which flash attention does not store anyway.
    """
    settings = {key.removeprefix("+"): value for key, value in layout.verl.items()}
    if layout.megatron is None:
        return (shape.layers, 1) if settings.get(CHECKPOINTING, True) else (0, 0)
    if settings.get(f"{MEGATRON_RECOMPUTES}granularity") != "full":
        return 0, 0
    number = min(int(settings.get(f"{MEGATRON_RECOMPUTES}num_layers") or 1), shape.layers)
    if settings.get(f"{MEGATRON_RECOMPUTES}method") == "block":
        return number, 1
    return shape.layers, number


def _gathered(shape: ModelShape, layout: LayoutSpec) -> float:
    """The weights that FSDP2 gathers: two layers (one prefetched), and the embedding and output matrices."""
    if layout.megatron is not None:
        return 0.0
    return given.WEIGHT * 2 * (shape.parameters / shape.layers + shape.vocabulary * shape.width)
