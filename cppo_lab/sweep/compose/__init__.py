"""From override strings to typed configs: Hydra composes the group choices, and plain values are set in copies.

Guarantees of this package:

- The result equals that of Hydra alone, which takes 100 ms for each configuration (`settings.py`).
- Hydra is used in `through_hydra.py` only; its errors become a `UserError` with key, value and remedy.
- What comes out is validated: a `Composed` with the run and all that is not part of its id (`typed.py`).
- Checks across configs, such as a model against its core, are in `checks.py`.
- The cache changes no result: an entry counts only for the same files and choices (`cache.py`).

Begin with `compose` in `typed.py`, then `settings.py`.
"""

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
