"""States of runs as the command line names them."""

from cppo_lab import schema
from cppo_lab.errors import unknown


def parse_states(text: str) -> frozenset[str]:
    """The states of a comma list.

    Raises UserError for one that does not exist.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in schema.STATES:
            raise unknown("state", name, schema.STATES)
    return frozenset(names)
