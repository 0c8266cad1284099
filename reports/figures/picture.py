"""A figure of a report, ready to be drawn: with its title in files, without on a page."""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Absent:
    """Why a figure cannot be drawn."""

    reason: str


@dataclass(frozen=True)
class Picture:
    """One figure: `name` is the stem of its file names; `label` ("Figure 4" or empty), `title` and `caption` are texts.

    `drawing`: draws it, or says why it cannot be drawn. `data`: its numbers as CSV; empty without such a file.
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
