"""How the figures look: the paper's colours per method, fonts and sizes. Applied in a context, never
globally.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import matplotlib

from cppo_lab.schema import METHOD_COLOURS

COLOURS: Mapping[str, str] = METHOD_COLOURS
# The bars of Figures 1 and 3: what masked a token; and the kept ones that move away from mu, or toward it.
REASONS: Mapping[str, str] = MappingProxyType(
    {"token": "#C8384A", "prefix": "#F0A030", "response": "#A58BC4", "away": "#7FA6DC", "toward": "#D3D9E0"}
)
# For variants that the main figure does not have; distinct from the seven above and from each other.
_OTHERS = ("#00A3A1", "#7B4FB5", "#E377C2", "#8C8C00", "#17699B", "#FF7F0E", "#9C755F", "#5C6B73")

_RC: Mapping[str, Any] = MappingProxyType(
    {
        "font.family": ["DejaVu Sans"],
        "font.size": 9.0,
        "axes.titlesize": 10.0,
        "axes.titleweight": "bold",
        "axes.labelsize": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#555555",
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#E4E4E4",
        "grid.linewidth": 0.6,
        "xtick.color": "#555555",
        "ytick.color": "#555555",
        "xtick.labelcolor": "#222222",
        "ytick.labelcolor": "#222222",
        "legend.frameon": False,
        "legend.fontsize": 9.0,
        "lines.linewidth": 1.4,
        "lines.solid_capstyle": "round",
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "path.simplify": True,
        # Deterministic files: SVG ids are hashes of the content with this salt instead of random ones.
        "svg.hashsalt": "cppo-lab",
        "pdf.compression": 6,
    }
)


@contextmanager
def figure_style(live_text: bool = False) -> Iterator[None]:
    """The figures' settings inside the block, whatever the user's own matplotlib settings are.

    `live_text` keeps text in SVG as text (for a web page) instead of outlines (for a file that travels).
    """
    settings: dict[Any, Any] = {
        key: value for key, value in matplotlib.rcParamsDefault.items() if key not in _BACKEND_KEYS
    }
    settings.update(_RC)
    settings["svg.fonttype"] = "none" if live_text else "path"
    with matplotlib.rc_context(settings):
        yield


_BACKEND_KEYS = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "webagg.open_in_browser"})


def colours(variants: tuple[str, ...], aliases: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """A colour for each variant: the paper's for its methods, the others in the order given.

    `aliases`: variant -> the method that it is under another name.
    """
    own = {name: COLOURS.get(aliases.get(name, name)) for name in variants}
    others = [name for name in variants if own[name] is None]
    extra = {name: _OTHERS[index % len(_OTHERS)] for index, name in enumerate(others)}
    return {name: own[name] or extra[name] for name in variants}
