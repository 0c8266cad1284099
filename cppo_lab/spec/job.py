"""What is not part of a run's identity: the resources of its job in Slurm's terms, the layout of verl's trainer over
devices, paths, and the answers that are recorded.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cppo_lab.spec.run import Count, Positive, Probability, Spec, fingerprint

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
        """Devices that hold one copy of the model and train the same responses."""
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.strategy == "megatron") != (self.megatron is not None):
            raise ValueError(
                f"strategy={self.strategy!r} with megatron={self.megatron!r}: the Megatron engine, and only it, needs "
                "its parallel sizes"
            )
        for name, size, devices, of in (
            ("sequence_parallel", self.sequence_parallel, self.devices, "the layout"),
            # An engine over several nodes would keep the job id of Ray on its other nodes.
            ("rollout_tensor_parallel", self.rollout_tensor_parallel, self.devices_per_node, "a node"),
        ):
            if devices % size:
                raise ValueError(f"{name}={size} must divide the {devices} devices of {of}")
        if self.megatron and self.devices % self.megatron.replica:
            raise ValueError(
                f"tensor={self.megatron.tensor} x pipeline={self.megatron.pipeline} x context={self.megatron.context} "
                f"= {self.megatron.replica} must divide the {self.devices} devices of the layout"
            )
        if self.device == "cuda" and self.rollout == "cppo_cpu":
            raise ValueError("rollout='cppo_cpu' with device='cuda': it serves CPUs; GPUs are served by vllm")
        return self

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
