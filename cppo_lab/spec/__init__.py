"""Typed, frozen configs. `run` has everything that determines a run's numbers, `job` where it runs and what that costs.

Guarantees of this package:

- A config is immutable and rejects unknown keys and values out of range.
- `run_id` is the hash of the resolved `RunSpec`, seed included (`run.py`). Null fields do not count, so a new optional
  field changes no existing id.
- Layout, paths, resources and kept answers are not part of the id (`job.py`).
- Nothing here reads a file or imports a trainer; YAML and Hydra are the matter of `cppo_lab.sweep.compose`.

Begin with `run.py`; `parse.py` makes its types from plain values.
"""

from cppo_lab.spec.job import AnswersSpec, LayoutSpec, Megatron, PathsSpec, ResourcesSpec
from cppo_lab.spec.run import (
    TAGS,
    AlongSpec,
    Architecture,
    Count,
    DivergenceSpec,
    ExactRun,
    HubModel,
    MathData,
    MiniRun,
    Name,
    ProcessData,
    RuleSpec,
    RunSpec,
    Spec,
    SyntheticModel,
    TableModel,
    TaskData,
    VerlRun,
    WarmStart,
    canonical,
    fingerprint,
)

__all__ = [
    "TAGS",
    "AlongSpec",
    "AnswersSpec",
    "Architecture",
    "Count",
    "DivergenceSpec",
    "ExactRun",
    "HubModel",
    "LayoutSpec",
    "MathData",
    "Megatron",
    "MiniRun",
    "Name",
    "PathsSpec",
    "ProcessData",
    "ResourcesSpec",
    "RuleSpec",
    "RunSpec",
    "Spec",
    "SyntheticModel",
    "TableModel",
    "TaskData",
    "VerlRun",
    "WarmStart",
    "canonical",
    "fingerprint",
]
