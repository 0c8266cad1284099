"""The resources that a run requests, in Slurm's terms; not part of its identity."""

from typing import Annotated

from pydantic import Field

from cppo_lab.spec.base import Count, Positive, Spec

# These become options of a batch script, so characters that are special to a shell are excluded.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:+@-]*$", max_length=256)]
Features = Annotated[str, Field(pattern=r"^[A-Za-z0-9\[(][A-Za-z0-9_.,:|&*()\[\]-]*$", max_length=256)]


Hours = Annotated[float, Field(gt=0, le=10_000)]


class ResourcesSpec(Spec):
    """Time and resources of one run; None: the cluster's default. Nodes and devices are in the layout."""

    hours: Hours  # after which the run is ended
    cpus: Count | None  # of each node
    memory_gb: Positive | None  # of each node, in 2^30 bytes as Slurm's G
    partition: Word | None
    account: Word | None
    qos: Word | None
    constraint: Features | None
