"""The style of the figures: fonts, sizes and lines. It is applied in a context, never globally. Colours are in
`palette`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import matplotlib

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
    """Apply the figures' settings inside the block, independent of the user's matplotlib settings.

    `live_text` keeps text in SVG as text (for a web page) instead of outlines (for a stand-alone file).
    """
    settings: dict[Any, Any] = {
        key: value for key, value in matplotlib.rcParamsDefault.items() if key not in _BACKEND_KEYS
    }
    settings.update(_RC)
    settings["svg.fonttype"] = "none" if live_text else "path"
    with matplotlib.rc_context(settings):
        yield


_BACKEND_KEYS = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "webagg.open_in_browser"})
