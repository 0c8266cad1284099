"""Typed, frozen configs. `run` has everything that determines a run's numbers, `layout` where it runs."""

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
