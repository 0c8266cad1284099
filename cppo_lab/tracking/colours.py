"""The colour of a run's curves in the MLflow UI: one per variant, shared by its seeds."""

import zlib

from cppo_lab.rules import METHOD_COLOURS

# Variants that are none of the paper's methods; distinct from those.
_OTHERS = ("#00A3A1", "#7B4FB5", "#E377C2", "#8C8C00", "#17699B", "#FF7F0E", "#9C755F", "#5C6B73")


def colour(variant: str) -> str:
    """The paper's colour of a method; any other name gets a fixed one from its hash."""
    return METHOD_COLOURS.get(variant) or _OTHERS[zlib.crc32(variant.encode()) % len(_OTHERS)]
