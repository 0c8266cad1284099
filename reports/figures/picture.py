"""A numbered figure of a report, ready to be drawn: in files with its title, on a page without."""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Absent:
    """Why a figure cannot be drawn."""

    reason: str


@dataclass(frozen=True)
class Picture:
    """One figure: `name` is that of its files, `label` ("Figure 4" or empty) and `title` head it, `caption` explains.

    `drawing`: how to draw it, or why it cannot be drawn. `data`: its numbers as CSV; empty where it has no such file.
    """

    name: str
    label: str
    title: str
    caption: str
    drawing: partial[None] | Absent
    source: str = ""
    run_ids: tuple[str, ...] = ()
    data: str = ""

    @property
    def heading(self) -> str:
        """`Figure 4. Validation curves`; without a label, the title."""
        return f"{self.label}. {self.title}" if self.label else self.title
