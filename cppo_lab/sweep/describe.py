"""Describes a planned run in full, as text and as data."""

from typing import Any

import yaml

from cppo_lab.core_records import core_of
from cppo_lab.estimate import UNCERTAINTY, CostEstimate, estimate
from cppo_lab.spec import PathsSpec
from cppo_lab.sweep.enumerate import PlannedRun
from cppo_lab.sweep.find import Found


def describe(run: PlannedRun, paths: PathsSpec) -> dict[str, Any]:
    """The composed configuration of a run, in the order of the configs, without constants that do not apply.

    `run` alone determines `run_id`. Layout and paths are included for cores that use them, the estimate for GPUs.
    """
    sections: dict[str, Any] = {
        "run_id": run.run_id,
        "sweeps": dict(run.variants),
        "run": run.spec.model_dump(mode="json", exclude_none=True),
    }
    if core_of(run.spec.core).uses_layout:
        sections["layout"] = run.layout.model_dump(mode="json")
        sections["paths"] = paths.model_dump(mode="json")
        cost = estimate(run.spec, run.layout)
        if cost is not None:
            sections["estimate"] = _cost(cost)
    return sections


def to_yaml(run: PlannedRun, sections: dict[str, Any]) -> str:
    """One YAML document, headed by a comment that names the run."""
    head = f"# {run.variant} / {run.spec.model.name} / seed {run.spec.seed}\n"
    text: str = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=120)
    return head + text


def sections_of(found: Found) -> dict[str, Any]:
    """The description of a run found by its id: in full if a sweep declares it, else only its configuration."""
    if found.planned is not None and found.paths is not None:
        return describe(found.planned, found.paths)
    return {"run_id": found.run_id, "run": _without_none(found.config)}


def describe_found(found: Found) -> str:
    """The same as one YAML document."""
    sections = sections_of(found)
    if found.planned is not None:
        return f"# from {found.source}\n" + to_yaml(found.planned, sections)
    text: str = yaml.safe_dump(sections, sort_keys=False, allow_unicode=True, width=120)
    return f"# from {found.source}\n{text}"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _cost(cost: CostEstimate) -> dict[str, Any]:
    """Hours, seconds and gigabytes (10^9 bytes), rounded to their accuracy."""
    time, memory = cost.time, cost.memory
    return {
        "gpu": "H100 80 GB",
        "good_to_a_factor_of": UNCERTAINTY,
        "gpu_hours": round(time.gpu_hours),
        "hours": round(time.hours, 1),
        "seconds_per_step": {
            "rollout": round(time.rollout),
            "update": round(time.update),
            "overhead": round(time.overhead),
        },
        "seconds_per_validation": round(time.validation),
        "memory": memory.verdict,
        "gigabytes_per_gpu": {
            "state": round(memory.state / 1e9, 1),
            "activations": round(memory.activations / 1e9, 1),
            "logits": round(memory.logits / 1e9, 1),
            "peak_in_training": round(memory.training / 1e9, 1),
            "peak_in_rollout": round(memory.rollout / 1e9, 1),
        },
    }
