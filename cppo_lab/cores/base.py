"""What a trainer core is: a function from a RunSpec to metrics. Cores know nothing of sweeps, launchers or MLflow."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cppo_lab.errors import unknown
from cppo_lab.spec import RunSpec


class MetricSink(Protocol):
    """Where a core puts its metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` (names of schema.py) of training step `step`. Never blocks training on a server."""


@dataclass(frozen=True)
class Resources:
    """What this machine gives one run: `shared` is a folder for files that runs have in common."""

    shared: Path
    device: str = "auto"  # "auto" takes CUDA when there is one
    threads: int = 1


class Core(Protocol):
    """Train one run to its end, or raise."""

    def __call__(self, spec: RunSpec, sink: MetricSink, resources: Resources) -> None: ...


CORES: dict[str, str] = {
    "mini": "cppo_lab.cores.mini.trainer:train",
}


def load_core(name: str) -> Core:
    """The core called `name`; it is imported only now, since trainers are heavy.

    Raises UserError for an unknown name or a core whose packages are not installed.
    """
    if name not in CORES:
        raise unknown("core", name, CORES)
    module, function = CORES[name].split(":")
    core: Core = getattr(importlib.import_module(module), function)
    return core
