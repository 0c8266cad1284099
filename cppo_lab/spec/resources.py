"""The resources that a run requests, in Slurm's terms; not part of its identity."""

from typing import Annotated

from pydantic import Field

from cppo_lab.spec.base import Count, Spec

# These become options of a batch script, so characters that are special to a shell are excluded.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+@-]*$", max_length=256)]
Features = Annotated[str, Field(pattern=r"^[A-Za-z0-9\[(][A-Za-z0-9_.,:|&*()\[\]-]*$", max_length=256)]
GpuType = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=256)]
Hours = Annotated[float, Field(gt=0, le=10_000)]
Memory = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ResourcesSpec(Spec):
    """Time and resources of one run; None: the cluster's default. Nodes and devices are in the layout."""

    hours: Hours  # after which the run is ended
    cpus: Count | None  # of each node
    memory_gb: Memory | None  # of each node, in 2^30 bytes as Slurm's G; 0: the whole node's
    gpu_type: GpuType | None = None  # as Slurm's gres name it: a100; nothing to a run on CPUs
    partition: Word | None
    account: Word | None
    qos: Word | None
    constraint: Features | None
