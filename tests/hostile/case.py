"""One bad input: what is typed, what lies in the folder, what is in the environment, and what must be said of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Content = str | bytes
GAP = "…"  # between parts of a message that must follow each other


@dataclass(frozen=True)
class Case:
    """What is typed after `cppo`, and the essential parts of its one line, which name the value and the remedy.

    `files` by their relative names; `make` adds what is not a plain file. `store`: there is an empty store of MLflow's.
    """

    typed: str
    says: str
    files: Mapping[str, Content] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[Path], object] | None = None
    store: bool = False

    def missing(self, line: str) -> str:
        """The first part of the message that the line does not have, in order; empty if it has all."""
        at = 0
        for part in self.says.split(GAP):
            if (at := line.find(part, at)) < 0:
                return part
            at += len(part)
        return ""
