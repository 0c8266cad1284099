"""Typed, frozen configs. `run` has everything that determines a run's numbers, `layout` where it runs.

Guarantees of this package:

- A config is immutable and rejects unknown keys and values out of range (`base.py`).
- `run_id` is the hash of the resolved `RunSpec`, seed included (`run.py`). Null fields do not count, so a new optional
  field changes no existing id.
- Layout, paths, resources and kept answers are not part of the id (`layout.py`, `resources.py`, `answers.py`).
- Nothing here reads a file or imports a trainer; YAML and Hydra are the matter of `cppo_lab.sweep.compose`.

Begin with `base.py` and `run.py`; `rule.py`: the rule's constants and the divergence; `synthetic.py`, `hub.py`,
`process.py`: models and data of each core.
"""

from cppo_lab.spec.answers import AnswersSpec
from cppo_lab.spec.base import Count, Name, Spec, canonical, digest, fingerprint
from cppo_lab.spec.hub import HubModel, MathData
from cppo_lab.spec.layout import LayoutSpec, Megatron, PathsSpec
from cppo_lab.spec.process import ProcessData, TableModel
from cppo_lab.spec.resources import ResourcesSpec
from cppo_lab.spec.rule import DivergenceSpec, RuleSpec
from cppo_lab.spec.run import TAGS, ExactRun, MiniRun, RunSpec, VerlRun
from cppo_lab.spec.synthetic import Architecture, SyntheticModel, TaskData, WarmStart

__all__ = [
    "TAGS",
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
    "digest",
    "fingerprint",
]
