"""One bad input: what is typed, what lies in the folder, what is in the environment, and what must be said of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Content = str | bytes
GAP = "…"  # between parts of a message that must follow each other


def _nothing(folder: Path) -> None:
    """Add nothing to the folder."""


@dataclass(frozen=True)
class Case:
    """`arguments` of `cppo`, and the essential parts of its one line, which name the value and the remedy.

    `files` by their relative names; `make` adds what is not a plain file. `store`: there is an empty store of MLflow's.
    """

    arguments: Sequence[str]
    says: str
    files: Mapping[str, Content] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[Path], None] = _nothing
    store: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two inputs the same."""
        return (
            tuple(self.arguments),
            tuple(sorted((name, str(content)) for name, content in self.files.items())),
            tuple(sorted(self.environment.items())),
            self.make,
            self.store,
        )

    def missing(self, line: str) -> str:
        """The first part of the message that the line does not have, in order; empty if it has all."""
        at = 0
        for part in self.says.split(GAP):
            found = line.find(part, at)
            if found < 0:
                return part
            at = found + len(part)
        return ""
