"""A numbered figure of a report, ready to be drawn: in files with its title, on a page without."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

Draw = Callable[[Figure, bool], None]  # (figure, whether title and source stand above the drawing)


@dataclass(frozen=True)
class Absent:
    """Why a figure cannot be drawn."""

    reason: str


@dataclass(frozen=True)
class Picture:
    """One figure: `name` is that of its files, `label` ("Figure 4") and `title` head it, `caption` explains it.

    `drawing`: how to draw it, or why it cannot be drawn. `alt`: what it shows, for readers who cannot see it.
    """

    name: str
    label: str
    title: str
    caption: str
    drawing: Draw | Absent
    source: str = ""
    run_ids: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """`Figure 4. Validation curves`."""
        return f"{self.label}. {self.title}"
