"""How variants are told apart: the paper's colours, or colours, dashes and markers that a colour-blind reader and a
black-and-white print keep apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from matplotlib.lines import Line2D

from cppo_lab.schema import METHOD_COLOURS

PAPER, COLORBLIND = "paper", "colorblind"


@dataclass(frozen=True)
class Stroke:
    """How a variant's line is drawn. `dash`: lengths of strokes and gaps in widths of the line, empty for a full line;
    `marker`: matplotlib's sign for the points that stand on it, empty for none.
    """

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = ""

    def line(self) -> dict[str, Any]:
        """The settings of a line without its markers."""
        return {"color": self.colour, "linestyle": (0, self.dash) if self.dash else "-"}

    def marked(self) -> dict[str, Any]:
        """The settings of a line with a marker about every eighth of the panel's diagonal."""
        if not self.marker:
            return self.line()
        return self.line() | {"marker": self.marker, "markevery": 0.12, "markersize": 3.8}


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    label: str
    stroke: Stroke

    @property
    def handle(self) -> Line2D:
        """What stands in the legend before the label."""
        settings = self.stroke.marked() | {"linewidth": 1.6 if self.stroke.dash else 2.2}
        settings.pop("markevery", None)
        return Line2D([], [], **settings)


@dataclass(frozen=True)
class Palette:
    """`methods`: the main figure's. `variants`: those of the ablations, so that they look the same in every panel.
    `others`: for variants of the user's own. `reasons`: what became of a token in Figures 1 and 3, `hatches` beside.
    """

    methods: Mapping[str, Stroke]
    variants: Mapping[str, Stroke]
    others: Sequence[Stroke]
    reasons: Mapping[str, str]
    hatches: Mapping[str, str]

    def strokes(
        self, variants: Sequence[str], aliases: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, Stroke]:
        """A stroke for each variant: its own if it has one here, the others in the order given.

        `aliases`: variant -> the one that it is under another name.
        """
        known = {**self.variants, **self.methods}
        own = {name: known.get(aliases.get(name, name)) for name in variants}
        taken = set(own.values())
        free = [stroke for stroke in self.others if stroke not in taken] or list(self.others)
        strangers = [name for name in dict.fromkeys(variants) if own[name] is None]
        extra = {name: free[index % len(free)] for index, name in enumerate(strangers)}
        return {name: own[name] or extra[name] for name in variants}


def _plain(colours: Mapping[str, str]) -> Mapping[str, Stroke]:
    return MappingProxyType({name: Stroke(colour) for name, colour in colours.items()})


_PAPER = Palette(
    methods=_plain(METHOD_COLOURS),
    variants=_plain(
        {
            "cppo_no_position_weight": "#00A3A1",
            "cppo_no_prefix_budget": "#7B4FB5",
            "cppo_no_prefix_budget_shuffled": "#E377C2",
            "cppo_soft": "#8C8C00",
            "cppo_fixed_budget": "#FF7F0E",
            "cppo_db0.03_w0.8": "#FF7F0E",  # the paper's curves name these two by their constants
            "cppo_low_w_min": "#5C6B73",
            "cppo_db0.02_w0.6": "#5C6B73",
            "cppo_kl": "#2E8B57",
            "trm_max_avg": "#9C755F",
            "cppo_binary_tv": "#1FA2C4",
        }
    ),
    others=tuple(
        Stroke(colour, dash)
        for dash in ((), (5.0, 2.0), (1.0, 1.5))
        for colour in (
            *("#00A3A1", "#7B4FB5", "#E377C2", "#8C8C00", "#17699B", "#FF7F0E", "#9C755F", "#5C6B73"),
            *("#2E8B57", "#1FA2C4"),
        )
    ),
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

# Okabe and Ito's colours (2008) without the yellow, which is too light for a line on white.
_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_BLUE, _VERMILLION, _PURPLE = "#0072B2", "#D55E00", "#CC79A7"
_LONG, _SHORT, _DOTS, _DASH_DOT = (6.0, 2.0), (3.0, 1.5), (1.0, 1.5), (6.0, 1.5, 1.0, 1.5)
_DASH_DOTS, _LONG_SHORT = (6.0, 1.5, 1.0, 1.5, 1.0, 1.5), (8.0, 1.5, 3.0, 1.5)

_COLORBLIND = Palette(
    methods=MappingProxyType(
        {
            "cppo": Stroke(_BLUE),
            "dppo": Stroke(_VERMILLION, _LONG, "s"),
            "trm_avg": Stroke(_ORANGE, _DASH_DOT, "^"),
            "trm_max": Stroke(_PURPLE, _SHORT, "v"),
            "cispo": Stroke(_SKY, _LONG_SHORT, "D"),
            "grpo": Stroke(_GREEN, _DASH_DOTS, "P"),
            "minpro": Stroke(_BLACK, _DOTS, "<"),
        }
    ),
    variants=MappingProxyType(
        {
            "cppo_no_position_weight": Stroke(_GREEN, _SHORT, "^"),
            "cppo_no_prefix_budget": Stroke(_PURPLE, _DASH_DOT, "v"),
            "cppo_no_prefix_budget_shuffled": Stroke(_BLACK, _DOTS, "D"),
            "cppo_soft": Stroke(_BLACK, _SHORT, "P"),
            "cppo_fixed_budget": Stroke(_GREEN, _DASH_DOT, "v"),
            "cppo_db0.03_w0.8": Stroke(_GREEN, _DASH_DOT, "v"),
            "cppo_low_w_min": Stroke(_BLACK, _DOTS, "^"),
            "cppo_db0.02_w0.6": Stroke(_BLACK, _DOTS, "^"),
            "cppo_kl": Stroke(_PURPLE, _SHORT, "D"),
            "trm_max_avg": Stroke(_BLACK, _DASH_DOTS, "P"),
            "cppo_binary_tv": Stroke(_PURPLE, _DOTS, "<"),
        }
    ),
    others=tuple(
        Stroke(
            (_GREEN, _PURPLE, _BLACK, _SKY, _ORANGE)[index % 5],
            (_SHORT, _DASH_DOT, _DOTS, _DASH_DOTS, _LONG_SHORT, (2.0, 3.0))[index % 6],
            (">", "p", "h", "<", "D", "P", "^")[index % 7],
        )
        for index in range(30)
    ),
    reasons=MappingProxyType(
        {"token": _VERMILLION, "prefix": "#F0E442", "response": _PURPLE, "away": _SKY, "toward": "#D3D9E0"}
    ),
    hatches=MappingProxyType({"token": "////", "prefix": "....", "response": "xxxx"}),
)

PALETTES: Mapping[str, Palette] = MappingProxyType({PAPER: _PAPER, COLORBLIND: _COLORBLIND})
