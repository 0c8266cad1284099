"""From override strings to typed configs: Hydra composes the choices of groups, plain values are set in copies."""

from cppo_lab.sweep.compose.settings import settings
from cppo_lab.sweep.compose.through_hydra import CONF, UnknownKey, groups, groups_set_by
from cppo_lab.sweep.compose.typed import Composed, TrackingSpec, compose, resolve

__all__ = [
    "CONF",
    "Composed",
    "TrackingSpec",
    "UnknownKey",
    "compose",
    "groups",
    "groups_set_by",
    "resolve",
    "settings",
]
