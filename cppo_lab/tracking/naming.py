"""What a run is called and described by: its names, tags and parameters, all by its configuration."""

from collections.abc import Mapping
from typing import Any

from cppo_lab import schema
from cppo_lab.spec import RunSpec


def names(spec: RunSpec) -> dict[str, Any]:
    """What a run is, as its status says it."""
    return {
        "core": spec.core,
        "rule": spec.rule.name,
        "model": spec.model.name,
        "seed": spec.seed,
        "t_stop": spec.training.t_stop,
    }


def run_tags(spec: RunSpec) -> dict[str, str]:
    """The tags that follow from the configuration."""
    return {
        schema.TAG_RUN_ID: spec.run_id,
        schema.TAG_RULE: spec.rule.name,
        schema.TAG_MODEL: spec.model.name,
        schema.TAG_CORE: spec.core,
        schema.TAG_SEED: str(spec.seed),
        schema.TAG_T_STOP: str(spec.training.t_stop),
        schema.TAG_STATUS: schema.RUNNING,
    }


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as dotted keys; what does not apply (None) is left out."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif value is not None:
            flat[prefix + key] = str(value)
    return flat
