"""Where a run of verl's trainer runs, and how it is distributed over devices; not part of its identity."""

from typing import Any, Literal, Self

from pydantic import model_validator

from cppo_lab.spec.base import Count, Positive, Probability, Spec, fingerprint


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

    `tokens_per_device` bounds the tokens of a micro-batch. `verl` has further settings of verl by their dotted names;
    they are applied last.
    """

    name: str
    device: Literal["cuda", "cpu"]
    device_memory_gb: Positive = 80.0  # 1e9 bytes, of each device; ignored for a CPU
    nodes: Count
    devices_per_node: Count
    strategy: Literal["fsdp2", "megatron"]
    megatron: Megatron | None
    sequence_parallel: Count  # Ulysses; FSDP2 only
    rollout: Literal["vllm", "cppo_cpu"]
    rollout_tensor_parallel: Count
    rollout_memory: Probability  # share of a device's memory that the rollout engine may take
    tokens_per_device: Count
    offload: bool  # keep parameters and optimiser state in host memory between uses
    topk_dtype: Literal["float16", "float32"]  # of mu's Top-K log-probabilities on the wire
    verl: dict[str, Any]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.strategy == "megatron") != (self.megatron is not None):
            raise ValueError(
                f"strategy={self.strategy!r} with megatron={self.megatron!r}: the Megatron engine, and only it, needs "
                "its parallel sizes"
            )
        for name, size in (
            ("sequence_parallel", self.sequence_parallel),
            ("rollout_tensor_parallel", self.rollout_tensor_parallel),
        ):
            if self.devices % size:
                raise ValueError(f"{name}={size} must divide the {self.devices} devices of the layout")
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
    def data_parallel_ranks(self) -> int:
        """Ranks that train different responses."""
        return self.devices // (self.megatron.replica if self.megatron else self.sequence_parallel)


class PathsSpec(Spec):
    """Folders of prepared data and downloaded models; None: the hub's own cache."""

    data: str
    models: str | None


def layout_tag(layout: LayoutSpec) -> str:
    """`<name>@<fingerprint>`: a tag that identifies a layout, including overrides of the named one."""
    return f"{layout.name}@{fingerprint(layout)}"
