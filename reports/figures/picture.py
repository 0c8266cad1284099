"""A numbered figure of a report, ready to be drawn: in files with its title, on a page without."""

from dataclasses import dataclass
from typing import Protocol

from matplotlib.figure import Figure


class Draw(Protocol):
    """Draws into `fig`; `headed`: with title and source above."""

    def __call__(self, fig: Figure, headed: bool = True) -> None:
        """See the class."""


@dataclass(frozen=True)
class Absent:
    """Why a figure cannot be drawn."""

    reason: str


@dataclass(frozen=True)
class Picture:
    """One figure: `name` is that of its files, `label` ("Figure 4") and `title` head it, `caption` explains it.

    `drawing`: how to draw it, or why it cannot be drawn. `data`: its numbers as CSV; empty where it is not drawn.
    """

    name: str
    label: str
    title: str
    caption: str
    drawing: Draw | Absent
    source: str = ""
    run_ids: tuple[str, ...] = ()
    data: str = ""

    @property
    def heading(self) -> str:
        """`Figure 4. Validation curves`."""
        return f"{self.label}. {self.title}"
