"""What a trainer core is: a function from a RunSpec to metrics. Cores know nothing of sweeps, launchers or MLflow."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cppo_lab.errors import unknown
from cppo_lab.schema import Outcome
from cppo_lab.spec import LayoutSpec, PathsSpec, RunSpec


class MetricSink(Protocol):
    """Where a core puts its metrics."""

    def begin(self, step: int | None) -> None:
        """Training goes on behind the checkpoint of `step`; None: it starts from the beginning. Called once, first."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` (names of schema.py) of training step `step`. Never blocks training on a server."""

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep `values` as the JSON file `name` of the run; a later one of the same name replaces it."""


CHECKPOINT = "checkpoint.pt"  # in the run's folder; removed when the run is recorded


@dataclass(frozen=True)
class Resources:
    """What this machine gives one run: a folder of its own, and `shared` for files that runs have in common."""

    shared: Path
    folder: Path
    device: str = "auto"  # "auto" takes CUDA when there is one
    threads: int = 1
    layout: LayoutSpec | None = None  # of the verl core
    paths: PathsSpec | None = None


class Core(Protocol):
    """Train one run to its end, or raise."""

    def __call__(self, spec: RunSpec, sink: MetricSink, resources: Resources) -> Outcome: ...


CORES: dict[str, str] = {
    "mini": "cppo_lab.cores.mini.loop:train",
    "verl": "cppo_lab.cores.verl.core:train",
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
