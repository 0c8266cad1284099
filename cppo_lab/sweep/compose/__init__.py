"""From override strings to typed configs: Hydra composes the group choices, and plain values are set in copies."""

from cppo_lab.sweep.compose.settings import SHARED_CONSTANTS, choices_of, takes
from cppo_lab.sweep.compose.through_hydra import UnknownKey, groups_set_by, listed, parsed
from cppo_lab.sweep.compose.typed import Composed, TrackingSpec, compose, resolve

__all__ = [
    "SHARED_CONSTANTS",
    "Composed",
    "TrackingSpec",
    "UnknownKey",
    "choices_of",
    "compose",
    "groups_set_by",
    "listed",
    "parsed",
    "resolve",
    "takes",
]
