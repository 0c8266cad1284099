"""Palettes: the paper's colours, or colours, dashes and markers that are distinguishable for colour-blind readers and
in black-and-white print.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from matplotlib.lines import Line2D

from cppo_lab.rules import METHODS, NAMED, Stroke, Variant, known
from cppo_lab.rules.colours import (
    BLACK,
    DASH_DOT,
    DASH_DOTS,
    DOTS,
    GREEN,
    LONG_SHORT,
    ORANGE,
    PURPLE,
    SHORT,
    SKY,
    VERMILLION,
)
from cppo_lab.rules.strokes import OTHERS, assigned

PAPER, COLORBLIND = "paper", "colorblind"


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    label: str
    stroke: Stroke

    @property
    def handle(self) -> Line2D:
        """The legend handle."""
        settings = self.stroke.marked() | {"linewidth": 1.6 if self.stroke.dash else 2.2}
        settings.pop("markevery", None)
        return Line2D([], [], **settings)


@dataclass(frozen=True)
class Palette:
    """`own`: returns a record's stroke in this palette, so that a variant looks the same in every panel. `others`:
    strokes for variants without one. `reasons`: colours by a token's fate in Figures 1 and 3; `hatches`: the matching
    hatches.
    """

    own: Callable[[Variant], Stroke | None]
    others: Sequence[Stroke]
    reasons: Mapping[str, str]
    hatches: Mapping[str, str]

    @property
    def methods(self) -> dict[str, Stroke]:
        """The strokes of the methods in the main figure."""
        return {one.name: stroke for one in METHODS if (stroke := self.own(one)) is not None}

    @property
    def variants(self) -> dict[str, Stroke]:
        """The strokes of all built-in variants, including those of the main figure."""
        return {name: stroke for name, one in NAMED.items() if (stroke := self.own(one)) is not None}

    def stroke(self, name: str) -> Stroke | None:
        """The stroke of a variant's record; None if it has none."""
        found = known(name)
        return None if found is None else self.own(found)

    def strokes(
        self, variants: Sequence[str], aliases: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Stroke]:
        """A stroke for each variant: its own, or else the next free one in the given order.

        `aliases`: variant -> the variant that it duplicates under another name.
        """
        own = {name: self.stroke(aliases.get(name, name)) for name in variants}
        return assigned(own, self.others)


_PAPER = Palette(
    own=lambda one: one.stroke,
    others=OTHERS,
    reasons=MappingProxyType(
        {
            "token": "#C8384A",
            "prefix": "#F0A030",
            "response": "#A58BC4",
            "away": "#7FA6DC",
            "toward": "#D3D9E0",
        }
    ),
    hatches=MappingProxyType({}),
)

_COLORBLIND = Palette(
    own=lambda one: one.accessible,
    others=tuple(
        Stroke(
            (GREEN, PURPLE, BLACK, SKY, ORANGE)[index % 5],
            (SHORT, DASH_DOT, DOTS, DASH_DOTS, LONG_SHORT, (2.0, 3.0))[index % 6],
            (">", "p", "h", "<", "D", "P", "^")[index % 7],
        )
        for index in range(30)
    ),
    reasons=MappingProxyType(
        {"token": VERMILLION, "prefix": "#F0E442", "response": PURPLE, "away": SKY, "toward": "#D3D9E0"}
    ),
    hatches=MappingProxyType({"token": "////", "prefix": "....", "response": "xxxx"}),
)

PALETTES: Mapping[str, Palette] = MappingProxyType({PAPER: _PAPER, COLORBLIND: _COLORBLIND})
