"""Parses states of runs on the command line."""

from cppo_lab import schema
from cppo_lab.errors import unknown


def parse_states(text: str) -> frozenset[str]:
    """The states in a comma-separated list.

    Raises UserError for one that does not exist.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in schema.STATES:
            raise unknown("state", name, schema.STATES)
    return frozenset(names)
