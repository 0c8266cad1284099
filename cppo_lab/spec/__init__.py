"""Typed, frozen configs. What decides the numbers of a run is in `run`; where it runs is in `layout`."""

from cppo_lab.spec.base import Count, Name, Spec, canonical, digest, fingerprint
from cppo_lab.spec.hub import HubModel, MathData
from cppo_lab.spec.layout import LayoutSpec, Megatron, PathsSpec
from cppo_lab.spec.resources import ResourcesSpec
from cppo_lab.spec.rule import DivergenceSpec, RuleSpec
from cppo_lab.spec.run import TAGS, MiniRun, RunSpec, VerlRun
from cppo_lab.spec.synthetic import Architecture, MadeModel, TaskData, WarmStart

__all__ = [
    "TAGS",
    "Architecture",
    "Count",
    "DivergenceSpec",
    "HubModel",
    "LayoutSpec",
    "MadeModel",
    "MathData",
    "Megatron",
    "MiniRun",
    "Name",
    "PathsSpec",
    "ResourcesSpec",
    "RuleSpec",
    "RunSpec",
    "Spec",
    "TaskData",
    "VerlRun",
    "WarmStart",
    "canonical",
    "digest",
    "fingerprint",
]
