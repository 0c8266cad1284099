"""Palettes: the paper's colours, or colours, dashes and markers that are distinguishable for colour-blind readers and
in black-and-white print.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from matplotlib.patches import Patch

from cppo_lab.rules import (
    BLACK,
    DASH_DOT,
    DASH_DOTS,
    DOTS,
    GREEN,
    LONG_SHORT,
    METHODS,
    ORANGE,
    OTHERS,
    PURPLE,
    SHORT,
    SKY,
    VERMILLION,
    Stroke,
    Variant,
    assigned,
    known,
)

PAPER, COLORBLIND = "paper", "colorblind"
HEAT_MAP = "viridis"  # light is high: readable in greyscale and with colour-vision deficiency


# The colours of drawings on a dark page: hues stay and get lighter, greys are inverted. Others are legible as they are,
# as colour scales are.
DARK: Mapping[str, str] = {
    "#000000": "#e4e4e4", "#0052d9": "#5d95fc", "#0072b2": "#45a0e3", "#009e73": "#2db185",
    "#00a3a1": "#20adab", "#111111": "#dddddd", "#17699b": "#55a0d5", "#1fa2c4": "#29a8ca",
    "#222222": "#d6d6d6", "#282828": "#d3d3d3", "#2e8b57": "#54ae77", "#555555": "#b7b7b7",
    "#59a14f": "#65ad5a", "#5c6b73": "#9cacb5", "#777777": "#9d9d9d", "#7b4fb5": "#a97ee9",
    "#888888": "#8f8f8f", "#8a1c1c": "#e47067", "#8a5a00": "#c08d46", "#8c8c00": "#9e9f27",
    "#999999": "#7f7f7f", "#9c755f": "#b78e78", "#b07aa1": "#bb84ab", "#b4bac2": "#5c6269",
    "#b5651d": "#d4813f", "#c8384a": "#f3606c", "#d3d9e0": "#3f4349", "#d55e00": "#ea7126",
    "#e0352b": "#ff5546", "#e05759": "#ef6566", "#e4e4e4": "#373737", "#f3d9dc": "#493537",
    "#ffffff": "#181d23",
}  # fmt: skip


@dataclass(frozen=True)
class Palette:
    """`stroke_of`: returns a record's stroke in this palette, so that a variant looks the same in every panel.
    `others`: strokes for variants without one. `reasons`: colours by a token's fate in Figures 1 and 3; `hatches`: the
    matching hatches.
    """

    stroke_of: Callable[[Variant], Stroke | None]
    others: Sequence[Stroke]
    reasons: Mapping[str, str]
    hatches: Mapping[str, str]

    def bar(self, kind: str, label: str) -> Patch:
        """The legend handle of the bars of tokens with this fate."""
        return Patch(facecolor=self.reasons[kind], hatch=self.hatches.get(kind, ""), label=label)

    @property
    def methods(self) -> dict[str, Stroke]:
        """The strokes of the methods in the main figure."""
        return {rule.name: stroke for rule in METHODS if (stroke := self.stroke_of(rule)) is not None}

    def strokes(
        self, variants: Sequence[str], aliases: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Stroke]:
        """A stroke for each variant: its own, or else the next free one in the given order.

        `aliases`: variant -> the variant that it duplicates under another name.
        """
        records = {name: known(aliases.get(name, name)) for name in variants}
        strokes = {
            name: None if record is None else self.stroke_of(record) for name, record in records.items()
        }
        return assigned(strokes, self.others)


_PAPER = Palette(
    stroke_of=lambda variant: variant.stroke,
    others=OTHERS,
    reasons={
        "token": "#C8384A",
        "prefix": "#F0A030",
        "response": "#A58BC4",
        "away": "#7FA6DC",
        "toward": "#D3D9E0",
    },
    hatches={},
)

_COLORBLIND = Palette(
    stroke_of=lambda variant: variant.accessible,
    others=tuple(
        Stroke(
            (GREEN, PURPLE, BLACK, SKY, ORANGE)[index % 5],
            (SHORT, DASH_DOT, DOTS, DASH_DOTS, LONG_SHORT, (2.0, 3.0))[index % 6],
            (">", "p", "h", "<", "D", "P", "^")[index % 7],
        )
        for index in range(30)
    ),
    reasons={
        "token": VERMILLION,
        "prefix": "#F0E442",
        "response": PURPLE,
        "away": SKY,
        "toward": "#D3D9E0",
    },
    hatches={"token": "////", "prefix": "....", "response": "xxxx"},
)

PALETTES: Mapping[str, Palette] = {PAPER: _PAPER, COLORBLIND: _COLORBLIND}
