"""What is not part of a run's identity: the resources of its job in Slurm's terms, the layout of verl's trainer over
devices, paths, and the answers that are recorded. And what a run costs there before it is run: GPU-hours, and the
memory of a GPU at its two peaks, training and rollout.

Decoding is bounded by memory traffic and by FLOPs, training runs at a stated share of the peak. Every number that is
assumed is below, with its unit and source. Peaks are data-sheet values. The shares of them that a run reaches, and the
fixed costs, are fitted to the steps that others have published (`tests/spec/test_job.py` has the table), before
any run of ours on such a machine: the resulting hours are accurate to a factor of UNCERTAINTY either way.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from cppo_lab.core_records import core_of
from cppo_lab.errors import UserError
from cppo_lab.plugins import hub_cache
from cppo_lab.spec.run import (
    BYTES,
    Count,
    HubModel,
    MathData,
    Positive,
    Probability,
    RunSpec,
    Spec,
    SyntheticModel,
    TaskData,
    fingerprint,
)

# These become options of a batch script, so characters that are special to a shell are excluded.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+@-]*$", max_length=256)]
Features = Annotated[str, Field(pattern=r"^[A-Za-z0-9\[(][A-Za-z0-9_.,:|&*()\[\]-]*$", max_length=256)]
GpuType = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=256)]
Hours = Annotated[float, Field(gt=0, le=10_000)]
Memory = Annotated[float, Field(ge=0, allow_inf_nan=False)]

LEAST_CPUS = 4  # for each GPU


class ResourcesSpec(Spec):
    """Time and resources of a run; None: the cluster's default. Nodes and devices are in the layout."""

    hours: Hours  # after which the run is ended
    cpus: Count | None  # of each node
    memory_gb: Memory | None  # of each node, in 2^30 bytes as Slurm's G; 0: the whole node's
    gpu_type: GpuType | None = None  # as Slurm's gres name it: a100; nothing to a run on CPUs
    partition: Word | None
    account: Word | None
    qos: Word | None
    constraint: Features | None


class Megatron(Spec):
    """Parallel sizes of the Megatron engine, named like its settings."""

    tensor: Count
    pipeline: Count
    expert: Count
    context: Count

    @property
    def replica(self) -> int:
        """Devices that together hold a copy of the model and train the same responses."""
        return self.tensor * self.pipeline * self.context


class LayoutSpec(Spec):
    """Nodes, devices and parallel sizes.

    `tokens_per_device` bounds the tokens of a micro-batch. Every validated step has a checkpoint, since it may be the
    best; `checkpoint_every` adds others. `verl` has further settings of verl by their dotted names; they are applied
    last.
    """

    name: str
    device: Literal["cuda", "cpu"]
    device_memory_gb: Positive = 80.0  # 1e9 bytes, of each device; ignored for a CPU
    device_tflops: Positive | None = (
        None  # dense bfloat16, from the data sheet, for estimates; None: an H100's
    )
    device_gb_per_second: Positive | None = None  # of its memory, likewise
    nodes: Count
    devices_per_node: Count
    cpus_per_gpu: Count | None = None  # that a job asks for; None: the cluster's default
    strategy: Literal["fsdp2", "megatron"]
    megatron: Megatron | None
    sequence_parallel: Count  # Ulysses; FSDP2 only
    rollout: Literal["vllm", "cppo_cpu"]
    rollout_tensor_parallel: Count
    rollout_memory: Probability  # share of a device's memory that the rollout engine may take
    tokens_per_device: Count
    offload: bool  # keep parameters and optimiser state in host memory between uses
    topk_dtype: Literal["float16", "float32"]  # of mu's Top-K log-probabilities on the wire
    checkpoint_every: Count | None = None  # training steps; None: at validations alone
    verl: dict[str, Any]

    def faults(self) -> Iterator[str]:
        if (self.strategy == "megatron") != (self.megatron is not None):
            yield (
                f"strategy={self.strategy!r} with megatron={self.megatron!r}: the Megatron engine, and only it, needs "
                "its parallel sizes"
            )
        for name, size, devices, of in (
            ("sequence_parallel", self.sequence_parallel, self.devices, "the layout"),
            # An engine over several nodes would keep the job id of Ray on its other nodes.
            ("rollout_tensor_parallel", self.rollout_tensor_parallel, self.devices_per_node, "a node"),
        ):
            if devices % size:
                yield f"{name}={size} must divide the {devices} devices of {of}"
        for names in (("tensor", "pipeline", "context"), ("expert", "pipeline")) if self.megatron else ():
            sizes = {name: getattr(self.megatron, name) for name in names}
            if self.devices % (product := math.prod(sizes.values())):
                shown = " x ".join(f"{name}={size}" for name, size in sizes.items())
                yield f"{shown} = {product} must divide the {self.devices} devices of the layout"
        if self.device == "cuda" and self.rollout == "cppo_cpu":
            yield "rollout='cppo_cpu' with device='cuda': it serves CPUs; GPUs are served by vllm"

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def least_cpus(self) -> int:
        """CPUs of a node below which a run on GPUs is refused: each has a trainer, an engine and their front ends."""
        return self.devices_per_node * min(LEAST_CPUS, self.cpus_per_gpu or LEAST_CPUS)

    @property
    def data_parallel_ranks(self) -> int:
        """Ranks that train different responses."""
        return self.devices // (self.megatron.replica if self.megatron else self.sequence_parallel)


class PathsSpec(Spec):
    """Folders of prepared data and downloaded models; None: the hub's cache."""

    data: str
    models: str | None


def layout_tag(layout: LayoutSpec) -> str:
    """`<name>@<fingerprint>`: a tag that identifies a layout, including overrides of the named layout.

    CPUs do not count, like `resources`.
    """
    return f"{layout.name}@{fingerprint(layout.model_copy(update={'cpus_per_gpu': None}))}"


class AnswersSpec(Spec):
    """How much of its answers a run records, in the files of `cppo_lab.answers`.

    keep: False records nothing. problems: the number of validation problems whose answers are recorded at each
    validation; outcomes always cover all problems. groups: the number of training groups (prompts) whose responses and
    tokens are recorded at each validated step. megabytes: the limit of a run's texts and tokens together, in 2^20
    bytes.
    """

    keep: bool
    problems: Annotated[int, Field(ge=0, le=10**6)] | Literal["all"]
    groups: Annotated[int, Field(ge=0, le=10**6)]
    megabytes: Annotated[float, Field(ge=0, le=10**6)]

    @property
    def wanted_problems(self) -> int | None:
        """How many problems; None for all of them."""
        return None if self.problems == "all" else self.problems


# The cost of a run

# One NVIDIA H100 SXM 80 GB, from its data sheet; a layout may name those of another device.
BF16_FLOPS = 989e12  # per second, dense tensor cores
BANDWIDTH = 3.35e12  # bytes per second

UNCERTAINTY = 2.0  # true hours lie between hours / 2 and hours * 2

# Training. MFU counts 6 FLOPs per active parameter and token; the recomputation of checkpointed layers lowers it.
# dense, packed long sequences (assumption)
TRAINING_MFU = 0.30
TRAINING_MFU_MOE = 0.15  # small experts and their exchange between GPUs (assumption)

# Rollout. Small experts are many short kernels: decoding them reaches less of the bandwidth, and each step takes longer
# beside it.
BANDWIDTH_SHARE, BANDWIDTH_SHARE_MOE = 0.8, 0.3  # of the peak that decoding reaches (fitted)
PREFILL_SHARE = 0.4  # of the peak FLOPs that prefill reaches (assumption)
DECODE_SHARE = 0.25  # of the peak FLOPs that decoding reaches where it is bound by them (assumption)
# seconds per decoding step: scheduling, sampling, Top-K log-probabilities, tensor parallelism (fitted)
DECODE_OVERHEAD, DECODE_OVERHEAD_MOE = 0.003, 0.018
PROMPT_TOKENS = 200  # mean (assumption)
# Maximum number of concurrent responses of an engine: verl 0.9.1's default, and the key by which a layout sets it.
MAX_SEQUENCES = 256
MAX_SEQUENCES_KEY = "actor_rollout_ref.rollout.max_num_seqs"

# Once per training step: grading, waking and sleeping of the rollout engine, transfer of the batch.
STEP_OVERHEAD = 15.0  # seconds (assumption)
# bytes per second of the bfloat16 weights to the rollout engines: verl's documents have 15.8 s for 30B on 16 + 16 GPUs
SYNC_BANDWIDTH = 4e9
START = 600.0  # seconds: loading, compiling, capturing graphs (assumption)

PROBLEMS_PER_BENCHMARK = 30  # AIME
# Mean response length in tokens over all training steps of CPPO, read off the paper's curves of response length
# (reports/paper/training_diagnostics.csv.gz, metric response_length_k; a test compares). The other methods of a model
# lie between 0.16 (TRM-Max on 30B-A3B) and 1.28 times it.
MEAN_RESPONSE = {
    "Qwen/Qwen3-1.7B": 5154,
    "Qwen/Qwen3-1.7B-Base": 3324,
    "Qwen/Qwen3-8B-Base": 3717,
    "Qwen/Qwen3-30B-A3B-Base": 6686,
}
MEAN_SHARE = 0.5  # of the maximum length, for any other model (assumption)

# Bytes per parameter.
WEIGHT = 2  # bfloat16, of the rollout engine and of computation
# Weights and gradients, and AdamW's two moments, in float32 (verl: fsdp_config.model_dtype=fp32) or in bfloat16; with
# adapters the weights alone, since theirs are few.
FSDP_STATE, FSDP_STATE_BFLOAT16, FSDP_STATE_ADAPTERS = 16, 8, 4
MEGATRON_LOCAL = 6  # bfloat16 weights and float32 gradients, on every GPU that holds the shard
MEGATRON_OPTIMISER = 12  # float32 weights and two moments, spread over all GPUs (distributed optimiser)

# Bytes of activations.
# per token, layer and unit of width: the bfloat16 input of each layer (gradient checkpointing)
CHECKPOINT = 2
# per token and unit of width: what a layer of Qwen3 keeps for its backward pass where it is not recomputed, in
# bfloat16, counted by hooks on saved tensors (a test counts again: 55.3 at 1.7B's widths, 52.7 at 8B's, 95.1 at 30B's)
LAYER = 56
LAYER_MOE = 96
# per token and symbol: bfloat16 logits, whose gradient takes their place (a test counts). With Megatron verl keeps a
# copy of them for its log-probabilities, and their gradient.
LOGIT, LOGIT_MEGATRON = 2, 6
CHUNK = 2 * 4 * 2**26  # two float32 buffers of the logits of some tokens (maths/divergence.py)
KV = 2  # bfloat16 keys and values

# bytes: CUDA context, NCCL buffers, fragmentation, what a sleeping rollout engine keeps (assumption)
RESERVE = 6e9


@dataclass(frozen=True)
class ModelShape:
    """A transformer in numbers. `active`: parameters that a token uses; `state`: bytes that FSDP keeps of each."""

    parameters: float
    active: float
    layers: int
    width: int
    kv_width: int
    vocabulary: int
    state: int = FSDP_STATE

    @property
    def is_moe(self) -> bool:
        """Whether a token uses only a part of the parameters."""
        return self.active < self.parameters


@dataclass(frozen=True)
class Amounts:
    """Responses and tokens of a training step and a validation, and how many of each there are."""

    responses: int
    validation_responses: int
    prompt: float  # mean tokens
    response: float  # mean tokens
    longest_prompt: int
    longest_response: int
    steps: int
    validations: int


def shape_of(run: RunSpec) -> ModelShape:
    """The shape of a published model, or of an embedded model."""
    model, state = run.model, FSDP_STATE
    if run.optim.master_dtype:
        state = FSDP_STATE_BFLOAT16
    if run.optim.lora_rank:
        state = FSDP_STATE_ADAPTERS
    if isinstance(model, HubModel):
        return ModelShape(
            model.parameters * 1e9,
            model.active_parameters * 1e9,
            model.layers,
            model.width,
            model.kv_width,
            model.vocabulary,
            state,
        )
    assert isinstance(model, SyntheticModel)
    sizes = model.architecture
    vocabulary = run.data.vocabulary if isinstance(run.data, TaskData) else BYTES
    attention = sizes.width * sizes.head_dim * 2 * (sizes.heads + sizes.kv_heads)
    parameters = sizes.layers * (attention + 3 * sizes.width * sizes.mlp_width) + vocabulary * sizes.width
    return ModelShape(
        parameters, parameters, sizes.layers, sizes.width, sizes.kv_heads * sizes.head_dim, vocabulary
    )


def amounts_of(run: RunSpec) -> Amounts:
    """The tokens of a run, by the paper's mean response lengths where it has them."""
    data, longest = run.data, run.rollout.max_response_length
    if isinstance(data, TaskData):
        problems, prompt, longest_prompt = data.validation_problems, data.prompt_length, data.prompt_length
        response: float = data.worked_length
    else:
        assert isinstance(data, MathData)
        problems, prompt, longest_prompt = PROBLEMS_PER_BENCHMARK, PROMPT_TOKENS, data.max_prompt_length
        repository = run.model.repository if isinstance(run.model, HubModel) else ""
        response = MEAN_RESPONSE.get(repository, MEAN_SHARE * longest)
    return Amounts(
        responses=run.batch.prompts * run.batch.responses,
        validation_responses=len(data.benchmarks) * problems * run.validation.samples,
        prompt=float(prompt),
        response=float(min(response, longest)),
        longest_prompt=longest_prompt,
        longest_response=longest,
        steps=run.training.t_stop,
        validations=run.training.t_stop // run.validation.every + 1,  # and before the first step
    )


# Keys of verl's tree for recomputation: the first for its FSDP2 engine, the second for its Megatron engine. The others:
# the optimiser, or everything, rests in host memory while it trains.
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
MEGATRON_RECOMPUTES = "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_"
CPU_OPTIMISER = "actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_cpu_offload"
OFFLOAD_POLICY = "actor_rollout_ref.actor.fsdp_config.offload_policy"


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes per GPU. `state` is weights, gradients and AdamW's; `activations` those of a micro-batch.

    `training` and `rollout` are the two peaks, since the rollout engine sleeps while the policy trains. `kv_cache` is
    the room for keys and values of an engine besides its weights, on all its GPUs (negative: not even the weights
    fit); `kv_needed` is the size of a sequence of maximum length. `host`: of each node's memory, earlier policies.
    """

    state: float
    activations: float
    logits: float
    training: float
    rollout: float
    kv_cache: float
    kv_needed: float
    available: float
    host: float = 0.0

    @property
    def peak(self) -> float:
        """The larger of the two peaks."""
        return max(self.training, self.rollout)

    @property
    def fits(self) -> bool:
        """Whether the GPU has the memory, and the rollout engine room for the longest sequence."""
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
    """The memory of a GPU of `layout` that has `available` bytes."""
    state = _state(shape, layout)
    split = layout.megatron.tensor if layout.megatron else 1  # sequence parallelism splits activations, too
    # The inputs of recomputed layers, and all activations of the layers that are not, or are being, recomputed.
    kept, at_once = _recomputed(shape, layout)
    layer = LAYER_MOE if shape.is_moe else LAYER
    per_token = (kept - at_once) * CHECKPOINT + (shape.layers - kept + at_once) * layer
    activations = layout.tokens_per_device * shape.width * per_token / split
    # FSDP2 gathers two layers (one prefetched), and the embedding and output matrices.
    if layout.megatron is None:
        activations += WEIGHT * 2 * (shape.parameters / shape.layers + shape.vocabulary * shape.width)
    logit = LOGIT_MEGATRON if layout.megatron else LOGIT
    logits = layout.tokens_per_device * shape.vocabulary * logit / split + CHUNK
    training = state + activations + logits + RESERVE
    engine = layout.rollout_memory * available
    resting = 0.0 if layout.offload else state
    cache = layout.rollout_tensor_parallel * engine - shape.parameters * WEIGHT
    return MemoryEstimate(
        state=state,
        activations=activations,
        logits=logits,
        training=training,
        rollout=resting + engine + RESERVE,
        kv_cache=cache,
        kv_needed=(amounts.longest_prompt + amounts.longest_response) * kv_bytes(shape),
        available=available,
    )


def _state(shape: ModelShape, layout: LayoutSpec) -> float:
    """Weights, gradients and optimiser of a GPU.

    For a mixture of experts, only `parameters - active` is counted as sharded over the expert-parallel GPUs. The
    experts that a token uses are counted on every GPU, so the figure is some 15 % too large for Qwen3-30B-A3B.
    """
    if layout.megatron is None:
        return 0.0 if layout.verl.get(OFFLOAD_POLICY) else shape.parameters * shape.state / layout.devices
    sizes = layout.megatron
    experts = (shape.parameters - shape.active) / sizes.expert
    local = (experts + shape.active / sizes.tensor) / sizes.pipeline
    optimiser = 0 if layout.verl.get(CPU_OPTIMISER) else MEGATRON_OPTIMISER
    return local * MEGATRON_LOCAL + shape.parameters * optimiser / layout.devices


def _recomputed(shape: ModelShape, layout: LayoutSpec) -> tuple[int, int]:
    """How many layers are recomputed in the backward pass, and how many of them at a time.

    Megatron's `uniform` keeps the input of every n-th layer, `block` recomputes each of the first n by itself. Its
    selective recomputation covers core attention, which flash attention does not store anyway.
    """
    settings = {key.removeprefix("+"): value for key, value in layout.verl.items()}
    if layout.megatron is None:
        return (shape.layers, 1) if settings.get(CHECKPOINTING, True) else (0, 0)
    if settings.get(f"{MEGATRON_RECOMPUTES}granularity") != "full":
        return 0, 0
    number = min(_whole(settings, f"{MEGATRON_RECOMPUTES}num_layers", 1), shape.layers)
    if settings.get(f"{MEGATRON_RECOMPUTES}method") == "block":
        return number, 1
    return shape.layers, number


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of a training step, of a validation and of the whole run, on `devices` GPUs."""

    rollout: float
    update: float
    overhead: float
    validation: float
    total: float
    devices: int

    @property
    def step(self) -> float:
        """Seconds of a training step, validation excluded."""
        return self.rollout + self.update + self.overhead

    @property
    def hours(self) -> float:
        """Wall-clock hours of the run."""
        return self.total / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs together."""
        return self.hours * self.devices


def estimate_time(
    shape: ModelShape, amounts: Amounts, layout: LayoutSpec, max_staleness: int | None = None
) -> TimeEstimate:
    """The time of a run on devices of the layout's speed.

    `max_staleness`: of asynchronous rollouts, None for others. A response then may take one batch more than this, so
    that an engine waits less for the longest ones.
    """
    patient = amounts
    if max_staleness is not None:
        longest = max(amounts.longest_response / (1 + max_staleness), amounts.response)
        patient = replace(amounts, longest_response=round(longest))
    rollout = sampling_seconds(shape, patient, layout, amounts.responses)
    validation = sampling_seconds(shape, amounts, layout, amounts.validation_responses)
    # All minibatch updates: 6 FLOPs per active parameter and token, and causal attention's. Bypass mode recomputes no
    # log-probabilities, and there is no reference model.
    length = amounts.prompt + amounts.response
    per_token = 6 * (shape.active + shape.layers * shape.width * length)
    mfu = TRAINING_MFU_MOE if shape.is_moe else TRAINING_MFU
    update = amounts.responses * length * per_token / (layout.devices * peaks(layout)[0] * mfu)
    overhead = STEP_OVERHEAD + shape.parameters * WEIGHT / SYNC_BANDWIDTH
    total = (
        START
        + amounts.steps * (rollout + update + overhead)
        + amounts.validations * (validation + STEP_OVERHEAD)
    )
    return TimeEstimate(rollout, update, overhead, validation, total, layout.devices)


def sampling_seconds(shape: ModelShape, amounts: Amounts, layout: LayoutSpec, responses: int) -> float:
    """Seconds to sample `responses` responses, spread evenly over the rollout engines.

    An engine of g GPUs decodes for as many steps as the longest response has tokens, which some response of a batch
    nearly always reaches; or for more, if the KV cache or the engine's limit allows fewer concurrent responses. Each
    step reads all weights (a batch touches every expert) and costs its overhead; each token reads the keys and values
    of the tokens before it, T / 2 on average: squares of the mean length approximate the mean of squares.
    """
    gpus = layout.rollout_tensor_parallel
    share = responses * gpus / layout.devices  # of an engine
    tokens = share * amounts.response
    kv_token = kv_bytes(shape)
    # Concurrent responses of mean length, limited by KV cache and settings; at least 1.
    memory = gpus * layout.rollout_memory * layout.device_memory_gb * 1e9
    room = memory - shape.parameters * WEIGHT
    most = _whole(layout.verl, MAX_SEQUENCES_KEY, MAX_SEQUENCES)
    concurrent = max(1.0, min(most, room / (kv_token * (amounts.prompt + amounts.response))))
    steps = max(amounts.longest_response, tokens / concurrent)
    flops, bandwidth = (gpus * peak for peak in peaks(layout))
    bandwidth *= BANDWIDTH_SHARE_MOE if shape.is_moe else BANDWIDTH_SHARE
    overhead = DECODE_OVERHEAD_MOE if shape.is_moe else DECODE_OVERHEAD
    traffic = steps * shape.parameters * WEIGHT + tokens * (amounts.prompt + amounts.response / 2) * kv_token
    compute = tokens * 2 * shape.active / (flops * DECODE_SHARE)
    prefill = share * amounts.prompt * 2 * shape.active / (flops * PREFILL_SHARE)
    return prefill + steps * overhead + max(traffic / bandwidth, compute)


def peaks(layout: LayoutSpec) -> tuple[float, float]:
    """FLOPs and bytes per second of a device, from its data sheet."""
    return (
        1e12 * layout.device_tflops if layout.device_tflops else BF16_FLOPS,
        1e9 * layout.device_gb_per_second if layout.device_gb_per_second else BANDWIDTH,
    )


def _whole(settings: Mapping[str, Any], key: str, otherwise: int) -> int:
    """A number among a layout's settings of verl; `otherwise` if it is null or not there. Raises UserError."""
    value = settings.get(key) or otherwise
    try:
        return int(value)
    except (TypeError, ValueError):
        raise UserError(f"layout.verl sets {key}={value!r}: must be a whole number") from None


def kv_bytes(shape: ModelShape) -> float:
    """Bytes of keys and values of a token."""
    return 2.0 * shape.layers * shape.kv_width * KV


@dataclass(frozen=True)
class CostEstimate:
    """Time and memory of a run."""

    time: TimeEstimate
    memory: MemoryEstimate


def estimate(run: RunSpec, layout: LayoutSpec, available: float | None = None) -> CostEstimate | None:
    """The cost of a run on the layout's GPUs, each with `available` bytes, or the layout's if None.

    None for runs without GPUs, and for a core that has no estimate.
    """
    of_core = core_of(run.core).load("estimate")
    cost: CostEstimate | None = of_core(run, layout, available) if of_core is not None else None
    return cost


def estimate_on_gpus(run: RunSpec, layout: LayoutSpec, available: float | None = None) -> CostEstimate | None:
    """The estimate of a core that trains a model on all GPUs of its layout, and samples from it on the same GPUs."""
    if layout.device != "cuda":
        return None
    shape, amounts = shape_of(run), amounts_of(run)
    available = available or layout.device_memory_gb * 1e9
    memory = estimate_memory(shape, amounts, layout, available)
    return CostEstimate(
        estimate_time(shape, amounts, layout, run.rollout.max_staleness),
        replace(memory, host=past_policies(run) / layout.nodes),
    )


def past_policies(run: RunSpec) -> float:
    """Bytes of host memory, on all nodes, of the policies that a stale mu needs, the current policy included."""
    copies = run.rollout.staleness + 1 if run.rollout.staleness else 0
    weights = SAVED["fsdp2"][1] / (2 if run.optim.master_dtype else 1)
    return copies * shape_of(run).parameters * weights


# Bytes per parameter of a checkpoint with AdamW's state, and of its weights alone: float32 weights and two moments;
# Megatron-Bridge's bfloat16 weights, and float32 weights and two moments of its optimiser.
SAVED = {"fsdp2": (12, 4), "megatron": (14, 2)}
KEPT_CHECKPOINTS = 2  # that being written and that before it, since the newest may be incomplete
KEPT_KEY = "trainer.max_actor_ckpt_to_keep"  # by which a layout keeps more, or with null all


@dataclass(frozen=True)
class DiskEstimate:
    """Bytes of the checkpoints of a run while it trains, and of what stays of them: the best weights."""

    training: float
    recorded: float


def estimate_disk(run: RunSpec, layout: LayoutSpec) -> DiskEstimate | None:
    """The disk that a run takes; None for a model whose size does not matter."""
    if not isinstance(run.model, HubModel):
        return None
    parameters = run.model.parameters * 1e9
    whole, weights = map(float, SAVED[layout.strategy])
    if run.optim.lora_rank:  # the adapters and their moments are small
        whole = weights
    if run.optim.master_dtype:
        whole, weights = whole / 2, weights / 2
    whole += run.rollout.staleness * weights  # the earlier policies
    every = min(run.validation.every, layout.checkpoint_every or run.validation.every)
    number = layout.verl.get(KEPT_KEY, KEPT_CHECKPOINTS) or run.training.t_stop // every
    return DiskEstimate(parameters * (number * whole + weights), parameters * weights)


def read_folders(spec: RunSpec, paths: PathsSpec | None) -> list[Path]:
    """The folders that a run reads: of its data, if they are files, and the models, if its model is published."""
    folders = []
    if isinstance(spec.data, MathData) and spec.data.files is not None:
        folders += [Path(file.path).parent for file in spec.data.files.values()]
    elif isinstance(spec.data, MathData) and paths is not None:
        folders.append(Path(paths.data))
    if isinstance(spec.model, HubModel):
        models = paths.models if paths is not None else None
        folders += [Path(models)] if models is not None else [hub_cache()] if hub_cache().is_dir() else []
    return folders
